"""One HTTP request with http.client alone, which follows nothing and hides nothing."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen
class Got:
    """A reply, read to its end; `error` is what the reading ended with."""

    status: int
    headers: dict[str, str]
    body: bytes
    error: type[BaseException] | None = None


def fetch(
    url: str, byte_range: str = "", method: str = "GET", read: int | None = None, headers: Mapping[str, str] | None = None
) -> Got:
    """Ask without following redirects, on a connection of its own; stop after `read` bytes of the body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    sent = dict(headers or {})
    if byte_range:
        sent["Range"] = f"bytes={byte_range}"
    body = bytearray()
    error: type[BaseException] | None = None
    try:
        connection.request(method, url[url.index(parts.netloc) + len(parts.netloc) :], headers=sent)
        reply = connection.getresponse()
        status = reply.status
        told = {name.lower(): value for name, value in reply.getheaders()}
        try:
            while len(body) != read and (byte := reply.read(1)):
                body += byte
        except (OSError, http.client.HTTPException) as ending:
            error = type(ending)
        if read is None and error is None and reply.length:
            error = http.client.IncompleteRead  # read(1) says nothing of the bytes that are missing
        reply.close()
    finally:
        connection.close()
    return Got(status, told, bytes(body), error)
