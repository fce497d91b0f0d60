"""Pack GGUF bytes from a description, with `struct` alone.

Nothing here uses ggufslice's own parser or encoder, so that a test which compares with these bytes has an independent truth.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.testing._specs import VALUE_TYPES, Key, Metadata, TensorSpec, Typed, encoded

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from ggufslice.testing._data import ByteOrder

_CODES = dict(zip(VALUE_TYPES, "BbHhIif?--Qqd", strict=True))
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_GAP_BYTE = b"\xaa"


@attrs.frozen
class _Packer:
    """Numbers and strings of one GGUF version and byte order."""

    version: int
    byteorder: ByteOrder

    def number(self, code: str, value: object) -> bytes:
        """Pack a number; `code` is a letter of `struct`."""
        return struct.pack((">" if self.byteorder == "big" else "<") + code, value)

    def length(self, value: int) -> bytes:
        """Pack a count, a length or a dimension: 32 bits in version 1, 64 since."""
        return self.number("I" if self.version == 1 else "Q", value)

    def string(self, value: Key) -> bytes:
        """Pack a length and the bytes."""
        data = encoded(value)
        return self.length(len(data)) + data

    def value(self, typed: Typed) -> bytes:
        """Pack a value without its type."""
        if typed.type == "str":
            return self.string(typed.value)
        if typed.type != "arr":
            return self.number(_CODES[typed.type], typed.value)
        kind = str(typed.element_type)
        head = self.number("I", VALUE_TYPES.index(kind)) + self.length(len(typed.value))
        if kind == "str":
            return head + b"".join(map(self.string, typed.value))
        if kind == "arr":
            return head + b"".join(self.value(Typed.guess(item)) for item in typed.value)
        order = ">" if self.byteorder == "big" else "<"
        return head + struct.pack(f"{order}{len(typed.value)}{_CODES[kind]}", *typed.value)

    def header(self, pairs: Sequence[tuple[Key, Any]], tensors: Sequence[TensorSpec], offsets: Sequence[int]) -> bytes:
        """Pack everything before the data section, unpadded."""
        parts = [b"GGUF", self.number("I", self.version), self.length(len(tensors)), self.length(len(pairs))]
        for key, value in pairs:
            typed = Typed.guess(value)
            parts += [self.string(key), self.number("I", VALUE_TYPES.index(typed.type)), self.value(typed)]
        for tensor, offset in zip(tensors, offsets, strict=True):
            parts += [self.string(tensor.name), self.number("I", len(tensor.ne))]
            parts += [self.length(dim) for dim in tensor.ne]
            parts += [self.number("I", tensor.type), self.number("Q", offset)]
        return b"".join(parts)


def build_gguf(
    metadata: Metadata,
    tensors: Iterable[TensorSpec] = (),
    *,
    version: int = 3,
    byteorder: ByteOrder = "little",
    alignment: int | None = None,
    pad_last: bool = True,
    gap: int = 0,
) -> bytes:
    """Pack one GGUF file.

    The defaults give a canonical file: tensors in table order, without gaps, aligned, the last one padded,
    nothing behind it.

    Parameters
    ----------
    metadata
        Keys and values, in file order; plain values get the type of `Typed.guess`. A list of pairs may name a key twice.
    tensors
        The tensors, in file order.
    version
        1 (32-bit lengths), 2 or 3.
    byteorder
        Of every number, the tensors' generated data included.
    alignment
        Bytes that tensors are aligned to. None is what the metadata's ``general.alignment`` says, or 32. A number
        is added to the metadata as that key unless it is 32 or the key is there; a key that says otherwise makes
        an inconsistent file.
    pad_last
        False ends the file with the last tensor's last byte.
    gap
        At least so many bytes of rubbish before each tensor but the first.

    Returns
    -------
    bytes
        The file.

    Examples
    --------
    >>> file = build_gguf({"general.architecture": "llama"}, [TensorSpec("a.weight", (4, 2))])
    >>> file[:4], len(file)
    (b'GGUF', 160)
    """
    specs = list(tensors)
    head, offsets, size, aligned = _plan(metadata, specs, version, byteorder, alignment, pad_last=pad_last, gap=gap)
    file = bytearray(size)
    file[: len(head)] = head
    end = len(head)
    for spec, offset in zip(specs, offsets, strict=True):
        start = len(head) + offset
        if gap and start > end:
            file[end:start] = _GAP_BYTE * (start - end)
        file[start : start + spec.n_bytes] = spec.tobytes(byteorder)
        end = len(head) + _up(offset + spec.n_bytes, aligned)
    return bytes(file)


def write_sparse(path: str | os.PathLike[str], metadata: Metadata, tensors: Iterable[TensorSpec] = ()) -> Path:
    """Write a canonical file whose tensors are holes: zeros that take no space on a disk that knows sparse files.

    The tensors' data isn't even generated, so a file of 42 GB is made in the time of its header.

    Parameters
    ----------
    path
        The file to write; an existing one is replaced.
    metadata, tensors
        As in `build_gguf`.

    Returns
    -------
    pathlib.Path
        The path.
    """
    head, _, size, _ = _plan(metadata, list(tensors), 3, "little", None, pad_last=True, gap=0)
    target = Path(path)
    with target.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return target


def split_gguf(
    metadata: Metadata,
    tensors: Iterable[TensorSpec],
    n_shards: int,
    *,
    no_tensor_first: bool = False,
    version: int = 3,
    byteorder: ByteOrder = "little",
) -> list[bytes]:
    """Pack a sharded model as llama-gguf-split does.

    All metadata is in the first shard; each has ``split.no`` (u16, from 0), ``split.tensors.count`` (i32, of all shards) and
    ``split.count`` (u16). The tensors go to shards of about equal size, in order, at least one to each.

    Parameters
    ----------
    metadata, tensors, version, byteorder
        As in `build_gguf`.
    n_shards
        How many files.
    no_tensor_first
        The first shard has the metadata only.

    Raises
    ------
    ValueError
        There are fewer tensors than shards to fill.
    """
    parts = _split(metadata, list(tensors), n_shards, no_tensor_first=no_tensor_first)
    return [build_gguf(pairs, part, version=version, byteorder=byteorder) for pairs, part in parts]


def write_shards(
    folder: str | os.PathLike[str],
    stem: str,
    metadata: Metadata,
    tensors: Iterable[TensorSpec],
    n_shards: int,
    *,
    no_tensor_first: bool = False,
    sparse: bool = False,
) -> list[Path]:
    """Write a sharded model as ``STEM-00001-of-00003.gguf`` and so on, one shard in memory at a time.

    Parameters
    ----------
    folder
        An existing folder.
    stem
        What the files' names start with.
    metadata, tensors, n_shards, no_tensor_first
        As in `split_gguf`.
    sparse
        Tensors are holes, as `write_sparse` makes them.

    Returns
    -------
    list of pathlib.Path
        The shards, in order.
    """
    paths = []
    parts = _split(metadata, list(tensors), n_shards, no_tensor_first=no_tensor_first)
    for number, (pairs, part) in enumerate(parts, 1):
        path = Path(folder) / f"{stem}-{number:05d}-of-{n_shards:05d}.gguf"
        if sparse:
            write_sparse(path, pairs, part)
        else:
            path.write_bytes(build_gguf(pairs, part))
        paths.append(path)
    return paths


def _plan(
    metadata: Metadata,
    specs: Sequence[TensorSpec],
    version: int,
    byteorder: ByteOrder,
    alignment: int | None,
    *,
    pad_last: bool,
    gap: int,
) -> tuple[bytes, list[int], int, int]:
    """Lay the file out: the padded header, each tensor's offset, the size of the file, and the alignment."""
    pairs = _pairs(metadata)
    if alignment is None:
        stated = [Typed.guess(value).value for key, value in pairs if encoded(key) == _ALIGNMENT_KEY.encode()]
        alignment = int(stated[0]) if stated else _DEFAULT_ALIGNMENT
    elif alignment != _DEFAULT_ALIGNMENT and all(encoded(key) != _ALIGNMENT_KEY.encode() for key, _ in pairs):
        pairs = [*pairs, (_ALIGNMENT_KEY, Typed(alignment, "u32"))]
    offsets: list[int] = []
    end = 0
    for spec in specs:
        if spec.offset is None:
            offsets.append(_up(end + gap, alignment) if offsets else 0)
        else:
            offsets.append(spec.offset)
        end = offsets[-1] + spec.n_bytes
    head = _Packer(version, byteorder).header(pairs, specs, offsets)
    if specs or pad_last:
        head += bytes(-len(head) % alignment)
    end = max((offset + spec.n_bytes for spec, offset in zip(specs, offsets, strict=True)), default=0)
    return head, offsets, len(head) + (_up(end, alignment) if pad_last else end), alignment


def _split(
    metadata: Metadata, specs: Sequence[TensorSpec], n_shards: int, *, no_tensor_first: bool
) -> Iterator[tuple[list[tuple[Any, Any]], Sequence[TensorSpec]]]:
    """Yield the metadata and tensors of each shard."""
    filled = n_shards - no_tensor_first
    if n_shards < 1 or filled > len(specs) or (filled < 1 and specs):
        raise ValueError(f"{len(specs)} tensors can't fill {filled} of {n_shards} shards")
    bounds = [0] * (1 + no_tensor_first)
    total, so_far = sum(spec.n_bytes for spec in specs), 0
    for index, spec in enumerate(specs):
        done = len(bounds) - no_tensor_first
        must = filled - done == len(specs) - index  # one tensor is left for each shard that is left
        full = so_far + spec.n_bytes // 2 > total * done // filled if filled else False
        if done < filled and index > bounds[-1] and (must or full):
            bounds.append(index)
        so_far += spec.n_bytes
    bounds.append(len(specs))
    for number, (start, stop) in enumerate(pairwise(bounds)):
        keys = [
            ("split.no", Typed(number, "u16")),
            ("split.tensors.count", Typed(len(specs), "i32")),
            ("split.count", Typed(n_shards, "u16")),
        ]
        yield [*(_pairs(metadata) if number == 0 else []), *keys], specs[start:stop]


def _pairs(metadata: Metadata) -> list[tuple[Any, Any]]:
    return list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)


def _up(value: int, alignment: int) -> int:
    """Round up to a multiple of the alignment."""
    return value + -value % alignment
