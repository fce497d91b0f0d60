"""Counting what a transfer moves, while it moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ggufslice.accounting import SourceTransfer, Transfer
from ggufslice.errors import redact_url

if TYPE_CHECKING:
    from ggufslice.spans import SourceRef

__all__ = ["Counts", "Tally"]


@attrs.define
class Counts:
    """Bytes that came from one source.

    `received` is counted by the source, where bytes arrive. Whoever takes a chunk says what it was: `payload`, `gap`,
    `header` or `wasted`. A source counts as `wasted` what it does not hand on.
    """

    payload: int = 0
    gap: int = 0
    header: int = 0
    wasted: int = 0
    received: int = 0


@attrs.define
class Tally:
    """Counters of one transfer; used on the event loop's thread alone.

    Parameters
    ----------
    requests
        Range requests sent, retries included.
    resolves
        Calls that brought an address instead of bytes: redirects, and calls to a Hub's API.
    retries
        Requests that repeated or continued an earlier one.
    """

    requests: int = 0
    resolves: int = 0
    retries: int = 0
    _counts: dict[str, Counts] = attrs.field(factory=dict, init=False)

    def of(self, ref: SourceRef) -> Counts:
        """Return the counts of a source, to add to."""
        counts = self._counts.get(ref.url)
        if counts is None:
            counts = self._counts[ref.url] = Counts()
        return counts

    def transfer(self, *, seconds: float = 0.0, resumed: int = 0) -> Transfer:
        """Return what was counted so far.

        Parameters
        ----------
        seconds
            Wall time of the transfer.
        resumed
            Bytes of the result that an earlier run had written.
        """
        return Transfer(
            sources=tuple(
                SourceTransfer(redact_url(url), c.payload, c.gap, c.header, c.wasted) for url, c in self._counts.items()
            ),
            received=sum(c.received for c in self._counts.values()),
            resumed=resumed,
            requests=self.requests,
            resolves=self.resolves,
            retries=self.retries,
            seconds=seconds,
        )
