"""Views of files that are never written: a header is parsed from bytes, the pieces point at an address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufslice.header import HeaderParser
from ggufslice.spans import SourceRef, Span
from ggufslice.testing import build_gguf
from ggufslice.view import GGUF, Metadata, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ggufslice.testing import TensorSpec


def opened(
    *files: bytes, url: str = "https://example.org/m/model.gguf", validators: Mapping[str, str] | None = None
) -> GGUF:
    """Return the view of a file, or of shards whose addresses are numbered."""
    metadata, tensors, version = Metadata(()), [], 3
    for number, data in enumerate(files, 1):
        parser = HeaderParser(url, size=len(data))
        parser.feed(data)
        header = parser.header
        address = url.replace(".gguf", f"-{number:05d}-of-{len(files):05d}.gguf") if len(files) > 1 else url
        ref = SourceRef(address, len(data), {**(validators or {}), "etag": f'"{number}"'})
        if number == 1:
            metadata, version = Metadata(header.records, header.byteorder), header.version
        for info in header.tensors:
            start = header.data_start + info.offset
            span = Span(ref, start, start + info.n_bytes)
            tensors.append(Tensor(info.name, info.ne, info.tensor_type, (span,), header.byteorder))
    return GGUF(metadata.remove(["split.no", "split.count", "split.tensors.count"]), tensors, version)


def rewritten(view: GGUF, metadata: Mapping[str, Any], tensors: Iterable[TensorSpec]) -> GGUF:
    """Return the view of a file that has a view's metadata, some of it replaced, and these tensors."""
    records = view.metadata.set(metadata)
    data = build_gguf({}, list(tensors))
    parser = HeaderParser("rewritten", size=len(data))
    parser.feed(data)
    plain = opened(data, url="/models/rewritten.gguf")
    return GGUF(records, plain.all_tensors, view.version)
