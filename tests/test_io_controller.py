"""The controller, on traces made by hand: it has no clock, so a trace is all that it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ggufslice.io.controller import Controller

if TYPE_CHECKING:
    from collections.abc import Callable

TICK = 0.25
MB = 10**6


def levels(rate: Callable[[int], float], *, ceiling: int = 16, seconds: float = 10) -> list[int]:
    """Return the levels that a controller passes when a level of n requests brings `rate(n)` MB/s."""
    controller = Controller(ceiling)
    seen = [controller.target]
    for _ in range(int(seconds / TICK)):
        target = controller.observe(int(rate(controller.target) * MB * TICK), TICK)
        if target != seen[-1]:
            seen.append(target)
    return seen


@pytest.mark.parametrize(
    ("name", "rate", "ceiling", "expected"),
    [
        ("each connection is limited: up to the ceiling", lambda n: 30 * n, 16, [4, 8, 16]),
        ("a ceiling that isn't a power of two", lambda n: 30 * n, 11, [4, 8, 11]),
        ("the link is full at once: stays low, probes by one", lambda _: 100, 16, [4, 8, 4, 5, 4]),
        ("full at eight: back to eight, then probes by one", lambda n: 30 * min(n, 8), 16, [4, 8, 16, 8, 9, 8]),
        ("more hurts", lambda n: 400 / n, 16, [4, 8, 4, 5, 4]),
        ("one job", lambda n: 30 * n, 1, [1]),
        ("two jobs", lambda n: 30 * n, 2, [2]),
    ],
)
def test_it_seeks_the_plateau(name: str, rate: Callable[[int], float], ceiling: int, expected: list[int]) -> None:
    assert levels(rate, ceiling=ceiling) == expected


def test_growth_below_five_percent_is_not_worth_a_connection() -> None:
    assert levels(lambda n: 100 * (1.04 if n > 4 else 1), seconds=4) == [4, 8, 4]
    assert levels(lambda n: 100 * (1.06 if n > 4 else 1), seconds=4) == [4, 8, 16, 8]


def test_the_tick_after_a_change_is_not_judged() -> None:
    controller = Controller(16)
    controller.observe(0, TICK)
    assert controller.observe(25 * MB, TICK) == 8
    assert controller.observe(1 * MB, TICK) == 8  # still the old connections, and new ones that connect
    assert controller.observe(50 * MB, TICK) == 16


def test_a_disturbed_moment_does_not_end_a_level() -> None:
    controller = Controller(16)
    while controller.target < 16:
        controller.observe(int(30 * controller.target * MB * TICK), TICK)
    trace = [480, 100, 60, 470]  # the first is not judged; in the next two something else kept the machine busy
    assert [controller.observe(int(rate * MB * TICK), TICK) for rate in trace] == [16] * 4
    assert {controller.observe(int(100 * MB * TICK), TICK) for _ in range(20)} == {16}


def test_a_slow_link_is_measured_for_longer_so_that_single_chunks_do_not_count() -> None:
    controller = Controller(16)
    # 4 MB/s in chunks of 256 KiB: one or two in a tick of 0.1 s, so single ticks differ by a factor of two.
    chunks = [2, 1, 2, 1, 2] * 16
    seen = [controller.observe(n * 262_144, 0.1) for n in chunks]
    assert list(dict.fromkeys(seen[:20])) == [4]
    assert list(dict.fromkeys(seen)) == [4, 8]
    assert seen[-1] == 4


def test_a_refusal_halves_and_holds() -> None:
    controller = Controller(16)
    while controller.target < 16:
        controller.observe(int(30 * controller.target * MB * TICK), TICK)
    assert controller.observe(MB, TICK, throttled=True) == 8
    steps = [controller.observe(int(30 * 8 * MB * TICK), TICK) for _ in range(int(5 / TICK))]
    assert set(steps) == {8}
    seen = [controller.observe(int(30 * controller.target * MB * TICK), TICK) for _ in range(int(4 / TICK))]
    assert list(dict.fromkeys(seen)) == [9, 10, 11, 12, 13, 14]  # by one at a time from now on


def test_refusals_end_at_one_request() -> None:
    controller = Controller(16)
    assert [controller.observe(0, TICK, throttled=True) for _ in range(5)] == [2, 1, 1, 1, 1]


def test_a_collapse_halves_after_ten_seconds_and_not_before() -> None:
    controller = Controller(16)
    while controller.target < 16:
        controller.observe(int(30 * controller.target * MB * TICK), TICK)
    for _ in range(20):
        controller.observe(int(480 * MB * TICK), TICK)
    slow = [controller.observe(int(100 * MB * TICK), TICK) for _ in range(41)]
    assert slow[:40] == [16] * 40
    assert slow[40] == 8
    held = [controller.observe(int(100 * MB * TICK), TICK) for _ in range(36)]
    assert set(held) == {8}


def test_a_rate_above_a_quarter_is_no_collapse() -> None:
    controller = Controller(4)
    for _ in range(8):
        controller.observe(int(100 * MB * TICK), TICK)
    assert {controller.observe(int(26 * MB * TICK), TICK) for _ in range(200)} == {4}


def test_silence_before_the_first_byte_changes_nothing() -> None:
    controller = Controller(16)
    assert {controller.observe(0, TICK) for _ in range(100)} == {4}


def test_no_job_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="ceiling"):
        Controller(0)
