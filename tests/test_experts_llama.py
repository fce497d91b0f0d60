"""Cuts of real model files: exact bytes, and the same answers from llama.cpp."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytest
from gguf import GGUFReader

import ggufslice as gs
from ggufslice.spans import Literal
from ggufslice.testing import build_gguf, synthetic
from llama_logits import log_probabilities

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ggufslice.view import GGUF

pytestmark = [pytest.mark.models, pytest.mark.llama, pytest.mark.matrix]

MOE = [
    "deepseek2", "gpt-oss", "grovemoe", "hy_v3", "kimi-k3", "kimi-linear", "lfm2moe", "llama4", "mimo2", "qwen3moe",
    "qwen3next",
]  # fmt: skip
BIASED = ["deepseek2", "hy_v3", "kimi-k3", "kimi-linear", "lfm2moe", "mimo2"]  # a selection bias, and sigmoid gating
DENSE = ["gemma3", "granitehybrid", "nemotron_h", "smollm3"]
EXPERTS = 4
OF_EXPERTS = re.compile(r"_(ch)?exps\.|ffn_gate_inp\.|exp_probs_b")
NOISE = 2e-5  # the last bits of a float32 logit


def tensors_of(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read a file with gguf-py: stored bytes as arrays in numpy order."""
    return {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}


@pytest.mark.parametrize("name", MOE)
def test_kept_experts_have_the_bytes_that_numpy_indexing_gives(name: str, zoo: Path, llama: Path, tmp_path: Path) -> None:
    ids = [3, 0, 2]
    path = tmp_path / "cut.gguf"

    gs.open(zoo / f"{name}.gguf").pipe(gs.select_experts(ids)).write(path)

    before, after = tensors_of(zoo / f"{name}.gguf"), tensors_of(path)
    assert list(after) == list(before)
    assert sum(bool(OF_EXPERTS.search(tensor)) for tensor in before) >= 3 * 4
    for tensor, data in before.items():
        expected = data[ids] if OF_EXPERTS.search(tensor) else data
        assert np.array_equal(after[tensor], expected), tensor
    assert np.isfinite(log_probabilities(llama, path)).all()


@pytest.mark.parametrize("name", MOE)
def test_one_expert_is_enough_to_load(name: str, zoo: Path, llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.gguf"
    gs.open(zoo / f"{name}.gguf").pipe(gs.select_experts([2]), gs.set_expert_used(1)).write(path)
    assert np.isfinite(log_probabilities(llama, path)).all()


@pytest.mark.parametrize("name", MOE)
def test_another_order_of_all_experts_answers_the_same(name: str, zoo: Path, llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "reordered.gguf"
    gs.open(zoo / f"{name}.gguf").pipe(gs.select_experts([2, 0, 3, 1])).write(path)
    expected = log_probabilities(llama, zoo / f"{name}.gguf")
    assert np.abs(log_probabilities(llama, path) - expected).max() <= NOISE


def without(dropped: int) -> Callable[[GGUF], GGUF]:
    """Return an operation after which no token chooses an expert: its selection bias is minus infinity."""

    def operation(view: GGUF) -> GGUF:
        tensors = []
        for tensor in view.all_tensors:
            if "exp_probs_b" in tensor.name:
                bias = tensor.numpy().copy()
                bias[dropped] = -np.inf
                tensor = attrs.evolve(tensor, pieces=[Literal(bias.astype("<f4").tobytes())])  # noqa: PLW2901 - replaced
            tensors.append(tensor)
        return view.evolve(tensors=tensors)

    return operation


@pytest.mark.parametrize("name", BIASED)
def test_a_cut_answers_like_the_model_that_never_chooses_the_others(
    name: str, zoo: Path, llama: Path, tmp_path: Path
) -> None:
    """Fewer experts are the same model wherever the dropped ones would not have been chosen."""
    model = gs.open(zoo / f"{name}.gguf")
    model.pipe(without(1)).write(tmp_path / "avoided.gguf")
    model.pipe(gs.select_experts([3, 0, 2])).write(tmp_path / "cut.gguf")

    avoided = log_probabilities(llama, tmp_path / "avoided.gguf")

    assert np.abs(log_probabilities(llama, tmp_path / "cut.gguf") - avoided).max() <= NOISE
    assert np.abs(log_probabilities(llama, zoo / f"{name}.gguf") - avoided).max() > 100 * NOISE


GROUPED = {"expert_group_count": 2, "expert_group_used_count": 1}  # of 4 experts: 0-1 and 2-3


def test_groups_are_kept_or_dropped_as_wholes(zoo: Path, llama: Path, tmp_path: Path) -> None:
    keys = {f"deepseek2.{key}": value for key, value in GROUPED.items()}
    gs.open(zoo / "deepseek2.gguf").pipe(gs.set_metadata(keys)).write(tmp_path / "grouped.gguf")
    model = gs.open(tmp_path / "grouped.gguf")
    model.pipe(gs.select_experts([3, 2, 0, 1])).write(tmp_path / "swapped.gguf")
    model.pipe(without(2), without(3)).write(tmp_path / "avoided.gguf")
    model.pipe(gs.select_experts([0, 1])).write(tmp_path / "dropped.gguf")
    ungrouped = log_probabilities(llama, zoo / "deepseek2.gguf")

    grouped = log_probabilities(llama, tmp_path / "grouped.gguf")

    assert np.abs(grouped - ungrouped).max() > 100 * NOISE
    assert np.abs(log_probabilities(llama, tmp_path / "swapped.gguf") - grouped).max() <= NOISE
    avoided, dropped = (log_probabilities(llama, tmp_path / f"{name}.gguf") for name in ("avoided", "dropped"))
    assert np.abs(dropped - avoided).max() <= NOISE
    assert "deepseek2.expert_group_count" not in gs.open(tmp_path / "dropped.gguf").metadata


def test_an_implied_width_survives_another_used_count(llama: Path, tmp_path: Path) -> None:
    implied = {"qwen3moe.expert_feed_forward_length": None}
    source = tmp_path / "implied.gguf"
    source.write_bytes(build_gguf(*synthetic(experts=4, used=2, ffn=64, expert_ffn=32, metadata=implied)))
    assert np.isfinite(log_probabilities(llama, source, vocab=264)).all()
    gs.open(source).pipe(gs.set_expert_used(1)).write(tmp_path / "one.gguf")
    assert np.isfinite(log_probabilities(llama, tmp_path / "one.gguf", vocab=264)).all()
    by_hand = gs.open(source).pipe(gs.set_metadata({"qwen3moe.expert_used_count": 1}))
    by_hand.write(tmp_path / "by-hand.gguf", force=True)
    with pytest.raises(gs.BenchError):
        log_probabilities(llama, tmp_path / "by-hand.gguf", vocab=264)


def test_a_grafted_tensor_of_another_type_is_used(llama: Path, tmp_path: Path) -> None:
    for name, options in {"ours": {}, "theirs": {"tensor_type": 8, "seed": 1}}.items():
        (tmp_path / f"{name}.gguf").write_bytes(build_gguf(*synthetic(width=64, **options)))  # type: ignore[arg-type]
    graft = gs.graft(tmp_path / "theirs.gguf", r"^(output|blk\.1\.ffn_up_exps)\.weight$")
    gs.open(tmp_path / "ours.gguf").pipe(graft, gs.select_experts([5, 0, 3])).write(tmp_path / "both.gguf")
    after = tensors_of(tmp_path / "both.gguf")
    theirs = tensors_of(tmp_path / "theirs.gguf")
    assert np.array_equal(after["blk.1.ffn_up_exps.weight"], theirs["blk.1.ffn_up_exps.weight"][[5, 0, 3]])
    assert np.array_equal(after["output.weight"], theirs["output.weight"])
    assert np.isfinite(log_probabilities(llama, tmp_path / "both.gguf", vocab=264)).all()


def test_experts_without_their_router_answer_something_else(zoo: Path, llama: Path, tmp_path: Path) -> None:
    """The tests above can fail."""

    def rotated(view: GGUF) -> GGUF:
        return view.evolve(tensors=[t[[1, 2, 3, 0]] if "ffn_gate_inp" in t.name else t for t in view.all_tensors])

    path = tmp_path / "rotated.gguf"
    cut = gs.open(zoo / "qwen3moe.gguf").pipe(rotated)
    with pytest.raises(gs.UnsupportedCutError, match=r"'blk.0.ffn_gate_inp.weight' has the experts \[1, 2, 3, 0\]"):
        cut.write(path)
    cut.write(path, force=True)
    expected = log_probabilities(llama, zoo / "qwen3moe.gguf")
    assert np.abs(log_probabilities(llama, path) - expected).max() > 100 * NOISE


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_have_no_experts_to_choose(name: str, zoo: Path) -> None:
    with pytest.raises(gs.UnsupportedCutError, match="has no routed experts"):
        gs.open(zoo / f"{name}.gguf").pipe(gs.select_experts(1))
