"""All knobs of reading and moving bytes, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TransferOptions"]

_KIB = 1 << 10
_MIB = 1 << 20


def _at_least(least: float) -> Callable[[object, attrs.Attribute[Any], float], None]:
    def check(_options: object, field: attrs.Attribute[Any], value: float) -> None:
        if isinstance(value, bool) or value < least:
            raise ValueError(f"TransferOptions.{field.name} is {value!r}, not a number of at least {least:g}")

    return check


def _knob(default: float, least: float) -> Any:
    return attrs.field(default=default, validator=_at_least(least))


@attrs.frozen(kw_only=True)
class TransferOptions:
    """How bytes are asked for. Sizes are in bytes, times in seconds.

    Parameters
    ----------
    max_gap
        Spans of one file that lie at most so far apart are asked for together, and the bytes between them are thrown away.
        0 fetches not one byte too many.
    split_size
        The longest range of one request, and so the most that one connection has to bring.
    min_split
        No part of a run that is split has fewer bytes.
    max_jobs
        Requests at once.
    in_flight
        Bytes asked for at once, over all requests. Bodies are streamed, so this isn't memory.
    attempts
        Failures in a row without a byte of progress that end a span.
    backoff, backoff_max
        The pause after a failure is a random part of `backoff`, doubled with each failure in a row up to `backoff_max`.
    max_wait
        The longest pause that a server may ask for (``Retry-After``, ``RateLimit``); a longer one is an error.
    connect_timeout
        To make a connection.
    read_timeout
        Between two pieces of a reply.
    min_rate, rate_window
        A reply that brings less than `min_rate` bytes a second over `rate_window` seconds of waiting for it is given up and
        asked for again; `attempts` of those in a row end a span. A `min_rate` of 0 never gives up.
    header_first, header_next
        Bytes asked for at the start of the first shard and of each other one. A longer header is read on, doubling.
    header_budget
        The most that the header of a file may take.
    chunk_size
        Bytes of one read from a backend of fsspec, which holds each of them in memory.
    max_redirects
        Redirects in a row that are followed.
    checksums
        Whether to compute digests of what is written, so that a resume sees what the disk has lost. Costs about a second of
        CPU time for each GB.
    """

    max_gap: int = _knob(_MIB, 0)
    split_size: int = _knob(32 * _MIB, 1)
    min_split: int = _knob(8 * _MIB, 1)
    max_jobs: int = _knob(16, 1)
    in_flight: int = _knob(256 * _MIB, 1)
    attempts: int = _knob(5, 1)
    backoff: float = _knob(0.5, 0)
    backoff_max: float = _knob(30.0, 0)
    max_wait: float = _knob(300.0, 0)
    connect_timeout: float = _knob(20.0, 0.001)
    read_timeout: float = _knob(45.0, 0.001)
    min_rate: float = _knob(4096.0, 0)
    rate_window: float = _knob(30.0, 0.001)
    header_first: int = _knob(_MIB, 24)
    header_next: int = _knob(64 * _KIB, 24)
    header_budget: int = _knob(256 * _MIB, 24)
    chunk_size: int = _knob(4 * _MIB, 1)
    max_redirects: int = _knob(10, 0)
    checksums: bool = False
