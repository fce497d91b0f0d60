"""What URLs say: whose they are, which parts are secret, how long a signed one is good; pure."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit, urlunsplit

from ggufslice.errors import SourceError, redact_url
from ggufslice.io.reply import http_date

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["basic_auth", "escaped", "follow", "lifetime", "origin_of", "redacted", "without_secrets", "without_userinfo"]

_PORTS = {"http": 80, "https": 443}
_SECRET = re.compile(r"sig|token|secret|credential|password|passwd|auth|\bkey|api_?key|access_?key|policy", re.IGNORECASE)
_OPAQUE = re.compile(r"[\w+/=%~.-]{28,}")
_LEGAL = "%/:?#[]@!$&'()*+,;=~"


def origin_of(url: str) -> str:
    """Return scheme, host and port in one form: what two URLs of the same origin have in common.

    Raises
    ------
    SourceError
        It is no URL of HTTP.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        raise SourceError(f"{redact_url(url)!r} is not a URL of http or https") from None
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def escaped(url: str) -> str:
    """Escape what a URL can't hold, such as spaces, and leave every escape that is there as it is."""
    return quote(urlsplit(url)._replace(fragment="").geturl(), safe=_LEGAL)


def basic_auth(url: str) -> str | None:
    """Return the Authorization header for the user and password in a URL, if there are some."""
    userinfo, mark, _ = urlsplit(url).netloc.rpartition("@")
    if not mark:
        return None
    user, _, password = userinfo.partition(":")
    return "Basic " + b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def without_userinfo(url: str) -> str:
    """Drop user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def without_secrets(url: str) -> str:
    """Drop user, password, fragment and the secret parameters of the query, such as signatures."""
    parts = urlsplit(url)
    kept = [field for field in parts.query.split("&") if not _SECRET.search(unquote(field.partition("=")[0]))]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "&".join(kept), ""))


def follow(url: str, location: str | None, name: str) -> str:
    """Return where a redirect from `url` leads.

    Raises
    ------
    SourceError
        Nowhere, or from https to http: what is sent there, and what comes from there, could be read and changed on the way.
    """
    if not location:
        raise SourceError(f"{name}: the server redirects without saying where to")
    target = escaped(urljoin(url, location))
    origin_of(target)
    if url.startswith("https:") and not target.startswith("https:"):
        raise SourceError(
            f"{name} redirects from https to {redact_url(target)}, which isn't encrypted: refused; if you trust that "
            "address, open it directly"
        )
    return target


def lifetime(url: str, headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds a signed URL is good from the moment on when `headers` brought it; None if it doesn't say.

    Understands ``X-Amz-Date`` with ``X-Amz-Expires``, and ``Expires`` in seconds of the epoch as CloudFront writes it.
    """
    query = {key.lower(): value for key, value in parse_qsl(urlsplit(url).query)}
    # The server's own clock, where it tells: ours may be wrong.
    now = http_date(headers.get("Date", "")) or datetime.now(UTC)
    try:
        if "x-amz-expires" in query:
            signed = datetime.strptime(query["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            return float(query["x-amz-expires"]) - (now - signed).total_seconds()
        if "expires" in query:
            return float(query["expires"]) - now.timestamp()
    except (KeyError, ValueError):
        pass
    return None


def redacted(text: str, url: str, headers: Mapping[str, str]) -> str:
    """Make a server's words fit for a message: short, and without anything secret that was sent to it."""
    secrets = {value for _, value in parse_qsl(urlsplit(url).query)} | {word for v in headers.values() for word in v.split()}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, "…").replace(quote(secret, safe=""), "…")
    return _OPAQUE.sub("…", " ".join(text.split()))[:200]
