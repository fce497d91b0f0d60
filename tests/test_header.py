"""The header codec, against bytes that were packed by hand and by an independent packer."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import attrs
import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from ggufslice.errors import FormatError
from ggufslice.header import Header, HeaderParser, encode
from ggufslice.testing import TensorSpec, Typed, build_gguf

if TYPE_CHECKING:
    from pathlib import Path


def s(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def kv(key: str | bytes, number: int, value: bytes) -> bytes:
    return s(key) + struct.pack("<I", number) + value


def row(name: str | bytes, ne: list[int], type_: int, offset: int) -> bytes:
    return s(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, type_, offset)


def pack(records: list[bytes], rows: list[bytes], data: bytes = b"", *, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(records)) + b"".join(records + rows)
    return head + bytes(-len(head) % 32) + data


ARCH = kv("general.architecture", 8, s("llama"))


def parse(data: bytes, *, chunk: int | None = None, sized: bool = True) -> tuple[Header, int]:
    """Parse, feeding `chunk` bytes at a time; return the header and how many bytes it took."""
    parser = HeaderParser("test.gguf", size=len(data) if sized else None)
    at = 0
    while parser.missing:
        n = min(chunk or len(data), len(data) - at)
        assert n, "asked for more than the file has"
        parser.feed(data[at : at + n])
        at += n
    return parser.header, at


def reencode(header: Header) -> bytes:
    rows = [(t.name, t.ne, t.tensor_type, t.n_bytes) for t in header.tensors]
    return encode(header.records, rows, version=header.version, byteorder=header.byteorder, alignment=header.alignment).head


EVERY_TYPE = {
    "general.architecture": "zzz",
    **{f"t.{t}": Typed(v, t) for t, v in {"u8": 255, "i8": -128, "u16": 65535, "i16": -5, "u32": 2**32 - 1}.items()},
    "t.i32": Typed(-(2**31), "i32"),
    "t.u64": Typed(2**64 - 1, "u64"),
    "t.i64": Typed(-(2**63), "i64"),
    "t.f32": Typed(0.5, "f32"),
    "t.f64": Typed(0.1, "f64"),
    "t.bool": True,
    "t.str": "héllo",
    "a.u8": Typed([1, 2], "arr", "u8"),
    "a.i64": Typed([-1, 2], "arr", "i64"),
    "a.bool": Typed([True, False], "arr", "bool"),
    "a.str": Typed(["a", "", "bc"], "arr", "str"),
    "a.empty": Typed([], "arr", "f32"),
    "a.nested": Typed([Typed([1], "arr", "u8"), Typed([], "arr", "u8")], "arr", "arr"),
    "a.mixed": Typed([Typed([1], "arr", "u8"), Typed(["x"], "arr", "str")], "arr", "arr"),
}
EXPECTED = {
    "t.u8": ("u8", 255),
    "t.i8": ("i8", -128),
    "t.i32": ("i32", -(2**31)),
    "t.u64": ("u64", 2**64 - 1),
    "t.i64": ("i64", -(2**63)),
    "t.f32": ("f32", 0.5),
    "t.f64": ("f64", 0.1),
    "t.bool": ("bool", True),
    "t.str": ("str", "héllo"),
    "a.u8": ("arr[u8]", [1, 2]),
    "a.i64": ("arr[i64]", [-1, 2]),
    "a.bool": ("arr[bool]", [True, False]),
    "a.str": ("arr[str]", ["a", "", "bc"]),
    "a.empty": ("arr[f32]", []),
    "a.nested": ("arr[arr[u8]]", [[1], []]),
    "a.mixed": ("arr[arr]", [[1], ["x"]]),
}
TENSORS = [TensorSpec("a.weight", (256, 3), 12), TensorSpec("b.weight", (5,), 0), TensorSpec("c.weight", (32, 2, 4), 8)]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_every_value_type_decodes_and_reencodes(version: int, byteorder: str, alignment: int) -> None:
    data = build_gguf(EVERY_TYPE, TENSORS, version=version, byteorder=byteorder, alignment=alignment)  # type: ignore[arg-type]
    header, _ = parse(data)

    found = {r.key: (r.type, r.value) for r in header.records}
    assert {key: found[key] for key in EXPECTED} == EXPECTED
    assert (header.version, header.byteorder, header.alignment) == (version, byteorder, alignment)
    assert [(t.name, t.ne, t.tensor_type.name) for t in header.tensors] == [
        ("a.weight", (256, 3), "Q4_K"),
        ("b.weight", (5,), "F32"),
        ("c.weight", (32, 2, 4), "Q8_0"),
    ]
    assert [t.n_bytes for t in header.tensors] == [3 * 144, 20, 8 * 34]
    assert reencode(header) == data[: header.data_start]


def test_parse_is_the_same_for_every_chunk_size_and_asks_for_no_more_than_a_chunk() -> None:
    data = build_gguf(EVERY_TYPE, TENSORS)
    whole, _ = parse(data)
    for chunk in [*range(1, 65), 100, 1000]:
        header, taken = parse(data, chunk=chunk)
        assert header == whole
        assert taken < whole.n_bytes + chunk


@pytest.mark.parametrize("size", range(4096 - 9, 4096 + 10))
def test_a_header_that_ends_near_a_chunk_border(size: int) -> None:
    fixed = len(pack([ARCH, kv("pad", 8, s(""))], []))
    data = pack([ARCH, kv("pad", 8, s("x" * (size - fixed)))], [])
    header, taken = parse(data, chunk=4096)
    assert header.n_bytes <= taken <= header.n_bytes + 4096
    assert header.records[1].value == "x" * (size - fixed)


def test_missing_bytes_are_enough_to_finish() -> None:
    data = build_gguf(EVERY_TYPE, TENSORS)
    parser = HeaderParser("test.gguf")
    fed = 0
    while parser.missing:
        step = parser.missing
        parser.feed(data[fed : fed + step])
        fed += step
    assert fed == parser.header.n_bytes


def test_lone_bytes_in_strings_and_names_survive() -> None:
    data = pack(
        [ARCH, kv("tok", 9, struct.pack("<IQ", 8, 2) + s(b"\xff\xfe") + s("ok"))], [row(b"n\xff", [4], 0, 0)], bytes(16)
    )
    header, _ = parse(data)
    assert header.records[1].raw == kv("tok", 9, struct.pack("<IQ", 8, 2) + s(b"\xff\xfe") + s("ok"))
    assert header.records[1].value[0].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert header.tensors[0].name == "n\udcff"
    with pytest.raises(FormatError, match=r"'n\\xff' .*can't be written"):
        reencode(header)


def test_a_name_of_63_bytes_can_be_written_and_one_of_64_only_read() -> None:
    fits, _ = parse(pack([ARCH], [row("n" * 63, [4], 0, 0)], bytes(32)))
    assert reencode(fits)
    long, _ = parse(pack([ARCH], [row("n" * 64, [4], 0, 0)], bytes(32)))
    with pytest.raises(FormatError, match="at most 63 bytes"):
        reencode(long)


def test_bool_bytes_of_255_are_true() -> None:
    header, _ = parse(pack([kv("b", 7, b"\xff"), kv("c", 9, struct.pack("<IQ", 7, 2) + b"\x00\xff")], []))
    assert [r.value for r in header.records] == [True, [False, True]]


def test_an_unknown_type_takes_its_size_from_its_neighbours() -> None:
    # 2 x 4 rows, each a 4-byte row header and one 66-byte block: 560 bytes, which no table of ours knows.
    rows = [row("a", [256, 4, 2], 153, 0), row("b", [8], 0, 576)]
    header, _ = parse(pack([ARCH], rows, bytes(576 + 32)))
    assert [(t.tensor_type.name, t.n_bytes) for t in header.tensors] == [("UNKNOWN(153)", 576), ("F32", 32)]


def test_an_unknown_type_at_the_end_reaches_to_the_end_of_the_file() -> None:
    header, _ = parse(pack([ARCH], [row("b", [8], 0, 0), row("a", [256], 153, 32)], bytes(32 + 512)))
    assert header.tensors[1].n_bytes == 512


def test_gaps_and_missing_tail_padding_are_read() -> None:
    header, _ = parse(pack([ARCH], [row("a", [8], 0, 0), row("b", [8], 0, 4096), row("c", [1], 0, 128)], bytes(4096 + 32)))
    assert [(t.offset, t.n_bytes) for t in header.tensors] == [(0, 32), (4096, 32), (128, 4)]


def test_a_scalar_and_an_empty_tensor_are_read() -> None:
    header, _ = parse(pack([ARCH], [row("scalar", [], 0, 0), row("empty", [0, 4], 0, 32)], bytes(32)))
    assert [(t.ne, t.n_bytes) for t in header.tensors] == [((), 4), ((0, 4), 0)]


@attrs.frozen
class Hostile:
    """A file that must be refused, and a part of the reason."""

    id: str
    data: bytes
    reason: str
    by_size: bool = False
    """Whether only the size of the file shows that it is wrong."""


def fixed(version: int, tensors: int, records: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, records)


HOSTILE = [
    Hostile("empty", b"", "not a GGUF: it is empty", by_size=True),
    Hostile("three bytes", b"GGU", "not a GGUF: it is only 3 bytes long", by_size=True),
    Hostile("short text", b"hello", "not a GGUF: it starts with b'hell'"),
    Hostile(
        "a magic alone", b"GGUF", "the fixed part would end at byte 24, but the file has 4: it is truncated", by_size=True
    ),
    Hostile("text", b"<html>not found</html>   ", "not a GGUF"),
    Hostile("version 1", fixed(1, 0, 0), "version 1"),
    Hostile("version 4", fixed(4, 0, 0), "version 4 is not known"),
    Hostile("2^60 records", fixed(3, 0, 1 << 60), "metadata records need at least"),
    Hostile("2^60 tensors", fixed(3, 1 << 60, 0), "tensors need at least"),
    Hostile("negative counts", fixed(3, 2**64 - 1, 2**64 - 1), "need at least"),
    Hostile("key of 2^63 bytes", fixed(3, 0, 1) + struct.pack("<Q", 1 << 63) + bytes(40), "over the limit"),
    Hostile("key of 2^29 bytes", fixed(3, 0, 1) + struct.pack("<Q", 1 << 29) + bytes(40), "truncated"),
    Hostile("empty key", fixed(3, 0, 1) + kv("", 4, bytes(4)) + bytes(9), "is empty"),
    Hostile("string past the end", pack([kv("k", 8, struct.pack("<Q", 10**6))], []), "truncated", by_size=True),
    Hostile("array of 2^40", pack([kv("k", 9, struct.pack("<IQ", 4, 1 << 40))], []), "over the limit"),
    Hostile("array of 2^29", pack([kv("k", 9, struct.pack("<IQ", 4, 1 << 29))], []), "need at least"),
    Hostile("2^29 strings", pack([kv("k", 9, struct.pack("<IQ", 8, 1 << 29))], []), "need at least"),
    Hostile(
        "string of 2^63 in an array", pack([kv("k", 9, struct.pack("<IQQ", 8, 2, 1 << 63) + bytes(8))], []), "truncated"
    ),
    Hostile("nesting", pack([kv("k", 9, struct.pack("<IQ", 9, 1) * 1000)], []), "nests arrays"),
    Hostile("wide nesting", pack([kv("k", 9, struct.pack("<IQ", 9, 1 << 29))], []), "need at least"),
    Hostile("value type 13", pack([kv("k", 13, bytes(8))], []), "value type 13"),
    Hostile("element type 99", pack([kv("k", 9, struct.pack("<IQ", 99, 1) + bytes(8))], []), "element type 99"),
    Hostile("alignment 0", pack([kv("general.alignment", 4, struct.pack("<I", 0))], []), "power of two"),
    Hostile("alignment 3", pack([kv("general.alignment", 4, struct.pack("<I", 3))], []), "power of two"),
    Hostile("alignment 2^31", pack([kv("general.alignment", 4, struct.pack("<I", 1 << 31))], []), "power of two"),
    Hostile("alignment as u64", pack([kv("general.alignment", 10, struct.pack("<Q", 32))], []), "power of two"),
    Hostile("duplicate key", pack([ARCH, ARCH], []), r"twice, at bytes 24 and 69"),
    Hostile(
        "duplicate tensor", pack([], [row("a", [4], 0, 0), row("a", [4], 0, 32)], bytes(64)), "twice, at bytes 24 and 57"
    ),
    Hostile("2^31 dimensions", pack([], [s("a") + struct.pack("<I", 1 << 31) + bytes(64)]), "dimensions"),
    Hostile("5 dimensions", pack([], [row("a", [1] * 5, 0, 0)], bytes(32)), "5 dimensions"),
    Hostile("product over 2^63", pack([], [row("a", [1 << 32, 1 << 32], 0, 0)]), r"more than 2\^63"),
    Hostile("product hidden by a zero", pack([], [row("a", [0, 1 << 40, 1 << 40], 0, 0)]), r"more than 2\^63"),
    Hostile("half a block", pack([], [row("a", [100], 12, 0)], bytes(96)), "whole blocks of 256"),
    Hostile("overlap", pack([], [row("a", [16], 0, 0), row("b", [4], 0, 32)], bytes(64)), "next tensor"),
    Hostile("same offset", pack([], [row("a", [4], 0, 0), row("b", [4], 0, 0)], bytes(64)), "next tensor"),
    Hostile("unaligned", pack([], [row("a", [4], 0, 8)], bytes(64)), "multiple of 32"),
    Hostile("past the end", pack([], [row("a", [4], 0, 1 << 40)], bytes(64)), "truncated", by_size=True),
    Hostile("unknown type past the end", pack([], [row("a", [4], 153, 1 << 40)], bytes(64)), "truncated"),
]


@pytest.mark.parametrize("case", HOSTILE, ids=[case.id for case in HOSTILE])
def test_hostile_headers_are_refused_at_once(case: Hostile) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"test\.gguf: .*" + case.reason):
            parse(case.data, chunk=64)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


UNSIZED = [case for case in HOSTILE if not case.by_size]


@pytest.mark.parametrize("case", UNSIZED, ids=[case.id for case in UNSIZED])
def test_hostile_headers_of_a_file_of_unknown_size_are_refused_within_the_budget(case: Hostile) -> None:
    parser = HeaderParser("test.gguf", budget=1 << 20)
    fed = 0

    def feed() -> None:
        nonlocal fed
        step = parser.missing
        assert step > 0
        assert fed + step <= 1 << 20
        parser.feed(case.data[fed : fed + step].ljust(step, b"\0"))
        fed += step

    def feed_all() -> None:
        for _ in range(1000):
            feed()

    with pytest.raises(FormatError):
        feed_all()


def test_the_header_budget_is_named() -> None:
    data = pack([kv("k", 8, s("x" * 5000))], [])
    with pytest.raises(FormatError, match=r"header_budget"):
        HeaderParser("test.gguf", budget=4096).feed(data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"PK\x03\x04" + bytes(30), r"starts with b'PK\\x03\\x04', not with b'GGUF'$"),
    ],
)
def test_what_comes_in_place_of_a_model_is_named(data: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        HeaderParser("test.gguf", size=len(data)).feed(data)


@given(st.binary(max_size=300))
def test_any_bytes_behind_the_magic_give_a_header_or_a_format_error(tail: bytes) -> None:
    data = b"GGUF\x03\x00\x00\x00" + tail
    try:
        header, _ = parse(data)
    except FormatError:
        return
    assert header.n_bytes <= len(data)


@given(st.data())
def test_a_flipped_byte_gives_a_header_or_a_format_error(data: st.DataObject) -> None:
    sound = bytearray(build_gguf(EVERY_TYPE, TENSORS))
    at = data.draw(st.integers(4, 600))
    sound[at] ^= data.draw(st.integers(1, 255))
    try:
        header, _ = parse(bytes(sound))
        for record in header.records:
            assert record.value is not None
    except FormatError:
        pass


def test_agrees_with_gguf_py(tmp_path: Path) -> None:
    plain = {k: v for k, v in EVERY_TYPE.items() if k not in ("a.nested", "a.mixed", "a.empty")}
    path = tmp_path / "x.gguf"
    path.write_bytes(build_gguf(plain, TENSORS))
    reader = GGUFReader(path)
    header, _ = parse(path.read_bytes())
    for record in header.records:
        theirs = reader.get_field(record.key)
        assert theirs is not None
        ours = record.value
        assert np.float32(ours) == theirs.contents() if record.type == "f32" else ours == theirs.contents()
    for ours_t, theirs_t in zip(header.tensors, reader.tensors, strict=True):
        assert (ours_t.name, ours_t.n_bytes) == (theirs_t.name, theirs_t.n_bytes)
        assert header.data_start + ours_t.offset == theirs_t.data_offset
        assert ours_t.ne == tuple(int(n) for n in theirs_t.shape)
