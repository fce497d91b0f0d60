"""What a transfer moved: the figures that a receipt carries."""

from __future__ import annotations

import attrs

__all__ = ["SourceTransfer", "Transfer"]


@attrs.frozen
class SourceTransfer:
    """Bytes that came from one source file.

    Parameters
    ----------
    source
        Its redacted URL or path.
    payload
        Bytes that were written to the result.
    gap
        Bytes between neighbouring spans that were read and thrown away to save a request.
    header
        Bytes of headers.
    wasted
        Bytes that arrived and could not be used, such as those of replies that broke their contract.
    """

    source: str
    payload: int = 0
    gap: int = 0
    header: int = 0
    wasted: int = 0

    def __add__(self, other: SourceTransfer) -> SourceTransfer:
        """Add what came from the same source at another time."""
        return SourceTransfer(
            self.source,
            self.payload + other.payload,
            self.gap + other.gap,
            self.header + other.header,
            self.wasted + other.wasted,
        )

    @property
    def received(self) -> int:
        """All bytes that came from this source."""
        return self.payload + self.gap + self.header + self.wasted


@attrs.frozen
class Transfer:
    """What a write moved.

    Parameters
    ----------
    sources
        Bytes by source file.
    received
        Bytes that arrived, counted where they arrive and not from the parts, so that ``payload + gap + header + wasted ==
        received`` is a check.
    resumed
        Bytes of the result that an earlier, killed run had written.
    requests
        Range requests sent, retries included.
    resolves
        Calls that resolved a name to an address, such as those to a Hugging Face Hub.
    retries
        Requests that repeated or continued an earlier one.
    seconds
        Wall time.
    """

    sources: tuple[SourceTransfer, ...] = ()
    received: int = 0
    resumed: int = 0
    requests: int = 0
    resolves: int = 0
    retries: int = 0
    seconds: float = 0.0

    def __add__(self, other: Transfer) -> Transfer:
        """Put two transfers, one after the other, together."""
        sources = {source.source: source for source in self.sources}
        for source in other.sources:
            sources[source.source] = sources.get(source.source, SourceTransfer(source.source)) + source
        return Transfer(
            tuple(sources.values()),
            self.received + other.received,
            self.resumed + other.resumed,
            self.requests + other.requests,
            self.resolves + other.resolves,
            self.retries + other.retries,
            self.seconds + other.seconds,
        )

    @property
    def payload(self) -> int:
        """Bytes that were written to the result."""
        return sum(s.payload for s in self.sources)

    @property
    def gap(self) -> int:
        """Bytes between spans that were read and thrown away."""
        return sum(s.gap for s in self.sources)

    @property
    def header(self) -> int:
        """Bytes of headers."""
        return sum(s.header for s in self.sources)

    @property
    def wasted(self) -> int:
        """Bytes that could not be used."""
        return sum(s.wasted for s in self.sources)
