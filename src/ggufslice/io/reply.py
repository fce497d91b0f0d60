"""The contract that a reply to a range request must keep; pure.

Nothing of a body is used before `check_reply` has accepted the headers.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import attrs

from ggufslice.errors import RangeNotSupportedError, SourceChangedError, SourceError
from ggufslice.io.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RETRIED", "Part", "check_reply", "http_date", "wait_asked"]

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which another attempt may do better."""


@attrs.frozen
class Part:
    """What an accepted reply brings: bytes up to `stop` (exclusive) of `total`, where that is known."""

    stop: int
    total: int | None


def check_reply(status: int, headers: Mapping[str, str], start: int, stop: int, *, name: str, size: int | None) -> Part:
    """Check status and headers of the reply to a request for bytes `start` to `stop` (exclusive).

    Parameters
    ----------
    status, headers
        Of the reply.
    start, stop
        As asked.
    name
        How messages call the source.
    size
        Its size, where known.

    Raises
    ------
    Retry
        The server is busy, or says something about another range.
    RangeNotSupportedError
        It doesn't serve this range, or not as it is.
    SourceChangedError
        The size or a precondition doesn't hold any longer.
    SourceError
        Any other status.
    """
    asked = f"{name}: asked for bytes {start}-{stop - 1}"
    if status in RETRIED:
        raise Retry(f"the server answered {status}", status=status, event="refused", after=wait_asked(headers))
    if status == 412:
        raise SourceChangedError(f"{name} is not the file that was opened any more (the server answered 412): open it again")
    if status not in {200, 206}:
        raise SourceError(f"{asked}: the server answered {status}, not 206")
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise RangeNotSupportedError(
            f"{asked} as they are, but the reply is encoded with {encoding!r}: the server or a proxy on the way compresses; "
            "use another address, or download the file"
        )
    length = _number(headers.get("Content-Length"))
    if status == 200:
        if size is not None and (start, stop) == (0, size) and length == size:
            return Part(size, size)
        body = "a body of unknown length" if length is None else f"{length} bytes"
        raise RangeNotSupportedError(
            f"{asked}, but the server answered 200 with {body}: it does not serve byte ranges; use another address, or "
            "download the file and open that"
        )
    if headers.get("Content-Type", "").lower().startswith("multipart/"):
        raise RangeNotSupportedError(f"{asked}, but the reply has several parts (multipart)")
    return _check_range(headers.get("Content-Range"), length, start, stop, name=name, size=size)


def _check_range(stated: str | None, length: int | None, start: int, stop: int, *, name: str, size: int | None) -> Part:
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", (stated or "").strip(), re.IGNORECASE)
    if match is None:
        raise _broken(f"the reply states the range {stated!r}" if stated else "the reply states no Content-Range")
    first, end, total = int(match[1]), int(match[2]) + 1, _number(match[3])
    if total is not None and size is not None and total != size:
        raise SourceChangedError(f"{name} has {total} bytes, but had {size} when it was opened: open it again")
    if first != start or not start < end <= stop or (total is not None and end > total):
        raise _broken(f"the reply states the range {stated!r} where bytes {start}-{stop - 1} were asked for")
    if length is not None and length != end - start:
        raise _broken(f"the reply states {length} bytes for the range {stated!r}")
    known = size if total is None else total
    return Part(end, known)


def _broken(reason: str) -> Retry:
    return Retry(reason, event="refused", error=RangeNotSupportedError)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None


def wait_asked(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a reply asks to wait: ``Retry-After`` in both forms, or ``RateLimit: "…";r=0;t=55``."""
    stated = headers.get("Retry-After", "").strip()
    if stated.isdecimal():
        return float(stated)
    if until := http_date(stated):
        # The server's own clock, where it tells: only the difference counts.
        now = http_date(headers.get("Date", "")) or datetime.now(UTC)
        return max(0.0, (until - now).total_seconds())
    limit = headers.get("RateLimit", "")
    reset = re.search(r"\bt=(\d+)", limit)
    if reset and re.search(r"\br=0\b", limit):
        return float(reset[1]) + 1
    return None


def http_date(text: str) -> datetime | None:
    """Parse a date as HTTP writes it; None for anything else."""
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
