"""Reading byte ranges over HTTP."""

from __future__ import annotations

import asyncio
import platform
import time
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import attrs
from yarl import URL

from ggufslice.errors import AuthError, RangeNotSupportedError, SourceChangedError, SourceError, redact_url
from ggufslice.io.address import basic_auth, escaped, follow, lifetime, origin_of, redacted, without_userinfo
from ggufslice.io.reply import RETRIED, Part, check_reply
from ggufslice.io.retry import Retry, names_no_host
from ggufslice.io.sessions import receive_more, session_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ggufslice.io.options import TransferOptions
    from ggufslice.io.sources import Access
    from ggufslice.io.tally import Tally
    from ggufslice.spans import SourceRef

__all__ = ["REDIRECTS", "Entry", "HttpSource", "send"]

_USER_AGENT: Final = f"ggufslice/{version('ggufslice')}; python/{platform.python_version()}"
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
"""Statuses that send a request elsewhere."""
_EXPIRED: Final = frozenset({401, 403, 410})
_QUOTED: Final = 2048  # bytes read of a refusal's body
_MARGIN: Final = 60.0  # seconds before its end at which a signed address is given up
# Arguments of fsspec's HTTP file system that don't concern requests.
_NOT_REQUEST: Final = frozenset(
    {
        *("headers", "client_kwargs", "get_client", "encoded", "block_size", "simple_links", "same_scheme", "size_policy"),
        *("cache_type", "cache_options", "asynchronous", "loop", "use_listings_cache", "listings_expiry_time", "max_paths"),
        "skip_instance_cache",
    }
)


@attrs.frozen(kw_only=True)
class Entry:
    """Where a source is entered: its full address, and what is sent to that origin alone.

    Parameters
    ----------
    url
        With everything that a `SourceRef` leaves out.
    headers
        Credentials among them.
    storage_options
        As fsspec's HTTP file system takes them.
    """

    url: str = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False, factory=dict)
    storage_options: Mapping[str, Any] = attrs.field(repr=False, factory=dict)

    @property
    def origin(self) -> str:
        """Scheme, host and port: where the headers may go."""
        return origin_of(self.url)

    @property
    def request_options(self) -> dict[str, Any]:
        """The storage options that are arguments of a request."""
        return {key: value for key, value in self.storage_options.items() if key not in _NOT_REQUEST}


@attrs.frozen
class _Address:
    """Where bytes are read: the entry itself, or what it redirected to."""

    url: str = attrs.field(repr=False)
    entry: bool
    until: float | None = None  # monotonic clock


@attrs.define(eq=False)
class HttpSource:
    """A file behind HTTP.

    The first request walks from the entry through its redirects; the address found is used for all others until it is
    about to expire or is refused. Nothing but ranged GET is sent. Preconditions aren't: every reply's size and validators
    are compared here before its body is used, which holds with servers that don't know ``If-Match`` too.

    Parameters
    ----------
    ref
        Which file. Its validators are a strong ``etag``, or else ``last-modified``. A weak ETag is compared too, but
        proves nothing later.
    entry
        How it is reached.
    options
        Limits.
    """

    ref: SourceRef
    _entry: Entry = attrs.field(repr=False)
    _options: TransferOptions = attrs.field(repr=False)
    _address: _Address | None = attrs.field(default=None, init=False, repr=False)
    _weak: str = attrs.field(default="", init=False, repr=False)
    _walking: asyncio.Lock = attrs.field(factory=asyncio.Lock, init=False, repr=False)

    @classmethod
    def of(cls, ref: SourceRef, access: Access) -> Self:
        """Make the source for a reference."""
        url = access.url or ref.url
        storage_options = access.storage_options
        headers = dict(storage_options.get("headers") or {})
        auth = basic_auth(url)
        if auth:
            headers["Authorization"] = auth
        entry = Entry(url=escaped(without_userinfo(url)), headers=headers, storage_options=storage_options)
        return cls(ref, entry, access.options)

    @property
    def origin(self) -> str:
        """See `Source.origin`."""
        return self._entry.origin

    async def confirm(self, tally: Tally) -> None:
        """See `Source.confirm`: every reply has been compared."""

    async def stream(self, start: int, stop: int, tally: Tally) -> AsyncGenerator[bytes]:
        """See `Source.stream`."""
        response, part = await self._ask(start, stop, tally)
        if part is None:
            return
        receive_more(response)
        counts, at = tally.of(self.ref), start
        try:
            async for chunk in response.content.iter_any():
                counts.received += len(chunk)
                if at + len(chunk) > part.stop:
                    counts.wasted += len(chunk)
                    at += len(chunk)
                    break
                at += len(chunk)
                yield chunk
        except TimeoutError:
            raise Retry(f"the reply stalled after {at - start} of {part.stop - start} bytes", event="timeout") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = f"the reply broke off after {at - start} of {part.stop - start} bytes ({_why(error)})"
            raise Retry(reason) from None
        finally:
            # A connection whose reply was read to its end is back in the pool already, and this does nothing.
            response.close()
        if at > part.stop:
            raise RangeNotSupportedError(
                f"{self.ref.display}: the reply brings more than the bytes {start}-{part.stop - 1} that it states"
            )
        if at < part.stop:
            raise Retry(f"the reply ended after {at - start} of {part.stop - start} bytes", event="short")

    async def _ask(self, start: int, stop: int, tally: Tally) -> tuple[aiohttp.ClientResponse, Part | None]:
        """Send the request to where the bytes are, and check the reply; no part means the end of a file of unknown size."""
        renewed = False
        while True:
            address, response = await self._send(start, stop, tally)
            try:
                if not renewed and self._outdated(address, response.status):
                    renewed = True
                    self._give_up(address)
                    response.close()
                    tally.retries += 1
                    continue
                if response.status == 416 and self.ref.size is None:
                    self._end(response.headers.get("Content-Range", ""), start)
                    response.close()
                    return response, None
                if response.status in RETRIED or response.status < 400 or response.status == 412:
                    part = check_reply(
                        response.status, response.headers, start, stop, name=self.ref.display, size=self.ref.size
                    )
                    self._identify(response.headers, part.total, entry=address.entry)
                    return response, part
                raise await self._refusal(address, response, start, stop, tally)  # noqa: TRY301 - the reply gets closed
            except BaseException:
                response.close()
                raise

    def _outdated(self, address: _Address, status: int) -> bool:
        """Tell whether a walk from the entry may help: the address expired, or a range inside the file isn't found."""
        expired = address.url != self._entry.url and status in _EXPIRED
        return expired or (status == 416 and self.ref.size is not None)

    async def _send(self, start: int, stop: int, tally: Tally) -> tuple[_Address, aiohttp.ClientResponse]:
        """Request a range from the known address; find it first when there is none. One walk serves all that wait."""
        async with self._walking:
            address = self._address
            if address is None or (address.until is not None and time.monotonic() >= address.until):
                return await self._walk(start, stop, tally)
        tally.requests += 1
        return address, await self._get(address, start, stop)

    def _give_up(self, address: _Address) -> None:
        if self._address is address:
            self._address = None

    async def _walk(self, start: int, stop: int, tally: Tally) -> tuple[_Address, aiohttp.ClientResponse]:
        """Request a range from the entry and follow where it redirects to."""
        self._address = None
        address = _Address(self._entry.url, entry=True)
        for _ in range(self._options.max_redirects + 1):
            response = await self._get(address, start, stop)
            if response.status not in REDIRECTS:
                tally.requests += 1
                if response.status == 206:
                    self._address = address
                return address, response
            response.close()
            tally.resolves += 1
            if address.entry:
                self._resolved(response.headers)
            target = follow(address.url, self._location(response.headers.get("Location")), self.ref.display)
            # Once off the entry's origin, credentials stay behind for good, even where a redirect leads back.
            entry = address.entry and origin_of(target) == self.origin
            good = lifetime(target, response.headers)
            until = None if good is None else time.monotonic() + max(good - _MARGIN, good / 2)
            address = _Address(target, entry, until)
        raise SourceError(
            f"{self.ref.display} redirects more than {self._options.max_redirects} times in a row; check the address"
        )

    async def _get(self, address: _Address, start: int, stop: int) -> aiohttp.ClientResponse:
        """Send one ranged GET; credentials go to the entry's origin alone."""
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        return await send(self, address.url, headers, self._entry if address.entry else None, self._options)

    def _location(self, stated: str | None) -> str | None:
        """Return where a redirect leads, as stated; a Hub's mirror may have to correct it."""
        return stated

    def _resolved(self, headers: Mapping[str, str]) -> None:
        """Learn from a redirect of the entry's origin; a Hub tells there which file it is."""

    def _end(self, stated: str, start: int) -> None:
        """Learn the size of a file from a reply that says that it ends before `start`."""
        total = stated.rpartition("/")[2]
        # Without a word about the size: all bytes before `start` did come, so it ends there.
        self.ref = attrs.evolve(self.ref, size=int(total) if total.isdecimal() else start)

    def _identify(self, headers: Mapping[str, str], total: int | None, *, entry: bool) -> None:  # noqa: ARG002 - for a Hub
        """Learn which file this is from the first reply, and compare all others with it.

        A reply that no longer states what the first one did proves nothing, and counts as changed: RFC 9110, section 15.3.7,
        wants each partial reply to state what a whole one would.
        """
        if self.ref.size is None:
            self.ref = attrs.evolve(self.ref, size=total, validators=self.ref.validators or _validators(headers))
        etag = _opaque(headers)
        self._compare({"etag": etag, "last-modified": headers.get("Last-Modified", "")})
        if self._weak and etag and etag != self._weak:
            raise self._changed("etag", etag, self._weak)
        self._weak = self._weak or etag

    def _compare(self, found: Mapping[str, str]) -> None:
        """Compare validators that a reply states with those of the file that was opened.

        Raises
        ------
        SourceChangedError
            One differs.
        """
        expected = dict(self.ref.validators)
        for key in expected.keys() & found.keys():
            if expected[key] != found[key]:
                raise self._changed(key, found[key], expected[key])

    def _changed(self, key: str, found: str, expected: str) -> SourceChangedError:
        return SourceChangedError(
            f"{self.ref.display} is not the file that was opened any more: its {key} is {found or 'not stated'}, and was "
            f"{expected}; open it again"
        )

    async def _refusal(
        self, address: _Address, response: aiohttp.ClientResponse, start: int, stop: int, tally: Tally
    ) -> SourceError:
        """Return the error for a status that no other attempt will change."""
        status = response.status
        text = await self._words(address, response, tally)
        asked = f"{self.ref.display}: asked for bytes {start}-{stop - 1}"
        if address.entry:
            return self._refused(status, response.headers, text)
        if status in _EXPIRED:
            return AuthError(
                f"{asked}: the address that it redirects to ({redact_url(address.url)}) answered {status}, and a new "
                f"one did too{text}"
            )
        if status == 400:
            return SourceError(
                f"{asked} from {redact_url(address.url)}: it answered 400 to a sound request{text}. Some content "
                "networks don't serve very large single files (hundreds of GB) over plain HTTP: take a copy in shards, "
                "or download it with the `hf` command and open the local file"
            )
        return SourceError(f"{asked} from {redact_url(address.url)}: it answered {status}{text}")

    def _refused(self, status: int, headers: Mapping[str, str], text: str) -> SourceError:  # noqa: ARG002 - for a Hub
        """Return the error for a refusal by the entry's origin."""
        if status in {401, 403}:
            return AuthError(
                f"{self.ref.display}: the server answered {status}{text}; if it wants credentials, open it with "
                "storage_options={'headers': {'Authorization': ...}}"
            )
        if status in {404, 410}:
            return SourceError(f"{self.ref.display}: there is no such file (the server answered {status}{text})")
        return SourceError(f"{self.ref.display}: the server answered {status}{text}")

    async def _words(self, address: _Address, response: aiohttp.ClientResponse, tally: Tally) -> str:
        """Return what a refusal says, fit for a message."""
        data = b""
        with suppress(aiohttp.ClientError, OSError):
            data = await response.content.read(_QUOTED)
        counts = tally.of(self.ref)
        counts.received += len(data)
        counts.wasted += len(data)
        text = redacted(data.decode("utf-8", "replace"), address.url, self._entry.headers)
        return f": {text!r}" if text else ""


def _validators(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what identifies a file for certain: a strong ETag, or else its date."""
    if (etag := _opaque(headers)) and not headers["ETag"].startswith("W/"):
        return {"etag": etag}
    return {"last-modified": headers["Last-Modified"]} if "Last-Modified" in headers else {}


def _opaque(headers: Mapping[str, str]) -> str:
    """Return what an ETag compares by, strong or weak; empty where none is stated."""
    return headers.get("ETag", "").removeprefix("W/").strip('"')


async def send(
    user: HttpSource | None, url: str, headers: Mapping[str, str], entry: Entry | None, options: TransferOptions
) -> aiohttp.ClientResponse:
    """Send a GET and return the reply, whose body hasn't been read; redirects aren't followed.

    Parameters
    ----------
    user
        The source that asks, if it is one.
    url
        Where to, escaped.
    headers
        More headers.
    entry
        Whose credentials are sent along; None sends none.
    options
        Limits.

    Raises
    ------
    Retry, SourceError
        No reply. The messages are made anew, since those of aiohttp may hold a whole URL.
    """
    origin = origin_of(url)
    try:
        session = await session_for(
            origin, "target" if entry is None else "entry", user, {} if entry is None else entry.storage_options
        )
        return await session.client.get(
            URL(url, encoded=True),  # as it is: an escape written in another way breaks a signature
            headers={
                "User-Agent": _USER_AGENT,
                **session.route.headers,
                **({} if entry is None else entry.headers),
                **headers,
                # Or a server may compress, and count ranges of what it compressed.
                "Accept-Encoding": "identity",
            },
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=options.connect_timeout, sock_read=options.read_timeout),
            **{
                "proxy": session.route.proxy,
                "proxy_headers": session.route.proxy_headers,
                **({} if entry is None else entry.request_options),
            },
        )
    except TimeoutError:
        raise Retry(f"{origin} did not answer in time", event="timeout") from None
    except (aiohttp.ClientSSLError, aiohttp.InvalidURL, ValueError, TypeError) as error:
        raise SourceError(f"{redact_url(url)}: {_why(error)}") from None
    except (aiohttp.ClientError, OSError) as error:
        if names_no_host(error):
            raise SourceError(f"{redact_url(url)}: no host of that name is known; check the address") from None
        raise Retry(f"{origin}: {_why(error)}") from None


def _why(error: BaseException) -> str:
    """Return what went wrong with a connection, without the URLs that some messages hold."""
    cause = getattr(error, "os_error", error)
    return getattr(cause, "strerror", None) or type(error).__name__
