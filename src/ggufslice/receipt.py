"""The receipt: what is left of a model after a cut, in figures that can't be mistaken for one another.

A bits-per-parameter figure is a ratio with a declared denominator. `Receipt.declared` divides by the parameters of the first
model (or a number that the user states), `Receipt.real` by those that are present; the text prints both, and how much of the
weights is missing. All figures come from the tensors' own shapes, types and bytes, never from names or labels.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import attrs

from ggufslice import _render
from ggufslice.arch import check
from ggufslice.claims import Claim, claims_of
from ggufslice.classes import TensorClass, block_of, classify, is_lookup
from ggufslice.header import encode
from ggufslice.provenance import Origin, Source, most, source_refs, stamp
from ggufslice.spans import Remap, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from ggufslice.accounting import Transfer
    from ggufslice.view import GGUF, Tensor

__all__ = ["Claim", "Part", "Receipt"]

_LICENCE = "general.license"


@attrs.frozen
class Part:
    """The tensors of one class and one type, together.

    Parameters
    ----------
    tensor_class
        Such as ``routed experts``.
    tensor_type
        Such as ``IQ1_S``.
    n_params
        Parameters.
    n_bytes
        Bytes, without padding.
    """

    tensor_class: str
    tensor_type: str
    n_params: int
    n_bytes: int

    @property
    def bits(self) -> float | None:
        """Bits per parameter."""
        return ratio(8 * self.n_bytes, self.n_params)


@attrs.frozen(kw_only=True)
class Receipt:
    """What is left of a model.

    ``metadata_bytes + padding_bytes + tensor_bytes == file_bytes``. Bytes are integers; what isn't known is None.

    Parameters
    ----------
    name, architecture
        ``general.name`` (or the file's name) and ``general.architecture``.
    file_bytes, metadata_bytes, padding_bytes, tensor_bytes
        Bytes of the whole file (of all shards), of headers, between and behind tensors, and of tensors.
    n_params
        Parameters present: the sum over all tensors of the product of ne, as llama-bench counts.
    parts
        Parameters and bytes by class and type.
    repeating
        Parameters and bytes of the tensors in blocks alone: without embeddings and output.
    token_bytes
        Weight bytes that are read for a token: of the routed experts those used, of tables one row (counted as nothing),
        ``token_embd`` only where it is the output too, no MTP blocks.
    block_count, expert_count, expert_used_count
        Blocks, routed experts of a layer and how many of them a token goes through (the most, where layers differ).
    origin
        The first model, the parent, and what was kept.
    stated_parameters
        A parameter count that the user states as the denominator, such as an advertised one.
    never_requested
        Tensor bytes of the opened model that were never asked for.
    claims
        Keys that describe the parent, beside what was measured.
    licence
        Keys about the licence, with their values.
    forced
        Refusals that were overridden.
    notes
        What checks and operations had to say.
    requantized
        Whether tensor types have changed since the cut was written.
    transfer
        What the write moved.
    """

    name: str
    architecture: str
    file_bytes: int
    metadata_bytes: int
    padding_bytes: int
    tensor_bytes: int
    n_params: int
    parts: tuple[Part, ...]
    repeating: Part
    token_bytes: int
    block_count: int
    expert_count: int
    expert_used_count: int
    origin: Origin | None = None
    stated_parameters: int | None = None
    never_requested: int | None = None
    claims: tuple[Claim, ...] = ()
    licence: tuple[tuple[str, str], ...] = ()
    forced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    requantized: bool = False
    transfer: Transfer | None = None

    @classmethod
    def of(
        cls,
        target: GGUF | str | PathLike[str],
        *,
        against: GGUF | str | PathLike[str] | None = None,
        parameters: int | None = None,
    ) -> Receipt:
        """Make the receipt of a view, or of a file that we or llama-quantize made.

        Parameters
        ----------
        target
            A view, a path or a URL; of a file only the header is read.
        against
            The first model, for a file that doesn't say where it comes from.
        parameters
            A parameter count to use as the denominator, such as an advertised one.

        Raises
        ------
        SourceError, FormatError
            A file can't be opened.
        """
        return cls.of_view(_opened(target), against=None if against is None else _opened(against), parameters=parameters)

    @classmethod
    def of_view(
        cls,
        view: GGUF,
        *,
        transfer: Transfer | None = None,
        forced: Iterable[str] = (),
        file_bytes: int | None = None,
        metadata_bytes: int | None = None,
        against: GGUF | None = None,
        parameters: int | None = None,
    ) -> Receipt:
        """Make the receipt of a view, without reading anything.

        Parameters
        ----------
        view
            As opened, or with operations applied: then the figures are those of the file that a write makes.
        transfer
            What the write moved.
        forced
            Refusals that were overridden.
        file_bytes, metadata_bytes
            Bytes of the files and of their headers, where they have been written.
        against, parameters
            As in `of`.
        """
        remarks = [str(finding) for finding in check(view) if not finding.refuse]
        if view.lineage is not None:
            view = stamp(view, forced=forced)
        origin = Origin.of(view)
        if against is not None:
            origin = attrs.evolve(origin or Origin(), source=Source.of(against))
        parts = _parts(view.all_tensors)
        sizes = _sizes(view)
        file_bytes = sizes[0] if file_bytes is None else file_bytes
        metadata_bytes = sizes[1] if metadata_bytes is None else metadata_bytes
        in_blocks = [t for t in view.all_tensors if block_of(t.name) is not None]
        return cls(
            name=_name(view),
            architecture=view.architecture,
            file_bytes=file_bytes,
            metadata_bytes=metadata_bytes,
            padding_bytes=file_bytes - metadata_bytes - view.tensor_bytes,
            tensor_bytes=view.tensor_bytes,
            n_params=view.n_params,
            parts=parts,
            repeating=Part("repeating layers", "", sum(t.n_elements for t in in_blocks), sum(t.n_bytes for t in in_blocks)),
            token_bytes=_token_bytes(view),
            block_count=view.block_count,
            expert_count=view.expert_count,
            expert_used_count=most(view.expert_used_count),
            origin=origin,
            stated_parameters=parameters,
            never_requested=_never_requested(view, transfer),
            claims=claims_of(view, kept=_render.kept(view, origin)),
            licence=tuple((k, str(v)) for k, v in view.metadata.items() if k.startswith(_LICENCE)),
            forced=origin.forced if origin else tuple(forced),
            notes=(*remarks, *(view.lineage.notes if view.lineage else ())),
            requantized=bool(origin and origin.parent.types and not origin.parent.still_holds(view)),
            transfer=transfer,
        )

    @property
    def source_parameters(self) -> int | None:
        """The denominator of `declared` and `missing`: the stated number, or the parameters of the first model."""
        return self.stated_parameters or (self.origin.source.parameter_count if self.origin else None)

    @property
    def declared(self) -> float | None:
        """Bits of the tensors present, per parameter of the first model."""
        return ratio(8 * self.tensor_bytes, self.source_parameters)

    @property
    def real(self) -> float | None:
        """Bits of the tensors present, per parameter present."""
        return ratio(8 * self.tensor_bytes, self.n_params)

    @property
    def missing(self) -> float | None:
        """The part of the first model's parameters that isn't there; grafted ones aren't the first model's."""
        there = self.n_params - (self.origin.grafted if self.origin else 0)
        kept = ratio(there, self.source_parameters)
        return None if kept is None else 1 - kept

    @property
    def classes(self) -> tuple[Part, ...]:
        """Parameters and bytes by class alone."""
        return tuple(
            _sum(kind, "", (p for p in self.parts if p.tensor_class == kind))
            for kind in dict.fromkeys(p.tensor_class for p in self.parts)
        )

    @property
    def types(self) -> tuple[Part, ...]:
        """Parameters and bytes by type alone, most bytes first."""
        names = dict.fromkeys(p.tensor_type for p in self.parts)
        types = [_sum("", name, (p for p in self.parts if p.tensor_type == name)) for name in names]
        return tuple(sorted(types, key=lambda part: -part.n_bytes))

    def __str__(self) -> str:
        return _render.text(self)

    def table(self) -> list[str]:
        """Return parameters, bytes and bits by class and type as lines of text."""
        return _render.table(self)

    def markdown(self) -> str:
        """Return the receipt as Markdown."""
        return _render.markdown(self)

    def to_json(self) -> str:
        """Return the receipt as JSON, a key on a line: exact integers in bytes, ratios unrounded, null for the unknown."""
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in _render.plain(self).items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self, path: str | PathLike[str]) -> None:
        """Write the receipt as JSON, Markdown or text, as the path's suffix says: ``.json``, ``.md`` or ``.txt``.

        Raises
        ------
        ValueError
            Another suffix.
        """
        path = Path(path)
        forms: dict[str, Callable[[], str]] = {".json": self.to_json, ".md": self.markdown, ".txt": lambda: f"{self}\n"}
        if path.suffix not in forms:
            raise ValueError(f"a receipt is saved as .json, .md or .txt, not as {path.name!r}")
        path.write_text(forms[path.suffix](), encoding="utf-8", errors="backslashreplace")


def ratio(part: float, whole: int | None) -> float | None:
    """Return a ratio, or None where the whole is nothing or isn't known."""
    return part / whole if whole else None


def _opened(target: GGUF | str | PathLike[str]) -> GGUF:
    from ggufslice.view import GGUF  # noqa: PLC0415 - only for the check of a type

    if isinstance(target, GGUF):
        return target
    from ggufslice.io.open import open as open_model  # noqa: PLC0415 - the front door to I/O

    with open_model(target) as model:
        return model


def _name(view: GGUF) -> str:
    refs = source_refs(view)
    return str(view.metadata.get("general.name") or (PurePath(refs[0].display).name if refs else "model without a name"))


def _sum(tensor_class: str, tensor_type: str, parts: Iterable[Part]) -> Part:
    listed = list(parts)
    return Part(tensor_class, tensor_type, sum(p.n_params for p in listed), sum(p.n_bytes for p in listed))


def _parts(tensors: Iterable[Tensor]) -> tuple[Part, ...]:
    params: Counter[tuple[TensorClass, str]] = Counter()
    n_bytes: Counter[tuple[TensorClass, str]] = Counter()
    for tensor in tensors:
        key = (classify(tensor.name), tensor.tensor_type.name)
        params[key] += tensor.n_elements
        n_bytes[key] += tensor.n_bytes
    order = list(TensorClass)
    keys = sorted(params, key=lambda key: (order.index(key[0]), -n_bytes[key], key[1]))
    return tuple(Part(str(key[0]), key[1], params[key], n_bytes[key]) for key in keys)


def _sizes(view: GGUF) -> tuple[int, int]:
    """Return the bytes of the files and of their headers: as opened, or as a write to one file would make them."""
    shards = getattr(view, "shards", ())  # of a model as it was opened
    if shards and all(shard.source.size is not None for shard in shards):
        return sum(shard.source.size for shard in shards), sum(shard.header_bytes for shard in shards)
    records = [r for r in view.metadata.records if not r.key.startswith("split.")]
    rows = [(t.name, t.ne, t.tensor_type, t.n_bytes) for t in view.all_tensors]
    layout = encode(records, rows, version=view.version, byteorder=view.byteorder, alignment=view.alignment)
    infos = sum(24 + len(name.encode("utf-8", "surrogateescape")) + 8 * len(ne) for name, ne, _, _ in rows)
    return layout.n_bytes, 24 + sum(len(r.raw) for r in records) + infos


def _token_bytes(view: GGUF) -> int:
    used, blocks = view.expert_used_count, view.block_count
    mtp = range(blocks - view.nextn_count, blocks)
    tied = "output.weight" not in view

    def read(tensor: Tensor) -> int:
        block = block_of(tensor.name)
        if block in mtp or (is_lookup(tensor.name) and not (tied and tensor.name == "token_embd.weight")):
            return 0
        if classify(tensor.name) is not TensorClass.ROUTED or block is None:
            return tensor.n_bytes
        through = (used[block] if block < len(used) else 0) if isinstance(used, list) else used
        there = tensor.ne[-1] if "exps" in tensor.name and tensor.ne else view.expert_count
        return tensor.n_bytes * min(through, there) // max(there, 1)

    return sum(map(read, view.all_tensors))


def _never_requested(view: GGUF, transfer: Transfer | None) -> int | None:
    """Return the base's tensor bytes that no piece asks for, less those that were read between pieces or behind headers."""
    if view.lineage is None:
        return None
    base = view.base
    ours = set(source_refs(base))
    spans = (p.span if isinstance(p, Remap) else p for t in view.all_tensors for p in t.pieces)
    wanted = sorted((s.source.url, s.start, s.stop) for s in spans if isinstance(s, Span) and s.source in ours)
    covered, url, end = 0, "", 0
    for at, start, stop in wanted:
        if at != url:
            url, end = at, 0
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    headers = sum(shard.header_bytes for shard in getattr(base, "shards", ()))
    more = transfer.gap + max(0, transfer.header - headers) if transfer else 0
    return max(0, base.tensor_bytes - covered - more)
