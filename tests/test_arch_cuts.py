"""Layer cuts of every architecture, judged by an independent reading of what llama.cpp derives from a layer's number."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

import loader_rules
from _views import opened
from ggufslice import ops
from ggufslice.arch._check import check_layers
from ggufslice.arch._table import ARCHITECTURES
from ggufslice.testing import Typed, build_gguf, synthetic

if TYPE_CHECKING:
    from pathlib import Path

    from ggufslice.view import GGUF

pytestmark = pytest.mark.models

N = 12
NO_CUT = {"clip", "gptj", "wavtokenizer-dec", "eagle3", "gemma3n", "refact"}
# Judged by tests of their own: several stacks, layers that read from others, or values that depend on the number of layers.
APART = {
    "t5",
    "t5encoder",
    "hrm_text",
    "rwkv6",
    "rwkv7",
    "arwkv7",
    "minimax-01",
    "minicpm3",
    "glm-dsa",
    "hy_v4",
    "glm5-next",
}
APART |= {"gemma4", "gemma4-assistant", "deepseek4", "kimi-k3"}
HALF = [i % 2 for i in range(N)]
NAMES = sorted(set(ARCHITECTURES) - NO_CUT - APART)
KEYS: dict[str, dict[str, Any]] = {
    "llama4": {"interleave_moe_layer_step": 2},
    "nomic-bert-moe": {"moe_every_n_layers": 2},
    "granite_swa": {"attention.rope_pattern": [1] * N},
    "modern-bert": {"attention.sliding_window_pattern": HALF},
}
SETS = [
    *(tuple(i for i in range(N) if i != gone) for gone in range(N)),
    *(tuple(i for i in range(N) if i not in gone) for gone in combinations(range(0, N, 3), 2)),
    *(tuple(range(n)) for n in (1, 2, 3, 4, 6, 8)),
    *(tuple(range(start, start + 4)) for start in (4, 8)),
    tuple(range(0, N, 2)),
    tuple(range(1, N, 2)),
    (0, 1, 2, 3, 8, 9, 10, 11),
    (3, 7, 11),
    (0, 11),
]


@cache
def entries(path: Path) -> dict[str, dict[str, Any]]:
    data: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return {name: entry for name, entry in data.items() if not name.startswith(("_", "("))}


@cache
def model(name: str, path: Path, mtp: int = 0) -> GGUF:
    """Return a small model under an architecture's name, with all that its loader could read of its layers."""
    entry = entries(path)[name]
    keys: dict[str, Any] = {
        "attention.sliding_window": 64,
        "leading_dense_block_count": 2 if "dense_lead_rule" in entry else 0,
    }
    if entry.get("swa_pattern", {}).get("mode", "").startswith("array required"):
        keys["attention.sliding_window_pattern"] = HALF + [0] * mtp
    if loader_rules.is_hybrid(entry) and "recurrent_pattern" not in entry:
        keys["attention.head_count_kv"] = [int(i % 3 == 1) for i in range(N)] + [1] * mtp
        if name.startswith("nemotron_h"):
            keys["feed_forward_length"] = [64 * (i % 3 == 2) for i in range(N)] + [0] * mtp
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        if f"{name}.{key}" in entry["per_layer_array_keys"]:
            keys[key] = Typed([float(i) for i in range(N + mtp)], "arr", "f32")
    for key in entry["per_layer_array_keys"]:
        if key.startswith("xielu"):
            keys[key] = Typed([float(i) for i in range(N)], "arr", "f32")
    keys |= KEYS.get(name, {})
    full = {
        key if key.startswith("xielu") else f"{name}.{key}": Typed(value, "arr", "u32") if isinstance(value, list) else value
        for key, value in keys.items()
    }
    experts = 8 if entry["moe"] else 0
    return opened(build_gguf(*synthetic(name, layers=N, experts=experts, mtp=mtp, metadata=full)))


def refusals(view: GGUF) -> list[str]:
    return [str(finding) for finding in check_layers(view) if finding.refuse]


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_cuts_keep_every_layer_what_it_is(name: str, shared: Path) -> None:
    path = shared / "architectures.json"
    entry, whole = entries(path)[name], model(name, path)
    before = loader_rules.facts(entry, whole)
    assert loader_rules.faults(entry, whole) == []
    passed = 0
    for kept in SETS:
        cut = ops.keep_layers(kept)(whole)
        if refusals(cut):
            continue
        passed += 1
        assert loader_rules.facts(entry, cut) == [before[i] for i in kept], kept
        assert loader_rules.faults(entry, cut) == [], kept
        for number, origin in enumerate(kept):
            assert {n.split(".", 2)[2] for n in cut if n.startswith(f"blk.{number}.")} == {
                n.split(".", 2)[2] for n in whole if n.startswith(f"blk.{origin}.")
            }
    assert passed


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_what_can_be_cut_is_not_refused(name: str, shared: Path) -> None:
    """Where any layers may go, a refusal names a kind that would be missing."""
    path = shared / "architectures.json"
    entry, whole = entries(path)[name], model(name, path)
    before = loader_rules.facts(entry, whole)
    for kept in SETS:
        found = refusals(ops.keep_layers(kept)(whole))
        bound = [rule["what"] for rule in entry.get("index_bound_types", ())]
        if bound:  # whole periods of four, from the first layer on, suit them all
            aligned = all(kept[at : at + 4] == tuple(range(kept[at], kept[at] + 4)) for at in range(0, len(kept), 4))
            expected = not (aligned and len(kept) % 4 == 0 and all(i % 4 == j % 4 for j, i in enumerate(kept)))
            expected = expected or (name == "smallthinker" and len(kept) == 4)
            assert not (found and not expected), (kept, found)
            continue
        if entry["subset_rule_kind"] != "any":
            continue
        kinds = [before[i] for i in kept]
        missing = ("window" in kinds[0] and (not any(k["window"] for k in kinds) or all(k["window"] for k in kinds))) or (
            "recurrent" in kinds[0] and len({k["recurrent"] for k in kinds}) == 1
        )
        missing = missing or (name == "minimax-m3" and all(k["dense"] for k in kinds))
        assert not found or missing, (kept, found)


@pytest.mark.parametrize("name", ["deepseek2", "glm4moe", "qwen3next", "mimo2", "bailingmoe3", "nemotron_h_moe", "step35"])
def test_blocks_for_multi_token_prediction(name: str, shared: Path) -> None:
    path = shared / "architectures.json"
    entry, whole = entries(path)[name], model(name, path, mtp=1)
    before = loader_rules.facts(entry, whole)
    for op, kept in (
        (ops.drop_layers([2, 3]), [0, 1, *range(4, N + 1)]),
        (ops.keep_layers(8), list(range(8))),
        (ops.keep_layers(range(4, N), mtp=True), [*range(4, N), N]),
    ):
        cut = op(whole)
        assert refusals(cut) == []
        assert loader_rules.facts(entry, cut) == [before[i] for i in kept]
        assert loader_rules.faults(entry, cut) == []


@pytest.mark.parametrize("name", sorted(NO_CUT))
def test_architectures_that_can_not_be_cut(name: str, shared: Path) -> None:
    whole = model(name, shared / "architectures.json")
    assert refusals(ops.keep_layers(N)(whole)) == []
    found = refusals(ops.drop_layers([3])(whole))
    assert f"no layer of {name} can be dropped" in found[0]
    assert "keep all layers" in found[0]


def test_an_unknown_architecture(shared: Path) -> None:
    whole = opened(build_gguf(*synthetic("zzz", layers=4, experts=4)))
    assert "'zzz' is not known" in refusals(ops.keep_layers(2)(whole))[0]
    assert refusals(ops.keep_layers(4)(whole)) == []
