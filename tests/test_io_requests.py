"""The request planner: pure, so its laws are checked against a naive model of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggufslice.io.requests import Cursor, Request, Slot, outstanding, plan_requests, schedule
from ggufslice.spans import Literal, Remap, SourceRef, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ggufslice.spans import Piece

A, B = SourceRef("/a.gguf", 1000), SourceRef("/b.gguf", 1000)


def plan(copies: Iterable[tuple[int, int, int]], *, gap: int = 0, split: int = 1000, least: int = 1) -> list[Request]:
    spans = [(Span(A, start, stop), at) for start, stop, at in copies]
    return plan_requests(spans, max_gap=gap, split_size=split, min_split=least).get(A, [])


@attrs.frozen
class Case:
    """Copies as (start, stop, address), and the ranges that they become."""

    id: str
    copies: list[tuple[int, int, int]]
    ranges: list[tuple[int, int]]
    gap: int = 0
    split: int = 1000
    least: int = 1
    wasted: int = 0


CASES = [
    Case("nothing", [], []),
    Case("one", [(10, 20, 0)], [(10, 20)]),
    Case("touching spans are one range", [(10, 20, 0), (20, 30, 500)], [(10, 30)]),
    Case("a gap of 0 keeps to exact bytes", [(10, 20, 0), (21, 30, 10)], [(10, 20), (21, 30)]),
    Case("a gap as wide as allowed is read", [(10, 20, 0), (25, 30, 10)], [(10, 30)], gap=5, wasted=5),
    Case("a wider one is not", [(10, 20, 0), (26, 30, 10)], [(10, 20), (26, 30)], gap=5),
    Case("gaps add up", [(0, 10, 0), (13, 20, 10), (25, 30, 20)], [(0, 30)], gap=5, wasted=8),
    Case("any order", [(20, 30, 0), (10, 20, 10)], [(10, 30)]),
    Case("the same bytes twice are fetched once", [(10, 20, 0), (10, 20, 10)], [(10, 20)]),
    Case("overlaps are fetched once", [(10, 20, 0), (12, 15, 10), (18, 25, 20)], [(10, 25)]),
    Case("a long run is cut into equal parts", [(0, 100, 0)], [(0, 25), (25, 50), (50, 75), (75, 100)], split=30),
    Case("no part is shorter than the least", [(0, 100, 0)], [(0, 50), (50, 100)], split=30, least=40),
    Case("a run shorter than two of the least stays whole", [(0, 79, 0)], [(0, 79)], split=30, least=40),
    Case("a cut in a gap leaves the gap out", [(0, 48, 0), (52, 100, 48)], [(0, 48), (52, 100)], gap=4, split=50),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_ranges(case: Case) -> None:
    requests = plan(case.copies, gap=case.gap, split=case.split, least=case.least)
    assert [(r.start, r.stop) for r in requests] == case.ranges
    assert sum(r.gap for r in requests) == case.wasted


def test_each_source_has_its_requests_even_at_touching_offsets() -> None:
    requests = plan_requests([(Span(A, 0, 9), 0), (Span(B, 9, 20), 9)], max_gap=5, split_size=100, min_split=1)
    assert {ref: [(r.start, r.stop) for r in own] for ref, own in requests.items()} == {A: [(0, 9)], B: [(9, 20)]}


def test_a_request_knows_where_each_of_its_parts_goes() -> None:
    (request,) = plan([(10, 20, 700), (20, 24, 300), (26, 30, 0)], gap=2)
    assert request.slots == (Slot(10, 20, 700), Slot(20, 24, 300), Slot(26, 30, 0))
    assert request.gap == 2


copies = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 90)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=12
).map(lambda spans: [(start, stop, 1000 * i) for i, (start, stop) in enumerate(spans)])


@given(copies, st.integers(0, 30), st.integers(1, 120), st.integers(1, 60), st.lists(st.integers(1, 40), min_size=1))
def test_every_byte_goes_where_it_should_and_is_fetched_once(
    wanted: list[tuple[int, int, int]], gap: int, split: int, least: int, chunks: list[int]
) -> None:
    requests = plan(wanted, gap=gap, split=split, least=least)
    fetched: list[int] = []
    written: dict[int, int] = {}
    used = 0
    for request in requests:
        fetched += range(request.start, request.stop)
        cursor = Cursor(request.slots)
        at, turn = request.start, 0
        while at < request.stop:
            stop = min(request.stop, at + chunks[turn % len(chunks)])
            parts, n = cursor.take(at, stop)
            used += n
            for part in parts:
                for i in range(part.stop - part.start):
                    assert part.at + i not in written
                    written[part.at + i] = part.start + i
            at, turn = stop, turn + 1
    assert written == {at + i: start + i for start, stop, at in wanted for i in range(stop - start)}
    assert len(fetched) == len(set(fetched))
    union = {i for start, stop, _ in wanted for i in range(start, stop)}
    assert used == len(union)
    assert sum(r.gap for r in requests) == len(fetched) - len(union)
    assert union <= set(fetched)
    if gap == 0:
        assert union == set(fetched)


@given(copies, st.integers(1, 8), st.integers(1, 60))
def test_a_schedule_asks_for_the_same_bytes(wanted: list[tuple[int, int, int]], jobs: int, least: int) -> None:
    requests = plan(wanted, gap=3)
    ordered = schedule([requests], jobs=jobs, min_split=least)

    def slots(of: Iterable[Request]) -> set[tuple[int, int]]:
        return {(slot.start + i, slot.at + i) for r in of for slot in r.slots for i in range(slot.stop - slot.start)}

    assert slots(ordered) == slots(requests)
    assert sum(map(len, ordered)) <= sum(map(len, requests))


def test_sources_take_turns() -> None:
    spans = [(Span(ref, start, start + 10), 0) for ref in (A, B) for start in (0, 100, 200)]
    by_source = plan_requests(spans, max_gap=0, split_size=100, min_split=10)
    ordered = schedule(by_source.values(), jobs=1, min_split=10)
    assert [(r.source, r.start) for r in ordered] == [(A, 0), (B, 0), (A, 100), (B, 100), (A, 200), (B, 200)]


def test_the_last_requests_are_finer_so_that_all_connections_end_together() -> None:
    requests = plan([(0, 800, 0)], split=100)
    sizes = [len(r) for r in schedule([requests], jobs=4, min_split=10)]
    assert sum(sizes) == 800
    assert sizes[:3] == [100, 50, 50]  # 800 left for 4 connections twice over: 100; then 700: at most 87
    assert sizes[-9:] == [11, 11, 11, 11, 11, 11, 11, 11, 12]  # 100 left: at most 12


def test_planning_makes_one_object_for_each_of_many_scattered_spans_and_sorts_once() -> None:
    class Counted(int):
        comparisons = 0

        def __lt__(self, other: int) -> bool:
            Counted.comparisons += 1
            return int(self) < int(other)

    n = 20_000
    spans = [(Span(A, Counted(10 * i), Counted(10 * i + 5)), 5 * i) for i in range(n)]
    requests = plan_requests(spans, max_gap=0, split_size=100, min_split=10)[A]
    assert len(requests) == n
    assert all(len(r.slots) == 1 for r in requests)
    assert Counted.comparisons < 10 * n


ID_TABLE = Remap(Span(A, 0, 8), (1, 0))


@pytest.mark.parametrize(
    ("done", "left"),
    [
        ([], [(Span(A, 100, 150), 0), (Literal(b"0123456789"), 50), (ID_TABLE, 60)]),
        ([(0, 68)], []),
        ([(0, 20)], [(Span(A, 120, 150), 20), (Literal(b"0123456789"), 50), (ID_TABLE, 60)]),
        ([(10, 20), (30, 60)], [(Span(A, 100, 110), 0), (Span(A, 120, 130), 20), (ID_TABLE, 60)]),
        ([(0, 55), (61, 68)], [(Literal(b"0123456789"), 50), (ID_TABLE, 60)]),
        ([(0, 64)], [(ID_TABLE, 60)]),
        ([(52, 55), (62, 64)], [(Span(A, 100, 150), 0), (Literal(b"0123456789"), 50), (ID_TABLE, 60)]),
    ],
)
def test_what_is_left_to_do(done: Sequence[tuple[int, int]], left: list[tuple[Piece, int]]) -> None:
    whole: list[tuple[Piece, int]] = [(Span(A, 100, 150), 0), (Literal(b"0123456789"), 50), (ID_TABLE, 60)]
    assert list(outstanding(whole, done)) == left
