"""Bytes of the opened files that no tensor claims: a sign of a type that stores more than its name says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufslice.arch._finding import Finding
from ggufslice.spans import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufslice.spans import SourceRef
    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = ["check_stored"]


def check_stored(view: GGUF) -> Iterator[Finding]:
    """Yield where more bytes than padding lie behind a tensor: the size that its type gives may be too small."""
    found: dict[SourceRef, list[tuple[int, int, Tensor]]] = {}
    for tensor in view.base.all_tensors:
        for piece in tensor.pieces:
            if isinstance(piece, Span):
                found.setdefault(piece.source, []).append((piece.start, piece.stop, tensor))
    for ref, spans in found.items():
        spans.sort(key=lambda span: span[:2])
        starts = [start for start, _, _ in spans] + ([] if ref.size is None else [ref.size])
        ends = [(stop, tensor) for _, stop, tensor in spans]
        loose = [(start - stop, tensor) for (stop, tensor), start in zip(ends, starts[1:], strict=False)]
        wide = [(n, tensor) for n, tensor in loose if n >= view.base.alignment]
        if wide:
            n, tensor = wide[0]
            others = f" (and of {len(wide) - 1} more)" if len(wide) > 1 else ""
            yield Finding(
                f"behind tensor {tensor.name!r}{others} lie {n} bytes that belong to no tensor, and are left out; if its "
                f"type isn't {tensor.tensor_type} but another program's of the same number, it is cut short",
                refuse=False,
            )
