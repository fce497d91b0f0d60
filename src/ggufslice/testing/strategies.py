"""Hypothesis strategies for whole GGUF files: each draw has the bytes and the description that they were packed from.

Needs the extra ``testing``.

>>> from hypothesis import given
>>> @given(files())
... def test_reads_back(file):
...     assert my_reader(file.data).names == [tensor.name for tensor in file.tensors]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.errors import MissingExtraError
from ggufslice.testing._build import build_gguf, split_gguf
from ggufslice.testing._data import BLOCKS, ByteOrder
from ggufslice.testing._models import synthetic
from ggufslice.testing._specs import VALUE_TYPES, TensorSpec, Typed

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise MissingExtraError.of("testing", "hypothesis") from error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["DrawnFile", "DrawnShards", "expert_models", "files", "metadata", "shard_sets", "tensors", "values"]

_RANGES = {
    "u8": (0, 2**8 - 1), "i8": (-(2**7), 2**7 - 1), "u16": (0, 2**16 - 1), "i16": (-(2**15), 2**15 - 1),
    "u32": (0, 2**32 - 1), "i32": (-(2**31), 2**31 - 1), "u64": (0, 2**64 - 1), "i64": (-(2**63), 2**63 - 1),
}  # fmt: skip

# A few of each kind: plain numbers, one scale a block, long blocks, and one that released gguf-py doesn't know.
_TYPES = (0, 1, 2, 8, 14, 24, 26, 30, 42)
_MAX_NAME = 63  # ggml's limit, in bytes
_MAX_DIMS = 4


@attrs.frozen
class DrawnFile:
    """A file, and what it was packed from.

    Attributes
    ----------
    data
        The file's bytes.
    metadata
        Keys and values in file order, ``general.alignment`` too where the file has it. Keys are text; strings in values
        may be bytes.
    tensors
        The tensors in file order.
    version, byteorder, alignment, pad_last, gap
        As given to `build_gguf`.
    """

    data: bytes = attrs.field(repr=False)
    metadata: Mapping[str, Typed]
    tensors: tuple[TensorSpec, ...]
    version: int
    byteorder: ByteOrder
    alignment: int
    pad_last: bool
    gap: int

    @property
    def canonical(self) -> bool:
        """Whether only alignment is between the tensors and behind the last: such a file is copied byte for byte."""
        return self.pad_last and self.gap == 0


@attrs.frozen
class DrawnShards:
    """A model in one or several shards, and what it was packed from.

    Attributes
    ----------
    shards
        Each file's bytes, in order. One that isn't split has no ``split.*`` keys.
    metadata
        The first shard's keys and values, those of the split excluded.
    tensors
        All tensors, in order.
    no_tensor_first
        Whether the first shard has metadata only.
    """

    shards: tuple[bytes, ...] = attrs.field(repr=False)
    metadata: Mapping[str, Any]
    tensors: tuple[TensorSpec, ...]
    no_tensor_first: bool = False

    def named(self, stem: str = "model") -> dict[str, bytes | Path]:
        """Name the shards as files, ready for a `RangeServer`; one that isn't split is ``STEM.gguf``."""
        if len(self.shards) == 1:
            return {f"{stem}.gguf": self.shards[0]}
        count = len(self.shards)
        return {f"{stem}-{number:05d}-of-{count:05d}.gguf": shard for number, shard in enumerate(self.shards, 1)}


def values(*, depth: int = 2) -> st.SearchStrategy[Typed]:
    """Draw metadata values of every type: scalars, empty, full and nested arrays, and strings that aren't UTF-8.

    Parameters
    ----------
    depth
        How deep arrays may be nested; 0 draws scalars only. llama.cpp refuses arrays in arrays.
    """
    scalars = st.sampled_from([kind for kind in VALUE_TYPES if kind != "arr"])
    return st.one_of(scalars.flatmap(lambda kind: _scalar(kind).map(lambda value: Typed(value, kind))), *_arrays(depth))


def _arrays(depth: int) -> list[st.SearchStrategy[Typed]]:
    if depth <= 0:
        return []
    scalars = [kind for kind in VALUE_TYPES if kind != "arr"]
    flat = st.sampled_from(scalars).flatmap(
        lambda kind: st.lists(_scalar(kind), max_size=5).map(lambda items: Typed(items, "arr", kind))
    )
    inner = _arrays(depth - 1)
    if not inner:
        return [flat]
    return [flat, st.lists(st.one_of(*inner), max_size=3).map(lambda items: Typed(items, "arr", "arr"))]


def _scalar(kind: str) -> st.SearchStrategy[Any]:
    if kind in _RANGES:
        return st.integers(*_RANGES[kind])
    if kind in {"f32", "f64"}:
        return st.floats(width=32 if kind == "f32" else 64, allow_nan=False)
    if kind == "bool":
        return st.booleans()
    return st.one_of(st.text(max_size=12), st.binary(max_size=6))


def metadata(*, depth: int = 2) -> st.SearchStrategy[dict[str, Typed]]:
    """Draw metadata: up to eight keys with `values`; never ``general.alignment`` or keys of a split, which have a meaning.

    Parameters
    ----------
    depth
        As in `values`.
    """
    keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
        lambda key: key != "general.alignment" and not key.startswith(("split.", "ggufslice."))
    )
    return st.dictionaries(keys, values(depth=depth), max_size=8)


@st.composite
def tensors(draw: st.DrawFn, *, min_size: int = 0, max_size: int = 5) -> tuple[TensorSpec, ...]:
    """Draw tensors of several types and of up to four dimensions, with distinct names.

    Parameters
    ----------
    draw
        Given by hypothesis.
    min_size, max_size
        How many tensors.
    """
    letters = st.characters(codec="ascii", exclude_categories=["C"])
    names = st.text(letters, min_size=1, max_size=_MAX_NAME)
    drawn = draw(st.lists(names, unique=True, min_size=min_size, max_size=max_size))
    specs = []
    for name in drawn:
        kind = draw(st.sampled_from(_TYPES))
        row = BLOCKS[kind][0] * draw(st.integers(1, 3))
        outer = draw(st.lists(st.integers(1, 4), max_size=_MAX_DIMS - 1))
        specs.append(TensorSpec(name, (row, *outer), kind, seed=draw(st.integers(0, 3))))
    return tuple(specs)


@st.composite
def files(
    draw: st.DrawFn, *, canonical: bool | None = None, byteorder: ByteOrder | None = None, depth: int = 2
) -> DrawnFile:
    """Draw a single file: any metadata and tensors, versions 2 and 3, both byte orders, any alignment.

    Parameters
    ----------
    draw
        Given by hypothesis.
    canonical
        True draws canonical files only, False others only (with gaps, or without padding behind the last tensor).
    byteorder
        One byte order only.
    depth
        As in `values`.
    """
    pairs = draw(metadata(depth=depth))
    specs = draw(tensors(min_size=1 if canonical is False else 0))
    order: ByteOrder = byteorder if byteorder is not None else draw(st.sampled_from(("little", "big")))
    version = draw(st.sampled_from((2, 3))) if order == "little" else 3  # big-endian files came with version 3
    stated = draw(st.sampled_from((None, None, 8, 16, 32, 64, 256)))
    if stated is not None:
        pairs["general.alignment"] = Typed(stated, "u32")
    alignment = stated or 32
    odd = canonical is False or (canonical is None and draw(st.booleans()))
    gap = draw(st.sampled_from((0, 1, alignment, 3 * alignment + 1))) if odd and len(specs) > 1 else 0
    pad_last = not odd or (gap > 0 and draw(st.booleans()))
    data = build_gguf(pairs, specs, version=version, byteorder=order, pad_last=pad_last, gap=gap)
    return DrawnFile(data, pairs, specs, version, order, alignment, pad_last, gap)


@st.composite
def shard_sets(draw: st.DrawFn, *, max_shards: int = 4, depth: int = 2) -> DrawnShards:
    """Draw a model in one to `max_shards` shards; sometimes the first one has no tensors.

    Parameters
    ----------
    draw
        Given by hypothesis.
    max_shards
        At most so many.
    depth
        As in `values`.
    """
    pairs = draw(metadata(depth=depth))
    specs = draw(tensors(min_size=max_shards, max_size=max_shards + 3))
    return _split(draw, pairs, specs, max_shards)


def _split(draw: st.DrawFn, pairs: Mapping[str, Any], specs: tuple[TensorSpec, ...], max_shards: int) -> DrawnShards:
    count = draw(st.integers(1, max_shards))
    if count == 1:
        return DrawnShards((build_gguf(pairs, specs),), pairs, specs)
    no_tensor_first = draw(st.booleans())
    return DrawnShards(
        tuple(split_gguf(pairs, specs, count, no_tensor_first=no_tensor_first)), pairs, specs, no_tensor_first
    )


@st.composite
def expert_models(draw: st.DrawFn, *, architecture: str = "qwen3moe", max_shards: int = 3) -> DrawnShards:
    """Draw a small mixture of experts.

    It has 1 to 4 layers of 2 to 8 experts, with or without dense layers before them, shared experts, biases, scales and a
    block for multi-token prediction. Some have as many experts as other dimensions, so that only the axis tells them apart.

    Parameters
    ----------
    draw
        Given by hypothesis.
    architecture
        The name that the model has.
    max_shards
        At most so many.
    """
    layers = draw(st.integers(1, 4))
    experts = draw(st.integers(2, 8))
    pairs, specs = synthetic(
        architecture,
        layers=layers,
        experts=experts,
        used=draw(st.integers(1, experts)),
        width=draw(st.sampled_from((experts, 32))),
        expert_ffn=draw(st.sampled_from((experts, 32, 64))),
        ffn=32,
        vocab=16,
        dense_lead=draw(st.integers(0, layers - 1)),
        shared=draw(st.integers(0, 2)),
        mtp=draw(st.integers(0, 1)),
        tensor_type=draw(st.sampled_from((0, 1, 8))),
        expert_type=draw(st.sampled_from((0, 2, 8))),
        seed=draw(st.integers(0, 3)),
        attention_bias=draw(st.booleans()),
        router_bias=draw(st.booleans()),
        expert_bias=draw(st.booleans()),
        selection_bias=draw(st.booleans()),
        scales=draw(st.booleans()),
    )
    return _split(draw, pairs, tuple(specs), max_shards)
