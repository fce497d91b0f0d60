"""Numbers as text and back."""

from __future__ import annotations

import pytest

from ggufslice.units import (
    bytes_text,
    count_text,
    counted,
    numbers_text,
    parse_bytes,
    parse_count,
    parse_numbers,
    percent_text,
    runs,
)


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.00 kB"),
        (56_100_000_000, "56.10 GB"),
        (999_994, "999.99 kB"),
        (999_995, "1.00 MB"),  # never 1000.00 kB
        (594_000_000_000, "594.00 GB"),
        (3 * 10**18, "3000.00 PB"),
    ],
)
def test_bytes_have_decimal_units(n: int, shown: str) -> None:
    assert bytes_text(n) == shown


def test_counts_have_the_units_of_model_names() -> None:
    assert [count_text(n) for n in (7, 15_600_000_000, 2_800_000_000_000)] == ["7", "15.60 B", "2.80 T"]


def test_one_thing_is_no_plural() -> None:
    assert [counted(n, "request") for n in (0, 1, 2)] == ["0 requests", "1 request", "2 requests"]


def test_percents_of_less_than_all_are_not_all() -> None:
    shown = [percent_text(x) for x in (0, 0.5, 0.9994, 0.9996, 0.999999, 1, -0.0001, 1.25)]
    assert shown == ["0.0%", "50.0%", "99.9%", "99.9%", "99.9%", "100.0%", "0.0%", "125.0%"]


def test_numbers_are_joined_into_runs_and_read_back() -> None:
    assert runs([0, 1, 2, 5, 4, 7]) == [(0, 2), (5, 5), (4, 4), (7, 7)]
    assert runs([]) == []
    assert numbers_text([*range(12), 92]) == "[0-11,92]"
    assert parse_numbers("0-11, 92") == [*range(12), 92]
    assert parse_numbers("3") == [3]


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-", "1.5"])
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number nor a range"):
        parse_numbers(text)


def test_sizes_and_counts_are_read_with_their_units() -> None:
    sizes = {"40GB": 40 * 10**9, "40G": 40 * 10**9, "40gib": 40 << 30, "1.5 MB": 1_500_000, "512": 512, "7B": 7}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    counts = {"2.8e12": 2_800_000_000_000, "2.8T": 2_800_000_000_000, "671B": 671 * 10**9, "9007199254740993": 2**53 + 1}
    assert {text: parse_count(text) for text in counts} == counts


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "4 elephants", "1e"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 40GB"):
        parse_bytes(text)
