"""Persistence: what is tried again, how long it waits, when it ends."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from ggufslice.errors import RangeNotSupportedError, SourceError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from ggufslice.io.options import TransferOptions
    from ggufslice.io.sources import Source
    from ggufslice.io.tally import Tally

__all__ = ["Persistence", "Retry", "fetch", "names_no_host", "persist", "stream_span"]

T = TypeVar("T")

_THROTTLED = frozenset({429, 503})
_pauses: dict[str, float] = {}
"""Until when (monotonic clock) each origin asked to be left alone."""


class Retry(Exception):  # noqa: N818 - a signal between a source and its caller, never the caller's error
    """One attempt failed in a way that another may not.

    Parameters
    ----------
    reason
        What happened, for a message.
    event
        Its kind, for a controller: ``"throttled"``, ``"timeout"``, ``"reset"``, ``"short"``, ``"slow"`` or ``"refused"``
        (an error, or a reply that broke the contract).
    after
        Seconds that the server asked to wait.
    status
        The reply's status, if there was a reply.
    error
        What to raise when there is no attempt left.
    """

    def __init__(
        self,
        reason: str,
        *,
        event: str = "reset",
        after: float | None = None,
        status: int | None = None,
        error: type[SourceError] = SourceError,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.event = "throttled" if status in _THROTTLED else event
        self.after = after
        self.status = status
        self.error = error


def names_no_host(error: BaseException | None) -> bool:
    """Whether this came of a name that no host has, which another attempt won't change."""
    while error is not None:
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
            return True
        error = error.__cause__ or error.__context__
    return False


class Persistence:
    """The patience with one piece of work: counts failures in a row, waits, gives up.

    Parameters
    ----------
    origin
        Who is asked; a pause that a server asks for holds for all work at its origin.
    what
        The work, for messages.
    options, tally
        Limits and counters.
    on_event
        Told the kind of each failure.
    """

    def __init__(
        self,
        origin: str,
        what: str,
        options: TransferOptions,
        tally: Tally,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self._origin = origin
        self._what = what
        self._options = options
        self._tally = tally
        self._on_event = on_event
        self._failures = 0

    async def ready(self) -> None:
        """Wait until the origin wants to hear from us."""
        # The pause may have grown while we slept.
        while (left := _pauses.get(self._origin, 0.0) - time.monotonic()) > 0:  # noqa: ASYNC110 - time passing is the event
            await asyncio.sleep(left)

    async def failed(self, retry: Retry, *, progress: bool = False) -> None:
        """Take note of a failure and wait before the next attempt.

        Raises
        ------
        SourceError
            There is no attempt left, or the server asks to wait too long.
        """
        if self._on_event is not None:
            self._on_event(retry.event)
        self._failures = 1 if progress else self._failures + 1
        options = self._options
        if self._failures >= options.attempts and not progress:
            times = f" ({self._failures} times in a row)" if self._failures > 1 else ""
            raise retry.error(f"{self._what}: {retry.reason}{times}; try again later") from None
        if retry.after is not None and retry.after > options.max_wait:
            raise retry.error(
                f"{self._what}: {retry.reason}, and the server asks to wait {retry.after:.0f} s, more than "
                f"TransferOptions.max_wait of {options.max_wait:.0f} s"
            ) from None
        longest = min(options.backoff_max, options.backoff * 2.0 ** (self._failures - 1))
        delay = random.uniform(0, longest)  # noqa: S311 - jitter, not a secret
        if retry.after is not None:
            delay += retry.after
        self._tally.retries += 1
        if retry.event == "throttled":
            _pauses[self._origin] = max(_pauses.get(self._origin, 0.0), time.monotonic() + delay)
        else:
            await asyncio.sleep(delay)


async def persist(call: Callable[[], Awaitable[T]], patience: Persistence) -> T:
    """Await `call` until it returns."""
    while True:
        await patience.ready()
        try:
            return await call()
        except Retry as retry:
            await patience.failed(retry)


async def stream_span(
    source: Source,
    start: int,
    stop: int,
    options: TransferOptions,
    tally: Tally,
    on_event: Callable[[str], None] | None = None,
) -> AsyncGenerator[tuple[int, bytes]]:
    """Read a span of a source to its end, whatever happens on the way.

    A broken or short reply is continued from where it stopped. Progress gives back all attempts.

    Parameters
    ----------
    source
        What to read.
    start, stop
        First byte, and the one behind the last.
    options, tally
        Limits and counters.
    on_event
        Told the kind of each failure (see `Retry`).

    Yields
    ------
    tuple of int and bytes
        Offset in the source and the bytes there: every byte once, in order. Ends early only at the end of a source whose
        size wasn't known.

    Raises
    ------
    SourceError
        The span can't be read.
    """
    at = start
    what = f"{source.ref.display}: bytes {start}-{stop - 1}"
    patience = Persistence(source.origin, what, options, tally, on_event)

    def end() -> int:  # the size may become known with the first reply
        return stop if source.ref.size is None else min(stop, source.ref.size)

    while at < end():
        await patience.ready()
        begin = at
        failure: Retry | None = None
        try:
            async with aclosing(_paced(source.stream(at, stop, tally), options)) as chunks:
                async for chunk in chunks:
                    yield at, chunk
                    at += len(chunk)
        except Retry as retry:
            failure = retry
        if at >= end():
            return
        if failure is not None:
            await patience.failed(failure, progress=at > begin and failure.event != "slow")
        elif at > begin:
            tally.retries += 1
        else:
            await patience.failed(Retry("the reply was empty", event="short", error=RangeNotSupportedError))


async def _paced(chunks: AsyncIterator[bytes], options: TransferOptions) -> AsyncGenerator[bytes]:
    """Pass chunks on, and give up a stream that waits for its source more than it should.

    Only the time spent waiting counts, so a slow consumer does no harm.
    """
    waited, brought = 0.0, 0
    clock = time.monotonic
    try:
        while True:
            before = clock()
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            waited += clock() - before
            brought += len(chunk)
            yield chunk
            if waited >= options.rate_window:
                if brought < options.min_rate * waited:
                    raise Retry(
                        f"the reply brought {brought} bytes in {waited:.0f} s, less than TransferOptions.min_rate of "
                        f"{options.min_rate:g} a second",
                        event="slow",
                    )
                waited, brought = 0.0, 0
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


async def fetch(source: Source, start: int, stop: int, options: TransferOptions, tally: Tally) -> bytes:
    """Read a span into memory; see `stream_span`. The caller says in the tally what the bytes were."""
    async with aclosing(stream_span(source, start, stop, options, tally)) as chunks:
        return b"".join([chunk async for _, chunk in chunks])
