"""Pieces and taking along the outermost axis, against plain slicing of bytes."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggufslice.spans import Literal, Piece, Remap, SourceRef, Span, join, n_bytes, take

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = bytes(range(256))
REF = SourceRef("https://user:secret@host.test/m.gguf?sig=secret#x", 256, {"etag": '"a"', "b": "1"})
OTHER = SourceRef("/other.gguf", 256)


def content(pieces: Sequence[Piece]) -> bytes:
    """Read pieces, the plain way."""
    out = b""
    for piece in pieces:
        match piece:
            case Literal(data):
                out += data
            case Span(source, start, stop):
                out += FILE[start:stop] if source == REF else FILE[start:stop].translate(bytes(reversed(range(256))))
            case Remap():
                raise AssertionError
    return out


pieces = st.lists(
    st.one_of(
        st.builds(
            lambda s, a, n: Span(s, a, min(a + n, 256)),
            st.sampled_from([REF, OTHER]),
            st.integers(0, 255),
            st.integers(0, 40),
        ),
        st.binary(max_size=9).map(Literal),
    ),
    max_size=6,
)


@given(pieces)
def test_join_keeps_the_content_and_leaves_nothing_to_join(parts: list[Piece]) -> None:
    joined = join(parts)
    assert content(joined) == content(parts)
    assert join(joined) == joined
    assert all(len(p) for p in joined)


@given(pieces, st.integers(1, 7), st.data())
def test_take_is_slicing_of_the_bytes(parts: list[Piece], slab: int, data: st.DataObject) -> None:
    whole = content(parts)
    n = len(whole) // slab
    indices = data.draw(st.lists(st.integers(0, n - 1), max_size=12)) if n else []

    taken = take(parts, slab, indices)

    assert content(taken) == b"".join(whole[i * slab : (i + 1) * slab] for i in indices)
    assert n_bytes(taken) == slab * len(indices)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=10), st.data())
def test_two_takes_compose_like_indexing(first: list[int], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.integers(0, len(first) - 1), max_size=10))
    whole = [Span(REF, 0, 256)]
    assert take(take(whole, 16, first), 16, second) == take(whole, 16, [first[i] for i in second])


def test_neighbouring_slabs_are_one_piece() -> None:
    assert take([Span(REF, 100, 200)], 10, [3, 4, 5, 0, 1]) == (Span(REF, 130, 160), Span(REF, 100, 120))


def test_a_remap_is_cut_in_whole_ids() -> None:
    table = Remap(Span(REF, 0, 64), (5, 6, 7))
    assert take([table], 8, [1, 3]) == (Remap(Span(REF, 8, 16), (5, 6, 7)), Remap(Span(REF, 24, 32), (5, 6, 7)))
    with pytest.raises(ValueError, match="32-bit ids"):
        table.cut(1, 4)


def test_a_span_that_ends_before_it_starts_is_refused_without_showing_secrets() -> None:
    with pytest.raises(ValueError, match=r"5 to 4 of https://host\.test/m\.gguf$"):
        Span(REF, 5, 4)


def test_a_source_is_a_value() -> None:
    assert SourceRef("/a", 3, {"x": "1", "y": "2"}) == SourceRef("/a", 3, (("y", "2"), ("x", "1")))
    assert pickle.loads(pickle.dumps(REF)) == REF  # noqa: S301 - our own bytes
    assert REF.display == "https://host.test/m.gguf"
    assert SourceRef("/plain path?x.gguf").display == "/plain path?x.gguf"
