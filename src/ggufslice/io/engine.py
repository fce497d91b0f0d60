"""The engine: moves the bytes of a copy list from their sources to their places.

Chunks go to the disk as they arrive, so memory does not depend on the size of anything. The first failure ends all; what was
written by then stays noted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING

import attrs

from ggufslice.errors import SourceError
from ggufslice.io.allocation import in_memory
from ggufslice.io.controller import Controller
from ggufslice.io.copying import Copier
from ggufslice.io.requests import Cursor, requests_for
from ggufslice.io.retry import fetch, stream_span
from ggufslice.io.sources import LocalSource, source_of
from ggufslice.spans import Literal, Remap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ggufslice.io.journal import Ledger
    from ggufslice.io.options import TransferOptions
    from ggufslice.io.requests import Request
    from ggufslice.io.sink import Sink
    from ggufslice.io.tally import Tally
    from ggufslice.spans import Piece, SourceRef, Span

__all__ = ["Engine"]

_TICK = 0.05  # seconds between two looks at the rate
_COPIERS = 2  # threads: while one writes, the other reads; a file takes one write at a time
_LARGER = 16 << 20  # bytes; more than a connection receives at once


@attrs.define
class Engine:
    """One transfer.

    Parameters
    ----------
    sink
        Where bytes go.
    ledger
        Told what was written.
    tally
        Told what was received.
    options
        Limits.
    jobs
        The most requests at a time.
    pulse
        Called in another thread many times a second: saves the state and shows it.
    """

    sink: Sink
    ledger: Ledger
    tally: Tally
    options: TransferOptions
    jobs: int
    pulse: Callable[[], None]
    _controller: Controller = attrs.field(init=False)
    _arrived: int = attrs.field(init=False, default=0)
    _throttled: bool = attrs.field(init=False, default=False)
    _busy: bool = attrs.field(init=False, default=False)  # whether there is more to ask for than is being asked for
    _wake: asyncio.Event = attrs.field(init=False, factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        self._controller = Controller(self.jobs)

    async def run(self, copies: Iterable[tuple[Piece, int]]) -> None:
        """Move all bytes of the copies: pieces, each with the address of its first byte.

        Raises
        ------
        SourceError
            A source can't be read or has changed.
        OutputError
            The result can't be written.
        """
        remote: list[tuple[Span, int]] = []
        local: list[tuple[LocalSource, Span, int]] = []
        tables: list[tuple[Remap, int]] = []
        for piece, at in copies:
            if isinstance(piece, Literal):
                self._write(at, piece.data)
            elif isinstance(piece, Remap):
                tables.append((piece, at))
            elif isinstance(source := source_of(piece.source), LocalSource):
                local.append((source, piece, at))
            else:
                remote.append((piece, at))
        try:
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(self._beat())
                if local or not in_memory(self.sink.path.parent):
                    group.create_task(asyncio.to_thread(self.sink.allocate))
                await self._remap(tables)
                await self._copy(local)
                await self._fetch(remote)
                beat.cancel()
        except BaseExceptionGroup as failures:
            raise _first(failures) from None

    async def confirm(self, refs: Iterable[SourceRef]) -> None:
        """Check that the sources are still those that were opened, after the last byte.

        Raises
        ------
        SourceChangedError
            One isn't.
        """
        for ref in refs:
            await source_of(ref).confirm(self.tally)

    def _write(self, at: int, data: bytes) -> None:
        self.sink.write(at, data)
        self.ledger.note(at, data)

    async def _beat(self) -> None:
        """Look at the rate, and let the caller save and show the state."""
        clock = asyncio.get_running_loop().time
        before, arrived = clock(), self._arrived
        while True:
            await asyncio.sleep(_TICK)
            now = clock()
            if self._busy:
                target = self._controller.target
                seen = self._controller.observe(self._arrived - arrived, now - before, throttled=self._throttled)
                if seen > target:
                    self._wake.set()
            before, arrived, self._throttled = now, self._arrived, False
            await asyncio.to_thread(self.pulse)

    def _on_event(self, event: str) -> None:
        self._throttled |= event == "throttled"

    async def _remap(self, tables: Iterable[tuple[Remap, int]]) -> None:
        """Fetch tables of expert ids, whole, and write them with the new ids."""
        for table, at in tables:
            span = table.span
            data = await fetch(source_of(span.source), span.start, span.stop, self.options, self.tally)
            counts = self.tally.of(span.source)
            try:
                self._write(at, table.apply(data))
            except BaseException:
                counts.wasted += len(data)
                raise
            counts.payload += len(data)

    async def _copy(self, copies: Sequence[tuple[LocalSource, Span, int]]) -> None:
        """Copy local spans in a few threads."""
        if not copies:
            return
        copier = Copier(((source, span.start, span.stop, at) for source, span, at in copies), self.sink, self.ledger)
        workers = min(_COPIERS, self.jobs, len(copies))
        loop = asyncio.get_running_loop()
        try:
            with ThreadPoolExecutor(workers) as pool:
                try:
                    await asyncio.gather(*(loop.run_in_executor(pool, copier.work) for _ in range(workers)))
                finally:
                    # Leaving the pool waits for its threads, which still write to the result.
                    copier.stop()
        finally:
            for ref, n_bytes in copier.moved.items():
                counts = self.tally.of(ref)
                counts.received += n_bytes
                counts.payload += n_bytes

    async def _fetch(self, copies: Sequence[tuple[Span, int]]) -> None:
        """Fetch remote spans, as many at a time as the controller says."""
        # Chunks of a connection come and go. glibc gives blocks of that size back to the system at once, and takes new pages
        # for the next, until it has seen a larger one freed (mallopt(3), M_MMAP_THRESHOLD). This one is never touched.
        bytes(_LARGER)
        options = self.options
        queue = deque(requests_for(copies, options, self.jobs))
        running: dict[asyncio.Task[None], int] = {}

        def done(task: asyncio.Task[None]) -> None:
            del running[task]
            self._wake.set()

        def fits() -> bool:
            if not running:
                return True
            return len(running) < self._controller.target and sum(running.values()) + len(queue[0]) <= options.in_flight

        async with asyncio.TaskGroup() as group:
            while queue:
                while queue and fits():
                    request = queue.popleft()
                    task = group.create_task(self._serve(request))
                    running[task] = len(request)
                    task.add_done_callback(done)
                self._busy = bool(queue)
                self._wake.clear()
                await self._wake.wait()

    async def _serve(self, request: Request) -> None:
        """Fetch one range and put its bytes where they go."""
        source = source_of(request.source)
        counts = self.tally.of(request.source)
        cursor = Cursor(request.slots)
        at = request.start
        chunks = stream_span(source, request.start, request.stop, self.options, self.tally, self._on_event)
        async with aclosing(chunks):
            async for offset, chunk in chunks:
                self._arrived += len(chunk)
                parts, used = cursor.take(offset, offset + len(chunk))
                try:
                    for part in parts:
                        first = part.start - offset
                        self._write(part.at, chunk[first : first + part.stop - part.start])
                except BaseException:
                    counts.wasted += len(chunk)
                    raise
                counts.payload += used
                counts.gap += len(chunk) - used
                at = offset + len(chunk)
        if at != request.stop:
            raise SourceError(
                f"{request.source.display} ended at byte {at}, but bytes up to {request.stop} are wanted: open it again"
            )


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the failure that ended all: the others are its consequences."""
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
