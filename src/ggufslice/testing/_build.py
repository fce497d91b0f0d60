"""Pack GGUF bytes from a description, with `struct` alone.

Nothing here uses ggufslice's own parser or encoder, so that a test which compares with these bytes has an independent truth.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from ggufslice.testing._data import ByteOrder, random_bytes, size_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

Key: TypeAlias = str | bytes
Metadata: TypeAlias = Mapping[Any, Any] | list[tuple[Any, Any]]
"""Keys (text or bytes) and values; a list of pairs when a key shall come twice."""

VALUE_TYPES: tuple[str, ...] = (
    *("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64"),
)  # fmt: skip
"""Names of the GGUF value types; the position is the type's number in a file."""

_CODES = dict(zip(VALUE_TYPES, "BbHhIif?--Qqd", strict=True))
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_GAP_BYTE = b"\xaa"


@attrs.frozen
class Typed:
    """A metadata value with its GGUF type.

    Parameters
    ----------
    value
        A number, a bool, text (or bytes, which needn't be UTF-8), or a list of such.
    type
        One of `VALUE_TYPES`: ``u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str arr``.
    element_type
        The type of an array's elements. The elements of an array of arrays are `Typed` arrays.

    Examples
    --------
    >>> Typed(3, "u16")
    Typed(value=3, type='u16', element_type=None)
    >>> nested = Typed([Typed([1, 2], "arr", "u8"), Typed([], "arr", "str")], "arr", "arr")
    """

    value: Any
    type: str = attrs.field(validator=attrs.validators.in_(VALUE_TYPES))
    element_type: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.in_(VALUE_TYPES))
    )

    def __attrs_post_init__(self) -> None:
        """Arrays have an element type and nothing else does."""
        if (self.type == "arr") != (self.element_type is not None):
            raise ValueError(f"element_type is for arrays: type {self.type!r} with {self.element_type!r}")

    @classmethod
    def guess(cls, value: object) -> Typed:
        """Give a plain Python value the type that it has in most files.

        Text is ``str``, a bool ``bool``, an int ``u32`` (``i32`` when negative), a float ``f32``, and a list an array of what its
        first element is (``i32`` when an int in it is negative).

        Raises
        ------
        TypeError
            There is no such type, or the list is empty: say `Typed` for what you mean.
        """
        match value:
            case Typed():
                return value
            case bool():
                return cls(value, "bool")
            case int():
                return cls(value, "i32" if value < 0 else "u32")
            case float():
                return cls(value, "f32")
            case str() | bytes():
                return cls(value, "str")
            case [_, *_]:
                types = {cls.guess(item).type for item in value}
                kind = "i32" if types == {"i32", "u32"} else types.pop()
                items = [cls.guess(item) for item in value] if kind == "arr" else list(value)
                return cls(items, "arr", kind)
        raise TypeError(f"{value!r} has no GGUF type of its own: use Typed(value, type)")


@attrs.frozen
class TensorSpec:
    """A tensor of a file to be packed.

    Parameters
    ----------
    name
        The tensor's name; bytes when it isn't UTF-8.
    ne
        The dimensions in GGUF's own order, fastest first (the reverse of a numpy shape).
    type
        The ggml type id, or a ``gguf.GGMLQuantizationType``.
    data
        The exact bytes. None generates them: pseudo-random ones that depend on `seed` and `name` alone and dequantize to finite numbers
        (around 1 for a norm, around 0 otherwise). A type that isn't known here needs explicit data.
    fill
        ``"zeros"`` generates zero bytes.
    seed
        Another seed, other bytes.
    offset
        Where the header says the tensor starts, in bytes from the start of the data section, for files that no writer would make.
        None is behind the tensor before it.
    """

    name: Key
    ne: tuple[int, ...] = attrs.field(converter=tuple[int, ...])
    type: int = attrs.field(default=0, converter=int)
    data: bytes | None = attrs.field(default=None, repr=False, kw_only=True)
    fill: Literal["random", "zeros"] = attrs.field(default="random", kw_only=True)
    seed: int = attrs.field(default=0, kw_only=True)
    offset: int | None = attrs.field(default=None, kw_only=True)

    @property
    def n_bytes(self) -> int:
        """The size of the data, without padding.

        Raises
        ------
        ValueError
            The type is unknown, or rows aren't whole blocks, and there is no explicit data.
        """
        return size_of(self.type, self.ne) if self.data is None else len(self.data)

    def tobytes(self, byteorder: ByteOrder = "little") -> bytes:
        """The data as it stands in a file of this byte order; explicit data is never changed."""
        if self.data is not None:
            return self.data
        if self.fill == "zeros":
            return bytes(self.n_bytes)
        around = 1.0 if b"norm" in _encoded(self.name) else 0.0
        return random_bytes(self.type, self.n_bytes, (self.seed, self.name), around=around, byteorder=byteorder)


@attrs.frozen
class _Packer:
    """Numbers and strings of one GGUF version and byte order."""

    version: int
    byteorder: ByteOrder

    def number(self, code: str, value: object) -> bytes:
        """One number; `code` is a letter of `struct`."""
        return struct.pack((">" if self.byteorder == "big" else "<") + code, value)

    def length(self, value: int) -> bytes:
        """A count, a length or a dimension: 32 bits in version 1, 64 since."""
        return self.number("I" if self.version == 1 else "Q", value)

    def string(self, value: Key) -> bytes:
        """A length and the bytes."""
        data = _encoded(value)
        return self.length(len(data)) + data

    def value(self, typed: Typed) -> bytes:
        """A value without its type."""
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
        """Everything before the data section, unpadded."""
        parts = [b"GGUF", self.number("I", self.version), self.length(len(tensors)), self.length(len(pairs))]
        for key, value in pairs:
            typed = Typed.guess(value)
            parts += [self.string(key), self.number("I", VALUE_TYPES.index(typed.type)), self.value(typed)]
        for tensor, offset in zip(tensors, offsets, strict=True):
            parts += [self.string(tensor.name), self.number("I", len(tensor.ne))]
            parts += [self.length(dim) for dim in tensor.ne]
            parts += [self.number("I", tensor.type), self.number("Q", offset)]
        return b"".join(parts)


def build_gguf(  # noqa: PLR0913 - each keyword is one way in which files differ
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

    The defaults give a canonical file: tensors in table order, without gaps, aligned, the last one padded, nothing behind it.

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
        Bytes that tensors are aligned to. None is what the metadata's ``general.alignment`` says, or 32. A number is added to the
        metadata as that key unless it is 32 or the key is there; a key that says otherwise makes an inconsistent file.
    pad_last
        False ends the file with the last tensor's last byte.
    gap
        Bytes of rubbish before each tensor but the first; padding is added to them.

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
        if start > end:
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


def split_gguf(  # noqa: PLR0913 - as build_gguf, of which it is the sharded form
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


def write_shards(  # noqa: PLR0913 - split_gguf plus where and how to write
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


def _plan(  # noqa: PLR0913 - the arguments of build_gguf
    metadata: Metadata,
    specs: Sequence[TensorSpec],
    version: int,
    byteorder: ByteOrder,
    alignment: int | None,
    *,
    pad_last: bool,
    gap: int,
) -> tuple[bytes, list[int], int, int]:
    """The padded header, each tensor's offset, the size of the file, and the alignment."""
    pairs = _pairs(metadata)
    if alignment is None:
        stated = [Typed.guess(value).value for key, value in pairs if _encoded(key) == _ALIGNMENT_KEY.encode()]
        alignment = int(stated[0]) if stated else _DEFAULT_ALIGNMENT
    elif alignment != _DEFAULT_ALIGNMENT and all(_encoded(key) != _ALIGNMENT_KEY.encode() for key, _ in pairs):
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
    """The metadata and tensors of each shard."""
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
    for number, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
        keys = [
            ("split.no", Typed(number, "u16")),
            ("split.tensors.count", Typed(len(specs), "i32")),
            ("split.count", Typed(n_shards, "u16")),
        ]
        yield [*(_pairs(metadata) if number == 0 else []), *keys], specs[start:stop]


def _pairs(metadata: Metadata) -> list[tuple[Any, Any]]:
    return list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)


def _encoded(value: Key) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _up(value: int, alignment: int) -> int:
    """The next multiple."""
    return value + -value % alignment
