"""Pieces: where the bytes of a tensor come from, and the arithmetic on them.

A tensor is the concatenation of its pieces. Taking indices along the outermost axis is the one operation: every index is a
*slab* of the same number of bytes, so the result is again a tuple of pieces. Nothing here reads anything.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ggufslice.errors import FormatError, redact_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Literal", "Piece", "Remap", "SourceRef", "Span", "join", "n_bytes", "take"]


def _sorted_pairs(validators: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(dict(validators).items()))


@attrs.frozen
class SourceRef:
    """Which file bytes come from: a value without an open handle and without secrets.

    Parameters
    ----------
    url
        An absolute path, or a URL that fsspec or this package can open; a Hugging Face URL names a commit. A query that
        belongs to the address is part of it; `display` leaves it out.
    size
        Bytes in the file, where known.
    validators
        What identifies the content, such as ``etag``, ``last-modified``, ``mtime_ns`` or ``commit``. Sorted pairs.
    """

    url: str
    size: int | None = None
    validators: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_sorted_pairs)

    @property
    def display(self) -> str:
        """The URL without credentials and query, for messages, files and receipts."""
        return redact_url(self.url)


@attrs.frozen
class Span:
    """Bytes ``start`` to ``stop`` (exclusive) of a source."""

    source: SourceRef
    start: int
    stop: int

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not a span of bytes: {self.start} to {self.stop} of {self.source.display}")

    def __len__(self) -> int:
        return self.stop - self.start

    def cut(self, start: int, stop: int) -> Span:
        """Return bytes ``start`` to ``stop`` of this piece."""
        return Span(self.source, self.start + start, self.start + stop)


@attrs.frozen
class Literal:
    """Bytes that an operation states itself."""

    data: bytes

    def __len__(self) -> int:
        return len(self.data)

    def cut(self, start: int, stop: int) -> Literal:
        """Return bytes ``start`` to ``stop`` of this piece."""
        return Literal(self.data[start:stop])


@attrs.frozen
class Remap:
    """A span of 32-bit expert ids, each replaced by ``ids[old]``.

    Only tables of expert ids (``ffn_gate_tid2eid``) are ever remapped.

    Parameters
    ----------
    span
        The source bytes: whole 32-bit integers.
    ids
        The new id for each old one.
    byteorder
        ``"little"`` or ``"big"``, as in the source file.
    """

    span: Span
    ids: tuple[int, ...]
    byteorder: str = "little"

    def __attrs_post_init__(self) -> None:
        if len(self.span) % 4:
            raise ValueError(f"a table of 32-bit ids can't have {len(self.span)} bytes")

    def __len__(self) -> int:
        return len(self.span)

    def cut(self, start: int, stop: int) -> Remap:
        """Return bytes ``start`` to ``stop`` of this piece: whole ids."""
        return Remap(self.span.cut(start, stop), self.ids, self.byteorder)

    def apply(self, data: bytes) -> bytes:
        """Return the source bytes `data` with each id replaced.

        Raises
        ------
        FormatError
            An id for which there is no new one.
        """
        order = ">" if self.byteorder == "big" else "<"
        old = np.frombuffer(data, order + "u4")
        if len(old) and old.max() >= len(self.ids):
            raise FormatError(
                f"{self.span.source.display}: the table of expert ids at byte {self.span.start} names expert "
                f"{old.max()}, but there are {len(self.ids)}"
            )
        new: bytes = np.array(self.ids, order + "i4")[old].tobytes()
        return new


Piece = Span | Literal | Remap


def n_bytes(pieces: Iterable[Piece]) -> int:
    """Return how many bytes the pieces hold together."""
    return sum(map(len, pieces))


def join(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Merge neighbours that are one run of bytes, and drop empty pieces; the content stays the same."""
    out: list[Piece] = []
    last: Piece | None = None
    for piece in pieces:
        if isinstance(piece, Span):
            # Hundreds of thousands pass here: no calls for those that stay as they are.
            if piece.start == piece.stop:
                continue
            if (
                isinstance(last, Span)
                and last.stop == piece.start
                and (last.source is piece.source or last.source == piece.source)
            ):
                out[-1] = last = Span(last.source, last.start, piece.stop)
                continue
        elif not len(piece):
            continue
        elif isinstance(piece, Literal) and isinstance(last, Literal):
            out[-1] = last = Literal(last.data + piece.data)
            continue
        out.append(piece)
        last = piece
    return tuple(out)


def take(pieces: Sequence[Piece], slab_bytes: int, indices: Iterable[int]) -> tuple[Piece, ...]:
    """Take slabs along the outermost axis.

    Parameters
    ----------
    pieces
        The tensor.
    slab_bytes
        Bytes of one index of the outermost axis.
    indices
        Which slabs, in which order; not negative, inside the tensor.

    Returns
    -------
    tuple of Piece
        Slab after slab; slabs that are neighbours in a source are one piece.
    """
    runs = _runs(indices)
    if len(pieces) == 1:
        piece = pieces[0]
        return join(piece.cut(a * slab_bytes, b * slab_bytes) for a, b in runs)
    ends = list(accumulate(map(len, pieces)))
    return join(part for a, b in runs for part in _cut(pieces, ends, a * slab_bytes, b * slab_bytes))


def _runs(indices: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending neighbours among `indices` as half-open runs, in order."""
    runs: list[tuple[int, int]] = []
    start = stop = -1
    for i in indices:
        if i == stop:
            stop += 1
            continue
        if stop > start:
            runs.append((start, stop))
        start, stop = i, i + 1
    if stop > start:
        runs.append((start, stop))
    return runs


def _cut(pieces: Sequence[Piece], ends: Sequence[int], start: int, stop: int) -> Iterable[Piece]:
    """Yield the parts of `pieces` that make up bytes ``start`` to ``stop``; `ends` are their running ends."""
    at = bisect_right(ends, start)
    while start < stop:
        begin = ends[at] - len(pieces[at])
        end = min(stop, ends[at])
        yield pieces[at].cut(start - begin, end - begin)
        start = end
        at += 1
