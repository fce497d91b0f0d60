"""`Plan`: what a write would fetch and where it would put it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.arch import check
from ggufslice.classes import TensorClass, classify
from ggufslice.errors import UnsupportedCutError
from ggufslice.io.layout import PlannedFile, lay_out
from ggufslice.io.options import TransferOptions
from ggufslice.io.requests import requests_for
from ggufslice.io.shards import SPLIT_KEYS
from ggufslice.io.sources import access_to
from ggufslice.provenance import source_refs, stamp
from ggufslice.spans import Literal, Remap, Span
from ggufslice.units import bytes_text, count_text, counted, percent_text
from ggufslice.view import GGUF, source_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufslice.io.requests import Request
    from ggufslice.spans import Piece, SourceRef

__all__ = ["Plan", "make_plan"]


@attrs.frozen
class Plan:
    """What a write would fetch and write.

    Parameters
    ----------
    view
        What is written, with the keys that state its origin.
    files
        The files of the result, in order.
    options
        Limits of the transfer: those that the source was opened with.
    forced
        Refusals that were overridden.
    warnings
        What a reader should know.
    """

    view: GGUF = attrs.field(repr=False)
    files: tuple[PlannedFile, ...] = attrs.field(repr=False)
    options: TransferOptions
    forced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def file_bytes(self) -> int:
        """Bytes of all files of the result."""
        return self.files[-1].stop

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the headers, without the padding behind them."""
        return sum(file.metadata_bytes for file in self.files)

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return self.view.tensor_bytes

    @property
    def padding_bytes(self) -> int:
        """Bytes between and behind headers and tensors."""
        return self.file_bytes - self.metadata_bytes - self.tensor_bytes

    @cached_property
    def requests(self) -> list[Request]:
        """Range requests for the whole result, in order; without the small tables of expert ids."""
        spans = ((piece, at) for piece, at in self.copies() if isinstance(piece, Span))
        return requests_for(spans, self.options, self.options.max_jobs)

    @cached_property
    def source_bytes(self) -> dict[SourceRef, int]:
        """Bytes of each source that the result is made of."""
        found: Counter[SourceRef] = Counter()
        for tensor in self.view.all_tensors:
            spans = (piece.span if isinstance(piece, Remap) else piece for piece in tensor.pieces)
            for source, run in groupby((s for s in spans if isinstance(s, Span)), key=attrgetter("source")):
                found[source] += sum(map(len, run))
        return dict(found)

    @property
    def fetch_bytes(self) -> int:
        """Bytes that would be fetched, those between neighbouring spans included."""
        return sum(self.source_bytes.values()) + self.gap_bytes

    @property
    def gap_bytes(self) -> int:
        """Bytes between neighbouring spans that would be fetched and thrown away to save requests."""
        return sum(request.gap for request in self.requests)

    @property
    def n_requests(self) -> int:
        """Range requests that this would take without failures."""
        remaps = sum(isinstance(piece, Remap) for piece, _ in self.copies())
        return remaps + len(self.requests)

    @cached_property
    def digest(self) -> str:
        """A digest of what goes where: of the headers and of the copy list, with sources by address."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"file {file.start} {file.stop} ".encode() + hashlib.sha256(file.layout.head).digest())
        for piece, at in self.copies():
            if isinstance(piece, Literal):
                digest.update(f"{at} literal ".encode() + hashlib.sha256(piece.data).digest())
                continue
            span, ids = (piece.span, piece.ids) if isinstance(piece, Remap) else (piece, "")
            digest.update(f"{at} {span.start} {span.stop} {ids} {span.source.display}\n".encode())
        return digest.hexdigest()

    def copies(self) -> Iterator[tuple[Piece, int]]:
        """Yield every piece of every tensor and the address that it goes to, by address."""
        return chain.from_iterable(file.copies() for file in self.files)

    def _class_bytes(self) -> dict[TensorClass, int]:
        found: Counter[TensorClass] = Counter()
        for tensor in self.view.all_tensors:
            found[classify(tensor.name)] += tensor.n_bytes
        return {kind: found[kind] for kind in TensorClass if found[kind]}

    def _licence(self) -> dict[str, str]:
        return {k: str(v) for k, v in self.view.metadata.items() if k.startswith("general.license")}

    def to_json(self) -> str:
        """Return the plan as JSON: exact integers in bytes."""
        base, view = self.view.base, self.view
        values: dict[str, Any] = {
            "architecture": view.architecture,
            "file_bytes": self.file_bytes,
            "metadata_bytes": self.metadata_bytes,
            "padding_bytes": self.padding_bytes,
            "tensor_bytes": self.tensor_bytes,
            "files": [file.layout.n_bytes for file in self.files],
            "tensors": len(view),
            "n_params": view.n_params,
            "blocks": {"kept": view.block_count, "of": base.block_count},
            "experts": {"kept": view.expert_count, "of": base.expert_count, "used": view.expert_used_count},
            "fetch": {
                "bytes": self.fetch_bytes,
                "gap_bytes": self.gap_bytes,
                "requests": self.n_requests,
                "of_bytes": base.tensor_bytes,
                "sources": [{"source": ref.display, "bytes": n} for ref, n in self.source_bytes.items()],
            },
            "classes": {str(kind): n for kind, n in self._class_bytes().items()},
            "licence": self._licence(),
            "warnings": self.warnings,
            "forced": self.forced,
        }
        return json.dumps(values, indent=2) + "\n"

    def __str__(self) -> str:
        base, view = self.view.base, self.view
        name = str(view.metadata.get("general.name", "unnamed"))
        kept = [f"{view.block_count} of {base.block_count} layers"]
        if base.expert_count:
            kept.append(f"{view.expert_count} of {base.expert_count} experts, {view.expert_used_count} used a token")
        kept.append(f"{count_text(view.n_params)} of {count_text(base.n_params)} parameters")
        files = "1 file" if len(self.files) == 1 else f"{len(self.files)} shards"
        part = percent_text(self.fetch_bytes / base.tensor_bytes if base.tensor_bytes else 0)
        written = (
            f"{bytes_text(self.file_bytes)} in {files}: {bytes_text(self.tensor_bytes)} in {counted(len(view), 'tensor')}, "
            f"{bytes_text(self.metadata_bytes)} of metadata, {bytes_text(self.padding_bytes)} of padding"
        )
        fetched = (
            f"{bytes_text(self.fetch_bytes)} of {bytes_text(base.tensor_bytes)} ({part}) in "
            f"{counted(self.n_requests, 'request')}, {bytes_text(self.gap_bytes)} of it between spans"
        )
        lines = [
            f"{name} ({view.architecture or 'no architecture'}): {'; '.join(kept)}",
            f"write    {written}",
            *(f"         {bytes_text(n):>12}  {kind}" for kind, n in self._class_bytes().items()),
            f"fetch    {fetched}",
            *(f"         {bytes_text(n):>12}  {ref.display}" for ref, n in self.source_bytes.items()),
            f"licence  {', '.join(self._licence().values()) or 'not stated in the file'}",
            *(f"warning  {text}" for text in self.warnings),
            *(f"forced   {text}" for text in self.forced),
        ]
        return "\n".join(lines)


def make_plan(view: GGUF, *, max_shard_size: int | None = None, force: bool = False) -> Plan:
    """Plan a write; see `GGUF.plan`."""
    if max_shard_size is not None and max_shard_size < 1:
        raise ValueError(f"max_shard_size is {max_shard_size!r}, not a positive number of bytes")
    findings = check(view)
    refusals = [finding for finding in findings if finding.refuse]
    if refusals and not force:
        raise UnsupportedCutError(f"{source_name(view)}: " + "\n".join(map(str, refusals)))
    forced = tuple(finding.message for finding in refusals)
    view = stamp(view, forced=forced)
    view = GGUF(view.metadata.remove(SPLIT_KEYS), view.all_tensors, view.version, view.lineage)
    files = lay_out(view, max_shard_size)
    warnings = [str(finding) for finding in findings if not finding.refuse]
    if view.lineage:
        warnings += view.lineage.notes
        if view.lineage.fragment:
            warnings.append("tensors were dropped by name: this is a fragment, which isn't meant to load")
    warnings += [
        f"shard {i} has {bytes_text(file.layout.n_bytes)}, more than the {bytes_text(max_shard_size)} asked for: "
        f"{file.tensors[0].name} alone is as large"
        for i, file in enumerate(files, 1)
        if max_shard_size is not None and file.layout.n_bytes > max_shard_size and file.tensors
    ]
    refs = source_refs(view)
    options = access_to(refs[0]).options if refs else TransferOptions()
    return Plan(view, files, options, forced, tuple(warnings))
