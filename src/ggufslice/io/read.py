"""Reading headers and tensors into memory."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from ggufslice.errors import FormatError, SourceError
from ggufslice.header import HeaderParser
from ggufslice.io.loop import parallel, run
from ggufslice.io.retry import fetch, stream_span
from ggufslice.io.sources import access_to, source_of
from ggufslice.io.tally import Tally
from ggufslice.spans import Literal, Remap, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufslice.header import Header
    from ggufslice.io.options import TransferOptions
    from ggufslice.io.sources import Source
    from ggufslice.spans import Piece

__all__ = ["read_header", "read_pieces"]


async def read_header(source: Source, first: int, options: TransferOptions, tally: Tally) -> Header:
    """Read a header: `first` bytes, then as much again as there is, until it is complete; no byte twice.

    A header of H bytes costs at most `first` or 2 H bytes.

    Raises
    ------
    FormatError
        There is no GGUF header.
    SourceError
        The source can't be read.
    """
    data = await fetch(source, 0, first, options, tally)
    name = source.ref.display
    counts = tally.of(source.ref)
    counts.header += len(data)
    parser = HeaderParser(name, size=source.ref.size, budget=options.header_budget)
    parser.feed(data)
    while parser.missing:
        at = parser.received
        more = max(parser.missing, min(at, options.header_budget - at))
        data = await fetch(source, at, at + more, options, tally)
        counts.header += len(data)
        if not data:
            raise FormatError(f"{name} ends at byte {at}, inside its header: it is truncated")
        parser.feed(data)
    return parser.header


def read_pieces(pieces: Sequence[Piece]) -> bytes:
    """Read pieces into memory, long and many ones in parallel.

    Raises
    ------
    SourceError
        A source can't be read.
    """
    spans = [piece for piece in pieces if not isinstance(piece, Literal)]
    return run(_read(pieces)) if spans else b"".join(piece.data for piece in pieces if isinstance(piece, Literal))


async def _read(pieces: Sequence[Piece]) -> bytes:
    result = bytearray(sum(map(len, pieces)))
    tally = Tally()
    calls = []
    at = 0
    limit = 1
    for piece in pieces:
        if isinstance(piece, Literal):
            result[at : at + len(piece)] = piece.data
        else:
            options = access_to((piece.span if isinstance(piece, Remap) else piece).source).options
            limit = max(limit, options.max_jobs)
            # Parts of a table of ids are whole ids.
            step = options.split_size - options.split_size % 4 or 4
            for start in range(0, len(piece), step):
                part = piece.cut(start, min(start + step, len(piece)))
                calls.append(partial(_fill, memoryview(result)[at + start :], part, options, tally))
        at += len(piece)
    await parallel(calls, limit)
    return bytes(result)


async def _fill(place: memoryview, piece: Span | Remap, options: TransferOptions, tally: Tally) -> None:
    span = piece.span if isinstance(piece, Remap) else piece
    source = source_of(span.source)
    at = span.start
    async with aclosing(stream_span(source, span.start, span.stop, options, tally)) as chunks:
        async for offset, chunk in chunks:
            at = offset + len(chunk)
            place[offset - span.start : at - span.start] = chunk
    if at != span.stop:
        raise SourceError(
            f"{span.source.display} ended at byte {at}, before the {span.stop} that were to be read: open it again"
        )
    if isinstance(piece, Remap):
        place[: len(span)] = piece.apply(bytes(place[: len(span)]))
