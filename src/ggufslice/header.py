"""Header codec: bytes to `Header` and back.

The parser is incremental: it is fed bytes in file order, says how many more it needs at least, and never looks at a byte
twice. Every claim of a header is checked against the file's size and the header budget before it is believed, so a crafted
file costs nothing. Limits are those of llama.cpp b11434 (ggml/src/gguf.cpp:20-21, 494-803) where it has one.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import attrs

from ggufslice.errors import FormatError
from ggufslice.tensor_types import TensorType
from ggufslice.values import ARRAY, SIZES, STRING, Record, encode_string, prefix, quoted, type_name

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

__all__ = ["DEFAULT_ALIGNMENT", "Header", "HeaderParser", "Layout", "TensorInfo", "encode", "pad"]

DEFAULT_ALIGNMENT = 32
DEFAULT_BUDGET = 256 << 20
_MAX_LENGTH = 1 << 30  # of a string or an array
_MAX_DIMS = 4
_MAX_NAME = 63  # bytes of a tensor name that ggml can hold
_MAX_NESTING = 8
# What often comes in place of a model, by its first bytes.
_OTHERS = {b"vers": ": it looks like a Git LFS pointer, fetch the file itself with `git lfs pull`"} | dict.fromkeys(
    (b"<!DO", b"<!do", b"<htm", b"<HTM"), ": it looks like a web page, name the address that the file itself has"
)
_Row = tuple[tuple[int, ...], TensorType, int]  # ne, type, offset
_MIN_RECORD = 8 + 1 + 4 + 1
_MIN_INFO = 8 + 4 + 4 + 8


@attrs.frozen
class TensorInfo:
    """One row of the tensor table.

    Parameters
    ----------
    name
        Tensor name.
    ne
        Elements along each axis, ne order (fastest first).
    tensor_type
        The type's id.
    offset
        First byte, counted from the start of the data section.
    n_bytes
        Bytes stored. For a type that isn't known this is all up to the next tensor.
    """

    name: str
    ne: tuple[int, ...]
    tensor_type: TensorType
    offset: int
    n_bytes: int


@attrs.frozen
class Header:
    """A parsed header.

    Parameters
    ----------
    version
        2 or 3.
    byteorder
        ``"little"`` or ``"big"``.
    alignment
        Of tensor data, in bytes.
    records
        Key-value records, in file order.
    tensors
        Tensor table, in file order.
    n_bytes
        Bytes of the header itself, without the padding behind it.
    """

    version: int
    byteorder: str
    alignment: int
    records: tuple[Record, ...]
    tensors: tuple[TensorInfo, ...]
    n_bytes: int

    @property
    def data_start(self) -> int:
        """Where the data section starts, in bytes from the start of the file."""
        return pad(self.n_bytes, self.alignment)


def pad(n: int, alignment: int) -> int:
    """Round `n` up to a multiple of `alignment`."""
    return -(-n // alignment) * alignment


class HeaderParser:
    """Parse a header from bytes that arrive in file order.

    Parameters
    ----------
    name
        How messages call the file.
    size
        Bytes of the whole file, where known.
    budget
        The most bytes that a header may have.

    Examples
    --------
    >>> parser = HeaderParser("tiny.gguf", size=len(data))   # doctest: +SKIP
    >>> while parser.missing:
    ...     parser.feed(next_bytes(parser.missing))
    >>> parser.header
    """

    def __init__(self, name: str, *, size: int | None = None, budget: int = DEFAULT_BUDGET) -> None:
        self._name = name
        self._size = size
        self._budget = budget
        self._buffer = bytearray()
        self._header: Header | None = None
        self._order = "<"
        self._steps = self._parse()
        self.missing = 0
        self._advance()

    @property
    def received(self) -> int:
        """Bytes fed so far."""
        return len(self._buffer)

    @property
    def header(self) -> Header:
        """The parsed header; only once nothing is `missing`."""
        if self._header is None:
            raise ValueError(f"{self._name}: the header needs {self.missing} more bytes")
        return self._header

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes that follow those fed before; bytes behind the header are ignored.

        Raises
        ------
        FormatError
            These bytes can't be a GGUF header of a file of this size.
        """
        self._buffer += data
        if self.missing:
            self._advance()

    def _advance(self) -> None:
        try:
            self.missing = next(self._steps) - len(self._buffer)
        except StopIteration as done:
            self._header = done.value
            self.missing = 0

    def _fail(self, message: str) -> FormatError:
        return FormatError(f"{self._name}: {message}")

    def _need(self, end: int, what: str) -> Generator[int]:
        """Wait until the buffer reaches `end`, after checking that the file can hold it."""
        if self._size is not None and end > self._size:
            raise self._fail(
                f"{what} would end at byte {end}, but the file has {self._size}: it is truncated or its header is wrong"
            )
        if end > self._budget:
            raise self._fail(
                f"{what} would end at byte {end}, behind the header budget of {self._budget} bytes; if the file is "
                "sound, raise TransferOptions.header_budget"
            )
        while end > len(self._buffer):
            yield end

    def _room(self, at: int, count: int, each: int, what: str) -> None:
        """Refuse a count whose smallest form would not fit, before walking it."""
        end = at + count * each
        limit = self._budget if self._size is None else min(self._size, self._budget)
        if end > max(limit, len(self._buffer)):
            raise self._fail(f"{what} need at least {count * each} bytes from byte {at}, but there can be only {limit}")

    def _unpack(self, fmt: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + fmt, self._buffer, at)

    def _parse(self) -> Generator[int, None, Header]:
        yield from self._magic()
        yield from self._need(24, "the fixed part")
        version = self._version()
        n_tensors, n_records = self._unpack("QQ", 8)
        at = 24
        self._room(at, n_records, _MIN_RECORD, f"{n_records} metadata records")
        self._room(at, n_tensors, _MIN_INFO, f"{n_tensors} tensors")
        records: dict[str, Record] = {}
        starts: dict[str, int] = {}
        for _ in range(n_records):
            start = at
            record, at = yield from self._record(at)
            if record.key in records:
                raise self._fail(
                    f"metadata key {quoted(record.key)} is there twice, at bytes {starts[record.key]} and {start}"
                )
            records[record.key], starts[record.key] = record, start
        alignment = self._alignment(records.get("general.alignment"))
        rows: dict[str, _Row] = {}
        places: dict[str, int] = {}
        for _ in range(n_tensors):
            start = at
            name, row, at = yield from self._row(at)
            if name in rows:
                raise self._fail(f"tensor {quoted(name)} is there twice, at bytes {places[name]} and {start}")
            rows[name], places[name] = row, start
        data_start = pad(at, alignment)
        byteorder = "big" if self._order == ">" else "little"
        return Header(
            version,
            byteorder,
            alignment,
            tuple(records.values()),
            self._sizes(rows, data_start, alignment),
            at,
        )

    def _magic(self) -> Generator[int]:
        if self._size is not None and self._size < 4:
            raise self._fail(f"not a GGUF: it is {'empty' if self._size == 0 else f'only {self._size} bytes long'}")
        yield from self._need(4, "the magic")
        magic = bytes(self._buffer[:4])
        if magic != b"GGUF":
            raise self._fail(f"not a GGUF: it starts with {magic!r}, not with b'GGUF'{_OTHERS.get(magic, '')}")

    def _version(self) -> int:
        version = struct.unpack_from("<I", self._buffer, 4)[0]
        if version & 0xFFFF == 0:
            self._order = ">"
            version = struct.unpack_from(">I", self._buffer, 4)[0]
        if version == 1:
            raise self._fail("GGUF version 1 (with 32-bit lengths) is not supported: convert the model again")
        if version not in (2, 3):
            raise self._fail(f"GGUF version {version} is not known; this reads versions 2 and 3")
        return int(version)

    def _string(self, at: int, what: str) -> Generator[int, None, tuple[str, int]]:
        yield from self._need(at + 8, what)
        (length,) = self._unpack("Q", at)
        if length > _MAX_LENGTH:
            raise self._fail(f"{what} claims {length} bytes, over the limit of {_MAX_LENGTH}")
        end = at + 8 + length
        yield from self._need(end, what)
        return self._buffer[at + 8 : end].decode("utf-8", "surrogateescape"), end

    def _record(self, start: int) -> Generator[int, None, tuple[Record, int]]:
        key, at = yield from self._string(start, "a metadata key")
        if not key:
            raise self._fail(f"the metadata key at byte {start} is empty")
        what = f"metadata key {quoted(key)}"
        yield from self._need(at + 4, what)
        (number,) = self._unpack("I", at)
        type_, at = yield from self._value(number, at + 4, what, 0)
        yield from self._need(at, what)
        byteorder = "big" if self._order == ">" else "little"
        return Record(key, type_, bytes(self._buffer[start:at]), byteorder), at

    def _value(self, number: int, at: int, what: str, depth: int) -> Generator[int, None, tuple[str, int]]:
        """Walk one value behind its type; return the type's name and where the value ends."""
        if number == ARRAY:
            return (yield from self._array(at, what, depth + 1))
        if number == STRING:
            return "str", (yield from self._strings(at, 1, what))
        name = type_name(number)
        if name is None:
            raise self._fail(f"{what} has the value type {number}, which does not exist")
        return name, at + SIZES[number]

    def _array(self, at: int, what: str, depth: int) -> Generator[int, None, tuple[str, int]]:
        if depth > _MAX_NESTING:
            raise self._fail(f"{what} nests arrays more than {_MAX_NESTING} deep")
        yield from self._need(at + 12, what)
        number, count = self._unpack("IQ", at)
        at += 12
        if count > _MAX_LENGTH:
            raise self._fail(f"{what} claims an array of {count} elements, over the limit of {_MAX_LENGTH}")
        if number == ARRAY:
            self._room(at, count, 12, f"the {count} arrays of {what}")
            inner = set()
            for _ in range(count):
                type_, at = yield from self._array(at, what, depth + 1)
                inner.add(type_)
            return f"arr[{inner.pop() if len(inner) == 1 else 'arr'}]", at
        name = type_name(number)
        if name is None:
            raise self._fail(f"{what} has the element type {number}, which does not exist")
        self._room(at, count, SIZES.get(number, 8), f"the {count} elements of {what}")
        end = (yield from self._strings(at, count, what)) if number == STRING else at + count * SIZES[number]
        return f"arr[{name}]", end

    def _strings(self, at: int, count: int, what: str) -> Generator[int, None, int]:
        """Walk `count` strings. The one loop that matters for speed: vocabularies have hundreds of thousands."""
        unpack = struct.Struct(self._order + "Q").unpack_from
        buffer, left = self._buffer, count
        while left:
            try:
                for _ in range(left):
                    at += 8 + unpack(buffer, at)[0]
                    left -= 1
            except (struct.error, OverflowError, IndexError):
                yield from self._need(at + 8, what)
        yield from self._need(at, what)
        return at

    def _alignment(self, record: Record | None) -> int:
        if record is None:
            return DEFAULT_ALIGNMENT
        value = record.value
        if record.type != "u32" or value == 0 or value & (value - 1) or value > _MAX_LENGTH:
            raise self._fail(f"general.alignment is {value!r} ({record.type}), not a u32 power of two up to {_MAX_LENGTH}")
        return int(value)

    def _row(self, start: int) -> Generator[int, None, tuple[str, _Row, int]]:
        name, at = yield from self._string(start, "a tensor name")
        what = f"tensor {quoted(name)}"
        yield from self._need(at + 4, what)
        (n_dims,) = self._unpack("I", at)
        if n_dims > _MAX_DIMS:
            raise self._fail(f"{what} claims {n_dims} dimensions, over the limit of {_MAX_DIMS}")
        at += 4
        end = at + 8 * n_dims + 12
        yield from self._need(end, what)
        ne = self._unpack(f"{n_dims}Q", at)
        if math.prod(max(n, 1) for n in ne) >= 1 << 63:
            raise self._fail(f"{what} has the dimensions {ne}: more than 2^63 elements")
        number, offset = self._unpack("IQ", end - 12)
        type_ = TensorType(number)
        if type_.known and ne and ne[0] % type_.block_size:
            raise self._fail(
                f"{what}: rows of {ne[0]} elements are not whole blocks of {type_.block_size} as {type_.name} needs"
            )
        return name, (ne, type_, offset), end

    def _sizes(self, rows: dict[str, _Row], data_start: int, alignment: int) -> tuple[TensorInfo, ...]:
        """Give each tensor its stored size, and check that none reaches into the next or out of the file."""
        infos = {}
        limit = None if self._size is None else self._size - data_start
        for name, (ne, type_, offset) in sorted(rows.items(), key=lambda row: -row[1][2]):
            size = type_.n_bytes(math.prod(ne))
            if size is None:
                # A type of another fork may put a header before each row: only the neighbours tell its size.
                if limit is None:
                    raise self._fail(
                        f"tensor {quoted(name)} is the last and of the unknown type {int(type_)}, and the file's "
                        "size is not known either: its end can't be told"
                    )
                size = limit - offset
            if offset % alignment:
                raise self._fail(f"tensor {quoted(name)} starts at {offset}, not at a multiple of {alignment}")
            if size < 0 or (limit is not None and offset + size > limit):
                raise self._fail(
                    f"tensor {quoted(name)} takes bytes {offset} to {offset + size} of the data, but the next tensor "
                    f"or the end of the file is at {limit}: the file is truncated or its header is wrong"
                )
            infos[name] = TensorInfo(name, ne, type_, offset, size)
            if size:
                limit = offset
        return tuple(infos[name] for name in rows)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@attrs.frozen
class Layout:
    """Where everything of a file to be written goes.

    Parameters
    ----------
    head
        Header and the padding behind it.
    offsets
        First byte of each tensor, counted from the start of the file.
    n_bytes
        Bytes of the whole file.
    """

    head: bytes = attrs.field(repr=lambda head: f"<{len(head)} bytes>")
    offsets: tuple[int, ...]
    n_bytes: int


def encode(
    records: Sequence[Record],
    tensors: Iterable[tuple[str, tuple[int, ...], TensorType, int]],
    *,
    version: int,
    byteorder: str,
    alignment: int,
) -> Layout:
    """Lay out a canonical file: gapless, aligned, the last tensor padded too.

    Parameters
    ----------
    records
        Key-value records; their bytes are used as they are.
    tensors
        Name, ne, type and stored bytes of each tensor, in file order.
    version, byteorder, alignment
        As in `Header`.

    Raises
    ------
    FormatError
        A tensor name that llama.cpp can't read (over 63 bytes, or not UTF-8).
    """
    order = prefix(byteorder)
    rows = list(tensors)
    head = [b"GGUF", struct.pack(order + "IQQ", version, len(rows), len(records)), *(r.raw for r in records)]
    starts: list[int] = []
    end = 0
    for name, ne, type_, n_bytes in rows:
        data = name.encode("utf-8", "surrogateescape")
        if len(data) > _MAX_NAME or not _is_text(name):
            raise FormatError(
                f"tensor name {quoted(name)} ({len(data)} bytes) can't be written: llama.cpp reads UTF-8 names of at "
                f"most {_MAX_NAME} bytes; rename the tensor"
            )
        head.append(encode_string(name, byteorder))
        head.append(struct.pack(f"{order}I{len(ne)}QIQ", len(ne), *ne, int(type_), end))
        starts.append(end)
        end += pad(n_bytes, alignment)
    meta = b"".join(head)
    data_start = pad(len(meta), alignment)
    return Layout(meta.ljust(data_start, b"\0"), tuple(data_start + s for s in starts), data_start + end)
