"""Plans of which experts to keep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ggufslice.errors import FormatError, SourceError, UnsupportedCutError
from ggufslice.ops import select_experts
from ggufslice.selection import ExpertPlan, Rule

if TYPE_CHECKING:
    from pathlib import Path

EIGHT = {0: 8, 1: 8, 3: 8}


def test_rules() -> None:
    assert ExpertPlan.first(3).resolve(EIGHT)[0] == dict.fromkeys(EIGHT, (0, 1, 2))
    assert ExpertPlan.strided(3).resolve({0: 8})[0] == {0: (0, 2, 5)}
    assert ExpertPlan.strided(8).resolve({0: 8})[0] == {0: tuple(range(8))}
    assert ExpertPlan.strided(4).resolve({0: 16})[0] == {0: (0, 4, 8, 12)}


def test_chance_is_the_same_everywhere_and_differs_by_block_and_seed() -> None:
    chosen = ExpertPlan.random(4, seed=1).resolve({0: 32, 1: 32})[0]
    assert chosen == ExpertPlan.random(4, seed=1).resolve({0: 32, 1: 32})[0]
    assert chosen == {0: (5, 9, 13, 29), 1: (1, 7, 18, 24)}
    assert chosen != ExpertPlan.random(4, seed=2).resolve({0: 32, 1: 32})[0]
    assert ExpertPlan.random(32).resolve({0: 32})[0] == {0: tuple(range(32))}
    counts = [0] * 8
    for block in range(200):
        for i in Rule("random", 2, 0).ids(block, 8):
            counts[i] += 1
    assert min(counts) > 30  # of 50 expected


@pytest.mark.parametrize("rule", [ExpertPlan.first, ExpertPlan.strided, ExpertPlan.random])
def test_rules_that_can_not_be(rule: Any) -> None:
    with pytest.raises(UnsupportedCutError, match="block 0 has 8 experts: 9 of them can't be kept"):
        rule(9).resolve(EIGHT)
    for bad, error in ((0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error):
            rule(bad)


def test_a_plan_covers_every_block_or_says_which_it_does_not() -> None:
    with pytest.raises(UnsupportedCutError, match="nothing of the experts of blocks 1, 3; name all of 0-1, 3"):
        ExpertPlan({0: [1]}).resolve(EIGHT)
    with pytest.raises(UnsupportedCutError, match=r"block 2 has no routed experts .* those with experts are 0-1, 3"):
        ExpertPlan({0: [1], 1: [1], 2: [1], 3: [1]}).resolve(EIGHT)


def test_mtp_blocks_that_were_not_counted_fall_back_and_are_noted() -> None:
    plan = ExpertPlan({0: [4, 5], 1: [6, 7]}, Rule("first", 2))
    ids, notes = plan.resolve(EIGHT, mtp=[3])
    assert ids == {0: (4, 5), 1: (6, 7), 3: (0, 1)}
    assert notes == ("experts of MTP block 3 were not counted: kept the first 2",)
    with pytest.raises(UnsupportedCutError, match="nothing of the experts of block 3"):
        plan.resolve(EIGHT)


def test_plans_are_brought_along_when_layers_are_cut() -> None:
    plan = ExpertPlan({0: [1], 1: [2], 3: [3]}).for_layers([0, 3])
    assert plan.keep == {0: (1,), 1: (3,)}
    chance = ExpertPlan.random(2, seed=5)
    all_of = chance.resolve(dict.fromkeys(range(6), 8))[0]
    some = chance.for_layers([1, 4, 5]).resolve(dict.fromkeys(range(3), 8))[0]
    assert some == {0: all_of[1], 1: all_of[4], 2: all_of[5]}
    twice = chance.for_layers([1, 4, 5]).for_layers([2, 0]).resolve({0: 8, 1: 8})[0]
    assert twice == {0: all_of[5], 1: all_of[1]}


@pytest.mark.parametrize(
    "plan",
    [
        ExpertPlan.first(3),
        ExpertPlan.random(3, seed=9).for_layers([2, 4]),
        ExpertPlan({0: [3, 1], 2: [0, 2]}, Rule("first", 2), "imatrix x by count"),
        ExpertPlan.of([4, 2]),
        ExpertPlan.of({1: [4, 2]}),
    ],
)
def test_plans_are_saved_and_read_back(plan: ExpertPlan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    read = ExpertPlan.from_json(path)
    assert (read.keep, read.rule, read.blocks) == (plan.keep, plan.rule, plan.blocks)
    assert read.source == (plan.source or "file plan.json")
    assert select_experts(json.loads(path.read_text())) == select_experts(plan)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"layers": {"0": {"keep": [5, 1]}, "3": {"keep": [0, 2]}}}', {0: (5, 1), 3: (0, 2)}),
        ('{"layers": {"0": [5, 1]}, "model": "x"}', {0: (5, 1)}),
        ('{"0": [5, 1], "3": [0, 2]}', {0: (5, 1), 3: (0, 2)}),
        ('{"0": [5, 1]}\n{"3": [0, 2]}\n', {0: (5, 1), 3: (0, 2)}),
    ],
)
def test_forms_of_other_tools(text: str, expected: dict[int, Any], tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_text(text)
    assert ExpertPlan.from_json(path).keep == expected


def test_one_list_is_for_all_blocks(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[7, 2, 5]")
    assert ExpertPlan.from_json(path).resolve(EIGHT)[0] == dict.fromkeys(EIGHT, (7, 2, 5))
    assert ExpertPlan.from_json(path, n=2).resolve(EIGHT)[0] == dict.fromkeys(EIGHT, (2, 7))


def test_ranked_lists_keep_their_best_in_the_models_order(tmp_path: Path) -> None:
    path = tmp_path / "ranking.jsonl"
    path.write_text('{"0": [5, 1, 7, 0]}\n{"1": [2, 6, 3, 4]}\n')
    assert ExpertPlan.from_json(path, n=3).keep == {0: (1, 5, 7), 1: (2, 3, 6)}
    with pytest.raises(ValueError, match="block 0 lists 4 experts: 5 of them can't be kept"):
        ExpertPlan.from_json(path, n=5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a plan of experts"),
        ("not json", "not a plan of experts"),
        ('{"layers": {"0": {"drop": [1]}}}', "not a plan of experts"),
        ('{"0": [1, 1]}', "expert 1 is there twice"),
        ('{"0": []}', "keep at least one"),
        ('{"zero": [1]}', "'zero'"),
        ('{"0": [1]}\n{"0": [2]}', "a block is there twice"),
        ('{"0": [1.5]}', "expected a whole number, got 1.5"),
        ('"0"', "not a plan of experts"),
        ("null", "not a plan of experts"),
        ('{"rule": {"kind": "best", "n": 3}}', "not a plan of experts"),
    ],
)
def test_files_that_are_no_plan(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=said) as caught:
        ExpertPlan.from_json(path)
    assert str(path) in str(caught.value)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere\.json: the plan of experts can't be read \(No such file.*expected"):
        ExpertPlan.from_json(tmp_path / "nowhere.json")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\xff\xfe")
    with pytest.raises(FormatError, match=r"model\.gguf: not a plan of experts"):
        ExpertPlan.from_json(tmp_path / "model.gguf")
