"""What bytes are read from: the protocol of a source, and the sources of this process.

A `SourceRef` says which file, a `Source` reads it. Sources are made where they are first needed, in each process anew, so
that whatever holds a `SourceRef` can be pickled and survives a fork. Credentials are no part of a `SourceRef`: `grant`
keeps them in memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ggufslice.io.local import LocalSource
from ggufslice.io.options import TransferOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from ggufslice.io.tally import Tally
    from ggufslice.spans import SourceRef

__all__ = ["Access", "LocalSource", "Source", "access_to", "adopt", "forget", "grant", "make_source", "source_of"]


class Source(Protocol):
    """A file whose bytes can be read in ranges; used on the event-loop thread alone."""

    ref: SourceRef
    """Which file. Where size and validators weren't known, the first reply fills them in (as a new `SourceRef`)."""

    @property
    def origin(self) -> str:
        """Whom its requests go to first: what shares a pause that a server asks for."""

    def stream(self, start: int, stop: int, tally: Tally) -> AsyncIterator[bytes]:
        """Read bytes `start` to `stop` in one attempt.

        Yields bytes from `start` on, at most ``stop - start``. An honest reply may bring fewer: then the caller goes on from
        there.

        Raises
        ------
        Retry
            Another attempt may do better.
        SourceError
            None will.
        """

    async def confirm(self, tally: Tally) -> None:
        """Check that the file is still the one that was opened.

        Free for sources that check it with every read; the others ask.

        Raises
        ------
        SourceChangedError
            It is another one.
        """


@attrs.frozen(kw_only=True)
class Access:
    """How a source is reached: what a `SourceRef` must not hold, kept in memory.

    Parameters
    ----------
    url
        The address with what is secret in it; None where the `SourceRef` has all of it.
    token, endpoint
        Of a Hugging Face Hub, as given to `open`.
    storage_options
        For the backend.
    options
        Limits.
    """

    url: str | None = attrs.field(default=None, repr=False)
    token: str | bool | None = attrs.field(default=None, repr=False)
    endpoint: str | None = None
    storage_options: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    options: TransferOptions = attrs.field(factory=TransferOptions)


_granted: dict[str, Access] = {}
_sources: dict[SourceRef, Source] = {}


def grant(url: str, access: Access) -> None:
    """Remember how the source at `url` (that of its `SourceRef`) is reached."""
    _granted[url] = access


def access_to(ref: SourceRef) -> Access:
    """Return how a source is reached: as granted in this process, else with the environment's defaults."""
    return _granted.get(ref.url) or Access()


def make_source(ref: SourceRef, access: Access) -> Source:
    """Make the source for a reference, which needn't know size and validators yet."""
    scheme, mark, _ = ref.url.partition("://")
    if not mark:
        return LocalSource(ref)
    # The backends are imported when they are needed: a local file needs none of them.
    if scheme in {"http", "https"}:
        from ggufslice.io.http import HttpSource  # noqa: PLC0415

        return HttpSource.of(ref, access)
    if scheme == "hf":
        from ggufslice.io.hub import HubSource  # noqa: PLC0415

        return HubSource.of(ref, access)
    from ggufslice.io.filesystem import FilesystemSource  # noqa: PLC0415

    return FilesystemSource(ref, access)


def source_of(ref: SourceRef) -> Source:
    """Return this process's source for a reference."""
    source = _sources.get(ref)
    if source is None:
        source = _sources[ref] = make_source(ref, access_to(ref))
    return source


def adopt(source: Source, access: Access) -> None:
    """Keep an opened source, with the connections and addresses that it has."""
    grant(source.ref.url, access)
    _sources[source.ref] = source


def forget(refs: Iterable[SourceRef]) -> list[Source]:
    """Let go of sources, and return them; they are made anew when they are needed again."""
    return [_sources.pop(ref) for ref in refs if ref in _sources]


# A child of a fork has another event loop, which its sources must belong to; what was granted stays.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sources.clear)
