"""The gate: numbers worked out by hand, and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from _results import sample
from ggufslice.bench import Gate, Perplexity, judge
from ggufslice.bench._gate import distinct_ngrams, longest_run

if TYPE_CHECKING:
    from ggufslice.bench import Check


def check(gate: Gate, name: str) -> Check:
    return next(c for c in gate.checks if c.name == name)


@pytest.mark.parametrize(
    ("units", "share"),
    [
        (list(range(20)), 1.0),
        ([7] * 20, 1 / 17),  # 17 runs of 4, all the same
        ([1, 2] * 10, 2 / 17),
        ([*range(16), 0, 1, 2, 3], 16 / 17),  # the last run is the first again
        ([1, 2, 3], None),
        (list(range(15)), None),  # too short for a share to mean anything
        ("abcdefghijklmnop", 1.0),
    ],
)
def test_distinct_4_grams(units: Any, share: float | None) -> None:
    assert distinct_ngrams(units) == share


@pytest.mark.parametrize(("units", "run"), [([], 0), ([1], 1), ([1, 1, 2, 2, 2, 1], 3), ("aab", 2)])
def test_the_longest_run(units: Any, run: int) -> None:
    assert longest_run(units) == run


def test_a_sound_sample_passes_and_every_number_is_kept() -> None:
    gate = judge(sample())

    assert gate.verdict == "PASS"
    assert {c.name: c.value for c in gate.checks} == {
        "health": 1.0,
        "timings": 81.3,
        "distinct 4-grams": 1.0,
        "replacement characters": 0.0,
        "longest run of one token": 1 / 48,
        "perplexity": None,
    }
    assert check(gate, "perplexity").passed is None


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"returned": 47}, "health", 47 / 48),
        ({"returned": 0, "tokens": (), "text": "", "stop": "eos"}, "health", 0.0),
        ({"per_second": None}, "timings", None),
        ({"tokens": (5,) * 48}, "longest run of one token", 1.0),
        ({"tokens": (1, 2) * 24}, "distinct 4-grams", 2 / 45),
        ({"text": "ab\ufffd\ufffd"}, "replacement characters", 0.5),
    ],
)
def test_what_fails(changes: dict[str, Any], name: str, value: float | None) -> None:
    gate = judge(sample(**changes))

    assert gate.verdict == "FAIL"
    assert check(gate, name).passed is False
    assert check(gate, name).value == value
    assert judge(sample(**changes), experimental=True).verdict == "FAIL AS DESIGNED"


def test_an_end_of_text_is_healthy_and_one_token_needs_no_speed() -> None:
    assert check(judge(sample(returned=5, stop="eos")), "health").passed is True
    assert check(judge(sample(returned=1, asked=1, tokens=(3,), per_second=None)), "timings").passed is True


def test_limits_are_limits() -> None:
    third = (9,) * 16 + tuple(range(32))
    assert check(judge(sample(tokens=third)), "longest run of one token").passed is True
    more = (9,) * 17 + tuple(range(31))
    assert check(judge(sample(tokens=more)), "longest run of one token").passed is False
    assert check(judge(sample(text="a" * 19 + "\ufffd")), "replacement characters").passed is True


def test_text_stands_in_where_the_server_gives_no_tokens() -> None:
    assert check(judge(sample(tokens=(), text="a" * 40)), "longest run of one token").value == 1.0


def test_only_a_greedy_sample_is_judged_for_degeneration() -> None:
    assert check(judge(sample(temperature=0.8)), "distinct 4-grams").passed is None


@pytest.mark.parametrize(
    ("value", "vocabulary", "limit", "passed"),
    [
        (31.2, 4096, None, True),
        (4096.0, 4096, None, False),  # no better than guessing evenly
        (31.2, 4096, 30.0, False),
        (31.2, None, None, True),
        (None, 4096, None, False),  # no number
    ],
)
def test_perplexity(value: float | None, vocabulary: int | None, limit: float | None, *, passed: bool) -> None:
    gate = judge(sample(), Perplexity(value, None, 512, 4, "t"), vocabulary=vocabulary, max_perplexity=limit)

    assert check(gate, "perplexity").passed is passed
    assert gate.verdict == ("PASS" if passed else "FAIL")


def test_nothing_measured() -> None:
    gate = judge(None, experimental=True)

    assert gate.verdict == "NOT MEASURED"
    assert {c.passed for c in gate.checks} == {None}
    assert {c.shown for c in gate.checks} == {"not measured"}


def test_no_number_is_told_from_not_measured() -> None:
    assert check(judge(None, Perplexity(None, None, 512, 4, "t")), "perplexity").shown == "not a number"
