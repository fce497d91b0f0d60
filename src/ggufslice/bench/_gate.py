"""The gate: is there any output to speak of? Pure functions of what was measured."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

import attrs

from ggufslice.units import percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufslice.bench._perplexity import Perplexity
    from ggufslice.bench._server import Sample

__all__ = ["Check", "Gate", "judge"]

PASS, FAIL, BY_DESIGN, NOT_MEASURED = "PASS", "FAIL", "FAIL AS DESIGNED", "NOT MEASURED"

# Greedy text of a small but sound model repeats itself after a while, so the limits are those of text that is nothing but
# repetition: fewer than half of its 4-grams are new, or one token fills a third of it.
_MIN_DISTINCT = 0.5
_MAX_REPLACED = 0.05
_MAX_LOOP = 1 / 3
_SHARES = frozenset({"health", "distinct 4-grams", "replacement characters", "longest run of one token"})
_MIN_TOKENS = 16  # below this, shares of 4-grams mean nothing


@attrs.frozen
class Check:
    """One check.

    Parameters
    ----------
    name
        What is looked at.
    value
        The number found; None where it wasn't measured.
    limit
        The number that it is held against, in words.
    passed
        None where it wasn't measured.
    """

    name: str
    value: float | None
    limit: str
    passed: bool | None

    @property
    def shown(self) -> str:
        """The number as text."""
        if self.value is None:
            return "not a number" if self.passed is False else "not measured"
        return percent_text(self.value) if self.name in _SHARES else f"{self.value:,.2f}"

    def __str__(self) -> str:
        return f"{self.name}: {self.shown} ({self.limit})"


@attrs.frozen
class Gate:
    """A verdict and the numbers that it rests on.

    Parameters
    ----------
    verdict
        ``PASS``, ``FAIL``, ``FAIL AS DESIGNED`` (the recipe says that it is no model to use) or ``NOT MEASURED``.
    checks
        The checks.

    Notes
    -----
    PASS says that none of these few checks found anything. It doesn't say that the model is any good.
    """

    verdict: str
    checks: tuple[Check, ...]


def judge(
    sample: Sample | None,
    perplexity: Perplexity | None = None,
    *,
    vocabulary: int | None = None,
    max_perplexity: float | None = None,
    experimental: bool = False,
) -> Gate:
    """Judge a sample and, where a text was given, a perplexity.

    Parameters
    ----------
    sample
        What the model wrote; only a greedy sample is judged for degeneration.
    perplexity
        On a text.
    vocabulary
        Tokens of the vocabulary: a perplexity that isn't below is no better than guessing evenly.
    max_perplexity
        A stricter limit.
    experimental
        Whether failing is what the recipe is for.
    """
    checks = [*_health(sample), *_degeneration(sample), _perplexity(perplexity, vocabulary, max_perplexity)]
    results = {check.passed for check in checks}
    if results == {None}:
        verdict = NOT_MEASURED
    elif False in results:
        verdict = BY_DESIGN if experimental else FAIL
    else:
        verdict = PASS
    return Gate(verdict, tuple(checks))


def _health(sample: Sample | None) -> list[Check]:
    limit = "of the tokens asked for, or an end of text"
    if sample is None:
        return [Check("health", None, limit, None), Check("timings", None, "reported by the server", None)]
    complete = sample.returned == sample.asked or (sample.stop == "eos" and sample.returned > 0)
    timed = sample.prompt_per_second is not None and (sample.per_second is not None or sample.returned < 2)
    return [
        Check("health", sample.returned / sample.asked if sample.asked else None, limit, complete),
        Check("timings", sample.per_second, "tokens/s, reported by the server", timed),
    ]


def _degeneration(sample: Sample | None) -> list[Check]:
    names = (
        ("distinct 4-grams", f"at least {_MIN_DISTINCT:.0%} of them"),
        ("replacement characters", f"at most {_MAX_REPLACED:.0%} of the text"),
        ("longest run of one token", f"at most {_MAX_LOOP:.0%} of the tokens"),
    )
    if sample is None or sample.temperature != 0:
        return [Check(name, None, limit, None) for name, limit in names]
    units: Sequence[int] | Sequence[str] = sample.tokens or list(sample.text)
    distinct = distinct_ngrams(units)
    replaced = sample.text.count("\N{REPLACEMENT CHARACTER}") / len(sample.text) if sample.text else None
    loop = longest_run(units) / len(units) if len(units) >= _MIN_TOKENS else None
    return [
        Check(name, value, limit, None if value is None else good)
        for (name, limit), value, good in zip(
            names,
            (distinct, replaced, loop),
            (
                distinct is not None and distinct >= _MIN_DISTINCT,
                replaced is not None and replaced <= _MAX_REPLACED,
                loop is not None and loop <= _MAX_LOOP,
            ),
            strict=True,
        )
    ]


def distinct_ngrams(units: Sequence[int] | Sequence[str], n: int = 4) -> float | None:
    """Return the share of different ones among all runs of `n` neighbours; None of too short a text."""
    if len(units) < max(n, _MIN_TOKENS):
        return None
    grams = [tuple(units[i : i + n]) for i in range(len(units) - n + 1)]
    return len(set(grams)) / len(grams)


def longest_run(units: Sequence[int] | Sequence[str]) -> int:
    """Return how often in a row one token comes at most."""
    return max((len(list(run)) for _, run in groupby(units)), default=0)


def _perplexity(measured: Perplexity | None, vocabulary: int | None, maximum: float | None) -> Check:
    limit = min((float(x) for x in (vocabulary, maximum) if x), default=math.inf)
    words = f"below {limit:,.4g}" if limit < math.inf else "a finite number"
    if measured is None:
        return Check("perplexity", None, words, None)
    return Check("perplexity", measured.value, words, measured.value is not None and measured.value < limit)
