"""From the copy list of a cut to range requests: a pure planner.

The engine executes what this plans. Every knob is a required keyword: `TransferOptions` owns the defaults.
"""

from __future__ import annotations

from itertools import chain, islice, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import attrs

from ggufslice.spans import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ggufslice.io.options import TransferOptions
    from ggufslice.spans import Piece, SourceRef

__all__ = ["Cursor", "Request", "Slot", "outstanding", "plan_requests", "requests_for", "schedule"]

_START = itemgetter(0)  # of a slot; much quicker to sort by than the slot itself


def requests_for(copies: Iterable[tuple[Span, int]], options: TransferOptions, jobs: int) -> list[Request]:
    """Plan and order the requests of a transfer.

    Parameters
    ----------
    copies
        Source bytes, and the address of the first of them.
    options
        Limits.
    jobs
        The most requests at a time.
    """
    by_source = plan_requests(
        copies,
        max_gap=options.max_gap,
        # All jobs together may ask for no more than `in_flight`.
        split_size=min(options.split_size, max(options.min_split, options.in_flight // jobs)),
        min_split=options.min_split,
    )
    return schedule(by_source.values(), jobs=jobs, min_split=options.min_split)


class Slot(NamedTuple):
    """Bytes ``start`` to ``stop`` of a source, and where the first of them goes."""

    start: int
    stop: int
    at: int

    def clip(self, start: int, stop: int) -> Slot:
        """Return the part inside ``start`` to ``stop``, which are source offsets."""
        first = max(self.start, start)
        return Slot(first, min(self.stop, stop), self.at + first - self.start)


@attrs.frozen
class Request:
    """One range to fetch, and the slots that its bytes go to.

    Parameters
    ----------
    source
        The file.
    start, stop
        The range: the first byte of the first slot to the end of the farthest.
    slots
        By source offset. They may overlap, where the same bytes go to two places.
    gap
        Bytes of the range that no slot wants.
    """

    source: SourceRef
    start: int
    stop: int
    slots: tuple[Slot, ...]
    gap: int = 0

    def __len__(self) -> int:
        return self.stop - self.start


class Cursor:
    """Walks the slots of a request while its bytes arrive, in order.

    Parameters
    ----------
    slots
        By source offset.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._first = 0

    def take(self, start: int, stop: int) -> tuple[list[Slot], int]:
        """Return where the bytes ``start`` to ``stop`` go, and how many of them go anywhere."""
        slots, first = self._slots, self._first
        while first < len(slots) and slots[first].stop <= start:
            first += 1
        self._first = first
        parts: list[Slot] = []
        used, covered = 0, start
        for slot in islice(slots, first, None):
            if slot.start >= stop:
                break
            if slot.stop > start:
                part = slot.clip(start, stop)
                parts.append(part)
                used += max(0, part.stop - max(part.start, covered))
                covered = max(covered, part.stop)
        return parts, used


def outstanding(copies: Iterable[tuple[Piece, int]], done: Sequence[tuple[int, int]]) -> Iterator[tuple[Piece, int]]:
    """Yield the copies, or parts of them, that are still to be made.

    Parameters
    ----------
    copies
        Pieces, each with the address of its first byte, by address.
    done
        Intervals of addresses that are there: ascending, apart from each other.
    """
    i = 0
    for piece, at in copies:
        end = at + len(piece)
        while i < len(done) and done[i][1] <= at:
            i += 1
        if i == len(done) or done[i][0] >= end:
            yield piece, at
            continue
        begin = at
        for start, stop in islice(done, i, None):
            if start >= end:
                break
            if start > begin:
                # A table of ids is small and has to be cut between ids: it is made anew.
                if not isinstance(piece, Span):
                    begin = at
                    break
                yield piece.cut(begin - at, start - at), begin
            begin = min(stop, end)
        if begin < end:
            yield (piece.cut(begin - at, end - at), begin) if isinstance(piece, Span) else (piece, at)


def plan_requests(
    copies: Iterable[tuple[Span, int]], *, max_gap: int, split_size: int, min_split: int
) -> dict[SourceRef, list[Request]]:
    """Plan which ranges to fetch.

    Parameters
    ----------
    copies
        Source bytes, and the destination of the first of them; in any order.
    max_gap
        Neighbours in a source become one request when at most so many unwanted bytes lie between them. With 0 exactly the
        bytes that are wanted are fetched.
    split_size
        Runs longer than this are fetched in equal parts of at most so many bytes.
    min_split
        No run is split into parts of fewer bytes than this.

    Returns
    -------
    dict of SourceRef to list of Request
        By offset in each source.

    Notes
    -----
    Linear in the number of copies, but for one sort.
    """
    by_source: dict[SourceRef, list[Slot]] = {}
    source: SourceRef | None = None
    slots: list[Slot] = []
    for span, at in copies:
        if span.source is not source:
            source = span.source
            slots = by_source.setdefault(source, [])
        slots.append(Slot(span.start, span.stop, at))
    return {
        source: [
            part for run in _runs(source, sorted(slots, key=_START), max_gap) for part in _split(run, split_size, min_split)
        ]
        for source, slots in by_source.items()
    }


def _runs(source: SourceRef, slots: Sequence[Slot], max_gap: int) -> Iterable[Request]:
    """Join sorted slots that are at most `max_gap` apart."""
    first = 0
    end = gap = 0
    for i, slot in enumerate(slots):
        if i > first:
            hole = slot.start - end
            if hole <= max_gap:
                end = max(end, slot.stop)
                gap += max(hole, 0)
                continue
            yield Request(source, slots[first].start, end, tuple(slots[first:i]), gap)
        first, end, gap = i, slot.stop, 0
    if slots:
        yield Request(source, slots[first].start, end, tuple(slots[first:]), gap)


def _split(run: Request, size: int, min_split: int) -> Iterable[Request]:
    """Cut a run into equal parts of at most `size` bytes, none of which starts or ends with unwanted bytes."""
    n_bytes = run.stop - run.start
    if n_bytes <= size or n_bytes < 2 * min_split:
        return (run,)
    count = min(-(-n_bytes // size), n_bytes // min_split)
    bounds = [run.start + n_bytes * i // count for i in range(count + 1)]
    parts: list[list[Slot]] = [[] for _ in range(count)]
    i = 0
    for slot in run.slots:
        while bounds[i + 1] <= slot.start:
            i += 1
        k = i
        while k < count and bounds[k] < slot.stop:
            parts[k].append(slot.clip(bounds[k], bounds[k + 1]))
            k += 1
    return chain.from_iterable(_runs(run.source, part, n_bytes) for part in parts)


def schedule(requests: Iterable[Sequence[Request]], *, jobs: int, min_split: int) -> list[Request]:
    """Order requests for `jobs` connections.

    Sources take turns, each by rising offset, so that no single file's server or disk serves all. What comes last is split
    finer, so that no connection is left with a long request while the others have nothing to do.

    Parameters
    ----------
    requests
        Those of each source.
    jobs
        The most requests at a time.
    min_split
        No part has fewer bytes than this.
    """
    turns = [r for turn in zip_longest(*requests) for r in turn if r is not None]
    left = sum(map(len, turns))
    ordered: list[Request] = []
    for request in turns:
        ordered += _split(request, max(min_split, left // (2 * jobs)), min_split)
        left -= len(request)
    return ordered
