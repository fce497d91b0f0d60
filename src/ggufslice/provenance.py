"""Provenance: what a cut file says about its origin, as metadata keys under ``ggufslice.``.

llama-quantize copies keys that it doesn't know, so a file keeps them when it is quantized afterwards. They name the first
model, whose figures are the denominators, through cuts of cuts; and the parent, the file that the bytes came from.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from ggufslice.classes import TensorClass, block_of, classify
from ggufslice.spans import Remap, SourceRef, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ggufslice.view import GGUF, Lineage

__all__ = ["PREFIX", "Origin", "Parent", "Source", "stamp"]

PREFIX = "ggufslice."
_T = TypeVar("_T")

# Every key behind the prefix, with its exact type, in the order in which they are written.
_TYPES = {
    "version": "str",
    "source.name": "str",
    "source.url": "str",
    "source.revision": "str",
    "source.parameter_count": "u64",
    "source.tensor_bytes": "u64",
    "source.block_count": "u32",
    "source.expert_count": "u32",
    "source.expert_used_count": "u32",
    "parent.url": "str",
    "parent.validators": "str",
    "parent.types": "arr[u32]",
    "kept.layers": "arr[u32]",
    "kept.experts": "arr[u32]",
    "grafted": "u64",
    "fragment": "bool",
    "forced": "arr[str]",
    "recipe": "str",
}


@attrs.frozen(kw_only=True)
class Source:
    """The first model: its figures are what a cut is measured by. What isn't known is None.

    Parameters
    ----------
    name
        ``general.name``, or the name of its file.
    url
        Where it was, without credentials and query; a local file's name without its folder.
    revision
        The commit, where the place has commits.
    parameter_count
        Parameters of all shards.
    tensor_bytes
        Bytes of its tensors, without padding.
    block_count, expert_count, expert_used_count
        Blocks, routed experts of a layer, experts that a token goes through (the most, where layers differ).
    """

    name: str | None = None
    url: str | None = None
    revision: str | None = None
    parameter_count: int | None = None
    tensor_bytes: int | None = None
    block_count: int | None = None
    expert_count: int | None = None
    expert_used_count: int | None = None

    @classmethod
    def of(cls, view: GGUF) -> Source:
        """Return the figures of the first model behind a view: those that its keys state, or else those of its base."""
        stated = _stated(view.base)
        if stated is not None:
            return stated.source
        base = view.base
        refs = source_refs(base)
        return cls(
            name=str(base.metadata.get("general.name") or (PurePath(refs[0].display).stem if refs else "")) or None,
            url=_address(refs[0]) if refs else None,
            revision=dict(refs[0].validators).get("commit") if refs else None,
            parameter_count=base.n_params,
            tensor_bytes=base.tensor_bytes,
            block_count=base.block_count,
            expert_count=base.expert_count,
            expert_used_count=most(base.expert_used_count),
        )


@attrs.frozen(kw_only=True)
class Parent:
    """The file whose bytes a cut holds.

    Parameters
    ----------
    url
        The address of its first shard, without credentials and query; a local file's name without its folder.
    validators
        For each shard its file name, its size in bytes, and what else identifies its content.
    types
        Ids of the tensor types of the cut, in the order of the sorted tensor names. A later quantization changes them, and
        then the bytes are no longer the parent's.
    """

    url: str | None = None
    validators: tuple[Mapping[str, Any], ...] = ()
    types: tuple[int, ...] | None = None

    def still_holds(self, view: GGUF) -> bool:
        """Whether the tensors of `view` have the types that were written; the order of the tensors doesn't matter."""
        return self.types == types_of(view)


@attrs.frozen(kw_only=True)
class Origin:
    """Where a cut comes from and what was kept of it. What isn't known is None.

    Parameters
    ----------
    source
        The first model.
    parent
        The file that the bytes came from.
    kept_layers
        For each block its number in the first model.
    kept_experts
        The ids of the kept experts in the first model, for one MoE layer after another.
    grafted
        Parameters that aren't the first model's.
    fragment
        Whether tensors were dropped by name, so that the file isn't meant to load.
    forced
        Refusals that were overridden.
    recipe
        What was done to the first model: a mapping for each of our operations, ``"custom:<name>"`` for a foreign one.
    version
        The version of ggufslice that wrote it.
    """

    source: Source = Source()
    parent: Parent = Parent()
    kept_layers: tuple[int, ...] | None = None
    kept_experts: tuple[int, ...] | None = None
    grafted: int = 0
    fragment: bool = False
    forced: tuple[str, ...] = ()
    recipe: tuple[Any, ...] = ()
    version: str | None = None

    @classmethod
    def of(cls, view: GGUF) -> Origin | None:
        """Return a view's origin: derived where operations were applied, else as its keys state it.

        Keys are read leniently: one that is missing or of another type counts as not known. None for a view that is no cut.
        """
        return _stated(view) if view.lineage is None else _derived(view)

    @property
    def reproducible(self) -> bool:
        """Whether the recipe has operations of ours alone, so that it can be run again from the first model."""
        return bool(self.recipe) and not any(isinstance(op, str) for op in self.recipe)

    def values(self) -> dict[str, Any]:
        """Return the metadata keys that state this origin, prefix included, with their values."""
        source, parent = self.source, self.parent
        values: dict[str, Any] = {
            "version": self.version,
            **{f"source.{field.name}": getattr(source, field.name) for field in attrs.fields(Source)},
            "parent.url": parent.url,
            "parent.validators": json.dumps([dict(v) for v in parent.validators]) if parent.validators else None,
            "parent.types": parent.types,
            "kept.layers": self.kept_layers,
            "kept.experts": self.kept_experts or None,
            "grafted": self.grafted or None,
            "fragment": self.fragment or None,
            "forced": self.forced or None,
            "recipe": json.dumps(self.recipe, separators=(",", ":")),
        }
        return {PREFIX + key: values[key] for key in _TYPES if values[key] is not None}


def stamp(view: GGUF, *, forced: Iterable[str] = ()) -> GGUF:
    """Return the view with the keys that state its origin.

    Parameters
    ----------
    view
        The view to be written. One without operations is returned as it is: a plain copy gets no key.
    forced
        Refusals that were overridden.
    """
    origin = Origin.of(view)
    if view.lineage is None or origin is None:
        return view
    values = attrs.evolve(origin, forced=_union(origin.forced, forced)).values()
    gone = [PREFIX + key for key in _TYPES if PREFIX + key not in values]
    metadata = view.metadata.remove(gone).set(values, types={PREFIX + key: type_ for key, type_ in _TYPES.items()})
    return view.evolve(metadata=metadata)


def source_refs(view: GGUF) -> tuple[SourceRef, ...]:
    """Return the files that a view's tensors come from, in order; of a model as it was opened, all its shards."""
    refs = dict.fromkeys(shard.source for shard in getattr(view, "shards", ()))
    last = None
    for piece in () if refs else chain.from_iterable(tensor.pieces for tensor in view.all_tensors):
        span = piece.span if isinstance(piece, Remap) else piece
        if isinstance(span, Span) and span.source is not last:
            last = span.source
            refs[last] = None
    return tuple(refs)


def types_of(view: GGUF) -> tuple[int, ...]:
    """Return the ids of the tensor types, in the order of the sorted tensor names."""
    return tuple(int(view[name].tensor_type) for name in sorted(view))


def most(value: int | list[int]) -> int:
    """Return a value, or the largest where it is given layer by layer."""
    return max(value, default=0) if isinstance(value, list) else value


def _stated(view: GGUF) -> Origin | None:
    if not any(PREFIX + key in view.metadata for key in _TYPES):
        return None

    def read(key: str, kind: type[_T]) -> _T | None:
        value = view.metadata.get(PREFIX + key)
        return value if isinstance(value, kind) and isinstance(value, bool) == (kind is bool) else None

    def numbers(key: str) -> tuple[int, ...] | None:
        value = read(key, list)
        return tuple(value) if value is not None and all(type(v) is int for v in value) else None

    def parsed(key: str) -> list[Any]:
        try:
            value = json.loads(read(key, str) or "[]")
        except ValueError:
            return []
        return value if isinstance(value, list) else []

    return Origin(
        source=Source(
            name=read("source.name", str),
            url=read("source.url", str),
            revision=read("source.revision", str),
            parameter_count=read("source.parameter_count", int),
            tensor_bytes=read("source.tensor_bytes", int),
            block_count=read("source.block_count", int),
            expert_count=read("source.expert_count", int),
            expert_used_count=read("source.expert_used_count", int),
        ),
        parent=Parent(
            url=read("parent.url", str),
            validators=tuple(v for v in parsed("parent.validators") if isinstance(v, dict)),
            types=numbers("parent.types"),
        ),
        kept_layers=numbers("kept.layers"),
        kept_experts=numbers("kept.experts"),
        grafted=read("grafted", int) or 0,
        fragment=read("fragment", bool) or False,
        forced=tuple(map(str, read("forced", list) or ())),
        recipe=tuple(parsed("recipe")),
        version=read("version", str),
    )


def _derived(view: GGUF) -> Origin:
    """Put the base's origin and what was done to the base together."""
    from ggufslice import __version__  # noqa: PLC0415 - the package may still be importing this module

    line = view.lineage
    assert line is not None  # noqa: S101 - for the type checker
    base = line.base
    before = _stated(base)
    refs = source_refs(base)
    first = before.kept_layers if before else tuple(range(base.block_count))
    recipe = list(before.recipe) if before else []
    if before and before.parent.types is not None and not before.parent.still_holds(base):
        recipe.append("custom:requantized")  # what another program did between two cuts
    grafted = (before.grafted if before else 0) + sum(view[name].n_elements for name in line.grafted if name in view)
    return Origin(
        source=Source.of(view),
        parent=Parent(
            url=_address(refs[0]) if refs else None, validators=tuple(map(_validators, refs)), types=types_of(view)
        ),
        kept_layers=_pick(first, line.blocks),
        kept_experts=_kept_experts(line, before, _moe_blocks(view)),
        grafted=min(grafted, view.n_params),
        fragment=line.fragment or (before is not None and before.fragment),
        forced=_union(before.forced if before else (), map(str, view.metadata.get(PREFIX + "forced", ()))),
        recipe=(*recipe, *map(json.loads, line.ops)),
        version=__version__,
    )


def _kept_experts(line: Lineage, before: Origin | None, moe_blocks: Iterable[int]) -> tuple[int, ...] | None:
    """Return the first model's ids of the kept experts, MoE layer after MoE layer, or None where they can't be told."""
    count = line.base.expert_count
    of_base = _moe_blocks(line.base)
    first = before.kept_experts if before else tuple(range(count)) * len(of_base)
    if first is None or len(first) != count * len(of_base):
        return None
    starts = {block: i * count for i, block in enumerate(of_base)}
    kept: list[int] = []
    for block in _pick(line.blocks, moe_blocks) or ():
        if block not in starts:
            return None
        kept.extend(first[starts[block] + i] for i in line.experts.get(block, range(count)))
    return tuple(kept)


def _pick(values: tuple[int, ...] | None, indices: Iterable[int]) -> tuple[int, ...] | None:
    """Return the values at these indices, or None where one isn't there."""
    wanted = tuple(indices)
    if values is None or max(wanted, default=-1) >= len(values):
        return None
    return tuple(values[i] for i in wanted)


def _moe_blocks(view: GGUF) -> list[int]:
    """Return the blocks that have routed experts, in order."""
    return sorted({b for name in view if classify(name) is TensorClass.ROUTED and (b := block_of(name)) is not None})


def _address(ref: SourceRef) -> str:
    """Return where a file is, fit to be written into another: no secrets, no folders of this machine."""
    return ref.display if "://" in ref.url and not ref.url.startswith("file:") else PurePath(ref.url).name


def _validators(ref: SourceRef) -> dict[str, Any]:
    size = {} if ref.size is None else {"size": ref.size}
    # A local file's time of change says nothing elsewhere, and would make the same cut another file.
    told = {name: value for name, value in ref.validators if name != "mtime_ns"}
    return {"file": PurePath(ref.display).name, **size, **told}


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
