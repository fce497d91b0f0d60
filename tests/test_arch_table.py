"""The rule table against a reading of llama.cpp that was made apart from it: GGUFSLICE_SHARED/architectures.json."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ggufslice.arch._hparams import Hparams
from ggufslice.arch._kinds import kinds_of
from ggufslice.arch._layers import _HEADS, _PER_BLOCK_BARE, PER_BLOCK
from ggufslice.arch._rules import Arch
from ggufslice.arch._table import ARCHITECTURES
from ggufslice.metadata import Metadata

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.models

N = 24
# Keys that speak of layers and stay as they are whichever layers go, with the reason.
UNTOUCHED = {
    "convnext.block_count": "its architecture is refused",
    "decision.routing_block_count": "counts blocks of another stack",
    "hrm.h_cycles": "how often a stack runs, not how long it is",
    "hrm.l_cycles": "how often a stack runs, not how long it is",
    "n_deepstack_layers": "how many features an image encoder gives",
    "num_loops": "how often all layers run",
    "posnet.block_count": "its architecture is refused",
    "rescale_every_n_layers": "weights were divided to fit it",
}


@pytest.fixture(scope="module")
def reading(shared: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((shared / "architectures.json").read_text())
    return {name: entry for name, entry in data.items() if not name.startswith(("_", "("))}


def model(architecture: str, **keys: Any) -> Hparams:
    values = {"block_count": N, "attention.head_count": 8, "attention.sliding_window": 512, **keys}
    full = {f"{architecture}.{key}": value for key, value in values.items()}
    types = {key: "arr[u32]" if isinstance(value, list) else "u32" for key, value in full.items()}
    return Hparams(architecture, Metadata().set(full, types=types))


def test_every_architecture_is_there(reading: dict[str, Any]) -> None:
    assert set(ARCHITECTURES) == set(reading)
    assert len(reading) == 154


def test_arrays_with_an_entry_for_each_layer(reading: dict[str, Any]) -> None:
    for name, entry in reading.items():
        for key in entry["per_layer_array_keys"]:
            assert key in _PER_BLOCK_BARE or key.removeprefix(f"{name}.") in PER_BLOCK, key


def test_numbers_that_speak_of_layers(reading: dict[str, Any]) -> None:
    for name, entry in reading.items():
        rule = ARCHITECTURES[name]
        ours = {"block_count", "nextn_predict_layers", *_HEADS, *rule.heads, *rule.tails, *rule.steps}
        ours |= {pattern.key for pattern in rule.patterns.values()} | set(UNTOUCHED)
        if "recurrent" in rule.patterns:
            ours.add("full_attention_interval")  # left as it is, and an array written where it would shift
        if name == "gemma4-assistant":
            ours.add("attention.shared_kv_layers")  # read, and not used (gemma4-assistant.cpp:9)
        if name in {"ernie4_5", "ernie4_5-moe", "paddleocr"}:
            ours.add("interleave_moe_layer_step")  # only 1 makes loader and graph agree
        if name == "clef":
            ours.add("decision.block_count")  # counts blocks of another stack
        for key in entry["layer_indexed_scalar_keys"]:
            assert key.removeprefix(f"{name}.").split(" ")[0] in ours, key


def test_sliding_window_patterns(reading: dict[str, Any]) -> None:
    for name, entry in reading.items():
        pattern = ARCHITECTURES[name].patterns.get("window")
        if name == "lfm2":  # follows from what is recurrent, not from a pattern
            continue
        assert (pattern is None) == ("swa_pattern" not in entry), name
        if pattern is None:
            continue
        period, first = entry["swa_pattern"]["default_period"], entry["swa_pattern"]["dense_first"]
        h = model(name, block_count=64) if name == "exaone4" else model(name)
        assert (pattern.implicit is None) == (period is None), name
        if period:
            wanted = [i % period != 0 if first else i % period < period - 1 for i in range(h.n_blocks)]
            assert [pattern.at(h, i) for i in range(h.n_blocks)] == wanted, name
        flags = [int(i in {1, 2, 5}) for i in range(h.n_blocks)]
        written = model(name, block_count=h.n_blocks, **{"attention.sliding_window_pattern": flags})
        assert [pattern.at(written, i) for i in range(h.n_blocks)] == [bool(flag) for flag in flags], name


def test_patterns_of_recurrence(reading: dict[str, Any]) -> None:
    for name, entry in reading.items():
        told = entry.get("recurrent_pattern")
        assert (told is None) == ("recurrent" not in ARCHITECTURES[name].patterns), name
        if told:
            default = 8 if name == "minimax-01" else 4
            assert str(default) in json.dumps(told), name
            for interval, keys in ((default, {}), (3, {"full_attention_interval": 3})):
                mixers = [kind["mixer"] for kind in kinds_of(model(name, **keys))]
                assert mixers == ["recurrent" if (i + 1) % interval else "attention" for i in range(N)], name


@pytest.mark.parametrize(("key", "aspect", "values"), [("NoPE", "rope", (False, True)), ("MoE", "ffn", ("MoE", "dense"))])
def test_what_a_number_decides(reading: dict[str, Any], key: str, aspect: str, values: tuple[Any, Any]) -> None:
    for name, entry in reading.items():
        for told in entry.get("index_bound_types", ()):
            if told["what"] != key:
                continue
            step = told["mod"] if isinstance(told["mod"], int) else 3
            residue = told["residue"] if isinstance(told["residue"], int) else step - 1
            keys = {told["metadata_step"]: step} if "metadata_step" in told else {}
            kinds = [kind[aspect] for kind in kinds_of(model(name, **keys))]
            assert kinds == [values[0] if i % step == residue else values[1] for i in range(N)], name


def test_dense_leads(reading: dict[str, Any]) -> None:
    for name, entry in reading.items():
        dense = [kind.get("ffn") for kind in kinds_of(model(name, leading_dense_block_count=3, interleave_moe_layer_step=1))]
        if "dense_lead_rule" in entry and entry["moe"]:
            assert dense == ["dense"] * 3 + ["MoE"] * (N - 3), name


def test_what_must_stay(reading: dict[str, Any]) -> None:
    words = {
        "SWA": "a sliding-window block",
        "1 attention": "a block of attention",
        "1 recurrent": "a recurrent block",
        "1 full layer": "a block of full attention",
        "NoPE": "a block without rope",
        "RoPE": "a block with rope",
        "ratios": "a block with compress ratio 4",
        "sparse": "a block of sparse attention",
    }
    for name, entry in reading.items():
        told = " ".join(entry["required_layer_kinds"])
        ours = {need.what for need in ARCHITECTURES[name].needs}
        for word, what in words.items():
            if word in told and not (word == "SWA" and "swa_pattern" not in entry):
                assert what in ours, (name, word)


def test_models_that_depend_on_how_many_layers_they_have(reading: dict[str, Any]) -> None:
    for name, entry in reading.items():
        rule = ARCHITECTURES[name]
        if entry["n_layer_sensitive"] and name not in {"exaone4", "smallthinker", "minimax-01", "hrm_text"}:
            assert rule.whole, name  # those four: traits of their layers say it
        if entry["subset_rule_kind"] in {"unsupported", "none"} and name != "baichuan":
            assert rule.refuse(model(name)), name
        if entry["non_blk_layer_tensors"]:
            assert rule.refuse(model(name, embedding_length_per_layer_input=256)), name


def test_layers_that_read_from_others(reading: dict[str, Any]) -> None:
    for name, entry in reading.items():
        if "cross_layer_state" in entry or entry["subset_rule_kind"] == "keep_first":
            assert {"indexer of", "values of", "keys and values of"} & set(ARCHITECTURES[name].traits), name


def test_most_architectures_need_no_rules() -> None:
    assert sum(rule == Arch() for rule in ARCHITECTURES.values()) > len(ARCHITECTURES) / 2
