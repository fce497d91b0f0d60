"""HTTP sessions of this process: one for each origin and role, without shared cookies or default credentials."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
import attrs
from fsspec.implementations.http import get_client as default_client

from ggufslice.io.address import basic_auth, without_userinfo
from ggufslice.io.loop import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ggufslice.io.http import HttpSource
    from ggufslice.io.sources import Source

__all__ = ["Session", "close_sessions", "receive_more", "session_for"]

_Key = tuple[str, str, int]
RECEIVED: Final = 2 << 20
"""The most bytes of one receiving; a connection has at most twice as many in memory."""


@attrs.frozen
class Route:
    """The way to an origin.

    Parameters
    ----------
    proxy
        The proxy's address, if there is one.
    proxy_headers
        What it wants to be told when it is asked for a tunnel.
    headers
        What it wants to be told with each request.
    """

    proxy: str | None = None
    proxy_headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)


@attrs.define
class Session:
    """A session, how its origin is reached, and who uses it.

    Parameters
    ----------
    client
        The session itself.
    route
        The proxy on the way to its origin.
    users
        The sources that use it.
    client_kwargs
        What it was made with; held, since its identity is part of the key.
    """

    client: aiohttp.ClientSession
    route: Route
    users: WeakSet[HttpSource] = attrs.field(factory=WeakSet)
    client_kwargs: Mapping[str, Any] = attrs.field(factory=dict)


_sessions: dict[_Key, Session] = {}
_parents: list[Session] = []
"""Sessions of the process that this one was forked from: never used, and never collected, since that would complain."""


async def session_for(origin: str, role: str, user: HttpSource | None, storage_options: Mapping[str, Any]) -> Session:
    """Return the session for an origin in a role.

    Parameters
    ----------
    origin
        Scheme, host and port.
    role
        ``"entry"`` where credentials may be sent, ``"target"`` behind a redirect to somewhere else.
    user
        The source that wants it; see `close_sessions`.
    storage_options
        For the role ``"entry"``: ``client_kwargs`` and ``get_client`` as fsspec's HTTP file system takes them.
    """
    client_kwargs: Mapping[str, Any] = storage_options.get("client_kwargs") or {}
    key = (origin, role, id(client_kwargs) if client_kwargs else 0)
    found = _sessions.get(key)
    if found is None:
        kwargs = {
            "connector": None
            if "connector" in client_kwargs
            else aiohttp.TCPConnector(limit=0),  # callers bound what is asked at once
            "cookie_jar": aiohttp.DummyCookieJar(),
            **client_kwargs,
            "auto_decompress": False,
            "requote_redirect_url": False,
            # aiohttp would take credentials from .netrc too, and send them to whichever host a redirect leads to.
            "trust_env": False,
        }
        route = _route(origin) if client_kwargs.get("trust_env", True) else Route()
        client = await storage_options.get("get_client", default_client)(**kwargs)
        found = _sessions[key] = Session(client, route, client_kwargs=client_kwargs)
    if user is not None:
        found.users.add(user)
    return found


def _route(origin: str) -> Route:
    """Return how the environment wants an origin to be reached."""
    parts = urlsplit(origin)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc) or proxy_bypass(parts.hostname or ""):
        return Route()
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    auth = basic_auth(proxy)
    headers = {} if auth is None else {"Proxy-Authorization": auth}
    # A tunnel is asked for with headers of its own; without one, the proxy reads those of the request.
    return Route(without_userinfo(proxy), headers, {} if parts.scheme == "https" else headers)


def receive_more(response: aiohttp.ClientResponse) -> None:
    """Let the event loop take more bytes at a time from a reply's connection than the 256 KiB that it would.

    Where the network is faster than this program, far more are waiting, and each call costs: it acknowledges, which makes
    the other side send. On loopback this saves a fifth of all CPU time. Loops and connections that don't offer it (uvloop,
    TLS) stay as they are.
    """
    transport = response.connection and response.connection.transport
    if isinstance(getattr(transport, "max_size", None), int):
        transport.max_size = RECEIVED  # type: ignore[union-attr]  # of asyncio's own transports


async def close_sessions(users: Iterable[Source]) -> None:
    """Take users off all sessions, and close the sessions that nobody uses any more."""
    for key, session in list(_sessions.items()):
        session.users.difference_update(users)
        if not session.users:
            del _sessions[key]
            await session.client.close()


async def _close_all() -> None:
    while _sessions:
        await _sessions.popitem()[1].client.close()


@atexit.register
def _close_at_exit() -> None:
    if _sessions:
        run(_close_all())


def _leave_to_parent() -> None:
    _parents.extend(_sessions.values())
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
