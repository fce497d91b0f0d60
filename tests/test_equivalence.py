"""The strongest test of a layer cut: drop layers that do nothing, and the answers must not change.

A layer whose outputs are zero adds nothing to the residual stream. So a model in which some layers are made so and the same
model without them must give the same answers, unless the cut made a kept layer something else: with another window, with or
without rope, dense where it was MoE. A cut is the same or is refused; there is nothing between.
"""

from __future__ import annotations

import re
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytest

import ggufslice as gs
from ggufslice import ops
from ggufslice.spans import Literal, Span
from llama_logits import log_probabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ggufslice.view import GGUF

pytestmark = [pytest.mark.models, pytest.mark.llama]

# What writes to the residual stream: last matrices of attention, state space and feed-forward, with their biases.
OUTPUTS = re.compile(r"blk\.(\d+)\.(attn_output|ffn_down\w*|ssm_out|shortconv\.out_proj|ffn_routed_up)\.(weight|bias)")
TOLERANCE = 2e-5  # the last layer sums in another order when it is another one
PROMPTS = [[i * 37 % 128 for i in range(60)], [1, 2, 3, 4, 5]]  # one is longer than the windows of 32 tokens

Change = "Callable[[GGUF], GGUF]"


def subsets(layers: Iterable[int]) -> list[tuple[int, ...]]:
    """Return all choices of one layer or more."""
    layers = tuple(layers)
    return list(chain.from_iterable(combinations(layers, n) for n in range(1, len(layers) + 1)))


def idle(path: Path, layers: Iterable[int]) -> None:
    """Make layers of a file do nothing: zero bytes are zero in F32, Q8_0 and Q4_0 alike."""
    with path.open("r+b") as file, gs.open(path) as model:
        for name, tensor in model.items():
            match = OUTPUTS.fullmatch(name)
            if match and int(match[1]) in layers:
                for piece in tensor.pieces:
                    assert isinstance(piece, Span)
                    file.seek(piece.start)
                    file.write(bytes(len(piece)))


def verdicts(
    llama: Path, model: GGUF, zero: Iterable[int], cuts: Iterable[tuple[int, ...]], folder: Path
) -> dict[tuple[int, ...], str]:
    """Return for each cut whether it is refused, or gives the same answers as the whole model with idle layers."""
    whole = folder / "whole.gguf"
    model.write(whole)
    idle(whole, set(zero))
    wanted = log_probabilities(llama, whole, prompts=PROMPTS)
    out: dict[tuple[int, ...], str] = {}
    for number, cut in enumerate(cuts):
        path = folder / f"cut{number}.gguf"
        try:
            gs.open(whole).pipe(ops.drop_layers(cut)).write(path)
        except gs.UnsupportedCutError:
            out[cut] = "refused"
            continue
        difference = np.abs(log_probabilities(llama, path, prompts=PROMPTS) - wanted).max()
        out[cut] = "same" if difference < TOLERANCE else f"differs by {difference}"
        path.unlink()
    whole.unlink()
    return out


FREE = ["deepseek2", "gemma3", "gpt-oss", "granitehybrid", "grovemoe", "hy_v3", "kimi-k3", "kimi-linear", "lfm2moe", "mimo2"]
FREE += ["nemotron_h", "qwen3moe", "qwen3next"]


@pytest.mark.parametrize("name", FREE)
def test_layers_in_the_middle(name: str, zoo: Path, llama: Path, tmp_path: Path) -> None:
    """Where files say what a layer is, any layers can go that leave one of each kind."""
    cuts = subsets([2, 3])
    assert verdicts(llama, gs.open(zoo / f"{name}.gguf"), [2, 3], cuts, tmp_path) == dict.fromkeys(cuts, "same")


@pytest.mark.parametrize(
    ("name", "zero", "same", "refused"),
    [
        # without rope: layers 3, 7, ...; so layer 3 must stay, or four go
        ("smollm3", [4, 5], [(4,), (5,), (4, 5)], []),
        ("smollm3", [0, 1, 2, 3], [(0, 1, 2, 3), (1, 2, 3)], [(0,), (2,), (3,), (2, 3)]),
        # and MoE in layers 1, 3, 5, 7
        ("llama4", [4, 5, 6, 7], [(4, 5, 6, 7), (7,), (6, 7)], [(4,), (5,), (4, 5)]),
        ("llama4", [0, 1, 2, 3], [(0, 1, 2, 3)], [(0,), (1,), (0, 1)]),
    ],
)
def test_layers_that_llama_cpp_knows_by_number(
    name: str,
    zero: list[int],
    same: list[tuple[int, ...]],
    refused: list[tuple[int, ...]],
    zoo: Path,
    llama: Path,
    tmp_path: Path,
) -> None:
    found = verdicts(llama, gs.open(zoo / f"{name}.gguf"), zero, [*same, *refused], tmp_path)
    assert found == dict.fromkeys(same, "same") | dict.fromkeys(refused, "refused")


def keys(types: dict[str, str] | None = None, /, *gone: str, **values: Any) -> Callable[[GGUF], GGUF]:
    """Return a change of a model's own keys: some set, some gone."""

    def change(view: GGUF) -> GGUF:
        full = {view.key(key): value for key, value in values.items()}
        metadata = view.metadata.remove(view.key(key) for key in gone)
        metadata = metadata.set(full, types={view.key(key): kind for key, kind in (types or {}).items()})
        return attrs.evolve(view, metadata=metadata)

    return change


WINDOWS = "attention.sliding_window_pattern"
INTERVAL = "full_attention_interval"
HEADS = "attention.head_count"
VARIANTS: dict[str, tuple[str, Callable[[GGUF], GGUF], list[int]]] = {
    # the pattern of windows: llama.cpp's own, a period, as bools, with entries for 512 layers, for only three
    "gemma3 without a pattern": ("gemma3", keys({}, WINDOWS), [1, 4]),
    "gemma3 with a period": ("gemma3", keys({WINDOWS: "u32"}, **{WINDOWS: 3}), [1, 4]),
    "gemma3 with bools": ("gemma3", keys({WINDOWS: "arr[bool]"}, **{WINDOWS: [True, False] * 3}), [1, 4]),
    "gemma3 with a long pattern": ("gemma3", keys(**{WINDOWS: [1, 0] * 256}), [1, 4]),
    "gemma3 with a short pattern": ("gemma3", keys(**{WINDOWS: [1, 0, 1]}), [1, 4]),
    "gpt-oss without a pattern": ("gpt-oss", keys({}, WINDOWS), [1, 4]),
    # no window is left: it is switched off
    "gemma3 without windows": ("gemma3", keys(), [0, 2, 4]),
    "qwen3next with an interval": (
        "qwen3next",
        keys({INTERVAL: "u32"}, "attention.recurrent_layers", **{INTERVAL: 2}),
        [2, 5],
    ),
    # one number of heads, though some layers have none; lengths by default
    "kimi-linear with one number of heads": ("kimi-linear", keys({HEADS: "u32"}, **{HEADS: 1}), [0, 2]),
    "lfm2moe with one number of heads": ("lfm2moe", keys({HEADS: "u32"}, **{HEADS: 2}), [0, 3]),
    "granitehybrid with lengths by default": (
        "granitehybrid",
        keys({}, "attention.key_length", "attention.value_length", "rope.dimension_count"),
        [2, 3],
    ),
    "kimi-k3 in groups of 4": ("kimi-k3", keys(**{"attn_res.block_size": 4}), [1, 3]),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_ways_to_say_what_layers_are(variant: str, zoo: Path, llama: Path, tmp_path: Path) -> None:
    name, change, zero = VARIANTS[variant]
    cuts = [tuple(zero), *((layer,) for layer in zero[:2])]
    assert verdicts(llama, change(gs.open(zoo / f"{name}.gguf")), zero, cuts, tmp_path) == dict.fromkeys(cuts, "same")


def with_mtp(view: GGUF) -> GGUF:
    """Add a block for multi-token prediction: a copy of the last one, and what joins it to the trunk."""
    last, width = view.block_count - 1, view.hparam("embedding_length")
    norm = view["output_norm.weight"]
    copies = [
        attrs.evolve(tensor, name=name.replace(f"blk.{last}.", f"blk.{last + 1}."))
        for name, tensor in view.items()
        if name.startswith(f"blk.{last}.") and not name.endswith("scale")  # which llama.cpp doesn't look for in such a block
    ]
    joined = [attrs.evolve(norm, name=f"blk.{last + 1}.nextn.{name}.weight") for name in ("enorm", "hnorm")]
    joined.append(
        attrs.evolve(
            norm, name=f"blk.{last + 1}.nextn.eh_proj.weight", ne=(2 * width, width), pieces=(Literal(bytes(8 * width**2)),)
        )
    )
    metadata = view.metadata.set({view.key("block_count"): last + 2, view.key("nextn_predict_layers"): 1})
    longer = {
        key: [*view.metadata[key], view.metadata[key][-1]]
        for key in map(view.key, ("swiglu_clamp_exp", "swiglu_clamp_shexp"))
        if isinstance(view.metadata.get(key), list)
    }
    return attrs.evolve(view, metadata=metadata.set(longer), all_tensors=[*view.values(), *copies, *joined])


@pytest.mark.parametrize("name", ["deepseek2", "hy_v3"])
def test_with_a_block_for_multi_token_prediction(name: str, zoo: Path, llama: Path, tmp_path: Path) -> None:
    cuts = [(2,), (2, 3), (2, 6), (6,)]
    assert verdicts(llama, with_mtp(gs.open(zoo / f"{name}.gguf")), [2, 3], cuts, tmp_path) == dict.fromkeys(cuts, "same")


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*FREE, "smollm3", "llama4"])
@pytest.mark.parametrize("zero", [[0, 1], [4, 5], [1, 3, 5], [0, 2, 4]], ids=str)
def test_same_or_refused(name: str, zero: list[int], zoo: Path, llama: Path, tmp_path: Path) -> None:
    found = verdicts(llama, gs.open(zoo / f"{name}.gguf"), zero, subsets(zero), tmp_path)
    assert set(found.values()) <= {"same", "refused"}, found


def test_an_uncut_pattern_is_noticed(zoo: Path, llama: Path, tmp_path: Path) -> None:
    """The test itself can fail: a cut that leaves the pattern of windows as it was gives other answers."""
    model = gs.open(zoo / "gemma3.gguf")
    whole, wrong = tmp_path / "whole.gguf", tmp_path / "wrong.gguf"
    model.write(whole)
    idle(whole, {0})
    pattern = {model.key(WINDOWS): model.hparam(WINDOWS)}
    gs.open(whole).pipe(ops.drop_layers([0]), ops.set_metadata(pattern)).write(wrong, force=True)
    prompt = [[i * 37 % 128 for i in range(60)]]  # longer than the window
    assert (
        np.abs(log_probabilities(llama, whole, prompts=prompt) - log_probabilities(llama, wrong, prompts=prompt)).max()
        > 1e-3
    )
    with pytest.raises(gs.UnsupportedCutError, match="'window' of layer"):
        gs.open(whole).pipe(ops.drop_layers([0]), ops.set_metadata(pattern)).plan()
