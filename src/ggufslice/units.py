"""Numbers as text and back: bytes with decimal units, parameter counts, lists of layer or expert numbers.

Decimal units everywhere (1 GB = 10^9 bytes), as download pages and disks count; only memory is given in GiB.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "blocks_by_count",
    "bytes_text",
    "count_text",
    "counted",
    "numbers_text",
    "parse_bytes",
    "parse_count",
    "parse_numbers",
    "percent_text",
    "ranges_text",
    "runs",
]

_BYTES = {"": 1, "B": 1} | {
    prefix + suffix: base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for suffix, base in (("", 1000), ("B", 1000), ("IB", 1024))
}
_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_RUN = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_SHOWN_RUNS = 12


def bytes_text(n: float) -> str:
    """Return bytes as text, such as ``56.10 GB``."""
    if n == 1:
        return "1 byte"
    return _scaled(n, (" bytes", " kB", " MB", " GB", " TB", " PB"))


def count_text(n: float) -> str:
    """Return a count of parameters as text, such as ``15.60 B``."""
    return _scaled(n, ("", " K", " M", " B", " T"))


def _scaled(n: float, units: Sequence[str]) -> str:
    if abs(n) < 1000:
        return f"{n:.0f}{units[0]}"
    for unit in units[1:]:
        n /= 1000
        if abs(n) < 999.995 or unit == units[-1]:
            break
    return f"{n:.2f}{unit}"


def counted(n: int, noun: str) -> str:
    """Return a number of things, such as ``1 request`` or ``2 requests``."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def percent_text(part: float) -> str:
    """Return a part of one as text with one decimal; what is less than all never reads 100.0%."""
    percent = 100 * part
    if 99.9 < percent < 100:
        percent = 99.9
    return f"{percent + 0.0:.1f}%".replace("-0.0%", "0.0%")


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending neighbours among `numbers` as (first, last), in order."""
    listed = list(numbers)
    breaks = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(listed)) if b != a + 1), len(listed)]
    return [(listed[a], listed[b - 1]) for a, b in pairwise(breaks) if b > a]


def _each(numbers: Iterable[int]) -> list[str]:
    return [str(a) if a == b else f"{a}-{b}" for a, b in runs(numbers)]


def ranges_text(numbers: Iterable[int]) -> str:
    """Return numbers in ascending order as words of a message, neighbours joined: ``0-11, 92``."""
    return ", ".join(_each(sorted(numbers)))


def blocks_by_count(counts: Mapping[int, int]) -> str:
    """Return which blocks have how many of something as words of a message: ``4 in blocks 0-1; 3 in block 2``."""
    by_count: dict[int, list[int]] = {}
    for block, count in counts.items():
        by_count.setdefault(count, []).append(block)
    return "; ".join(
        f"{count} in block{'s' if len(blocks) > 1 else ''} {ranges_text(blocks)}" for count, blocks in by_count.items()
    )


def numbers_text(numbers: Iterable[int], most: int = _SHOWN_RUNS) -> str:
    """Return a list of numbers as text, neighbours joined: ``[0-11,92]``; more than `most` are shortened in the middle."""
    texts = _each(numbers)
    if len(texts) > most:
        texts[most // 2 : -(most // 2)] = ["..."]
    return f"[{','.join(texts)}]"


def parse_numbers(text: str) -> list[int]:
    """Parse a list such as ``0-11,92``.

    Raises
    ------
    ValueError
        Something else than numbers and ranges from low to high.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ValueError(f"{part.strip()!r} is neither a number nor a range such as 0-11")
        numbers.extend(range(first, last + 1))
    return numbers


def parse_bytes(text: str) -> int:
    """Parse a number of bytes: ``40GB`` and ``40G`` are 40 x 10^9, ``40GiB`` is 40 x 2^30.

    Raises
    ------
    ValueError
        Not a number with such a unit.
    """
    return _parse(text, _BYTES, "a size such as 40GB or 512MiB")


def parse_count(text: str) -> int:
    """Parse a number of parameters: ``2.8e12``, ``2.8T``, ``671B``.

    Raises
    ------
    ValueError
        Not a number with such a unit.
    """
    return _parse(text, _COUNTS, "a count such as 2.8e12 or 671B")


def _parse(text: str, units: dict[str, int], what: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if not match or match[2].upper() not in units:
        raise ValueError(f"{text!r} is not {what}")
    number, unit = match[1], units[match[2].upper()]
    value = int(number) * unit if number.isdigit() else round(float(number) * unit)
    if value <= 0:
        raise ValueError(f"{text!r} is not {what}: it must be more than nothing")
    return value
