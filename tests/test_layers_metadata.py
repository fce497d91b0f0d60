"""What a layer cut does to metadata, and what it can't: cases worked out by hand from llama.cpp's source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytest

from _views import opened
from ggufslice import ops
from ggufslice.arch import check, kinds
from ggufslice.testing import TensorSpec, Typed, build_gguf, kimi_k3, synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ggufslice.view import GGUF

Keep = list[int]


def u32(values: Iterable[int]) -> Typed:
    return Typed(list(values), "arr", "u32")


def model(
    architecture: str, layers: int = 8, keys: dict[str, Any] | None = None, *, tensors: Iterable[TensorSpec] = ()
) -> GGUF:
    """Return a small dense model with keys of its own, most of them its architecture's."""
    full = {
        key if key.startswith(("xielu", "general")) else f"{architecture}.{key}": value
        for key, value in (keys or {}).items()
    }
    return opened(build_gguf(*synthetic(architecture, layers=layers, experts=0, metadata=full, tensors=tensors)))


def keep(view: GGUF, kept: Keep) -> GGUF:
    return ops.keep_layers(kept)(view)


def changed(before: GGUF, after: GGUF) -> dict[str, Any]:
    """Return the architecture's keys that a cut changed, but the number of layers; None for those that are gone."""
    own = before.key("")
    keys = {*before.metadata, *after.metadata}
    return {
        key.removeprefix(own): after.metadata.get(key)
        for key in keys
        if key != before.key("block_count")
        and (key not in after.metadata or key not in before.metadata or before.metadata.raw(key) != after.metadata.raw(key))
    }


def refusals(view: GGUF) -> list[str]:
    return [str(finding) for finding in check(view) if finding.refuse]


def remarks(view: GGUF) -> list[str]:
    return [str(finding) for finding in check(view) if not finding.refuse]


# Arrays and counts ---


@pytest.mark.parametrize(
    ("architecture", "keys", "kept", "result"),
    [
        (
            "llama",
            {"attention.head_count_kv": u32([1, 2, 1, 2, 1, 2, 1, 2])},
            [0, 3, 5],
            {"attention.head_count_kv": [1, 2, 2]},
        ),
        ("openelm", {"feed_forward_length": u32(range(8, 16))}, [1, 7], {"feed_forward_length": [9, 15]}),
        # as llama.cpp's own saver writes them: longer than the model
        (
            "llama",
            {"deepstack_mapping": Typed([*range(8), *[-1] * 504], "arr", "i32")},
            [2, 4],
            {"deepstack_mapping": [2, 4]},
        ),
        ("llama", {"swiglu_clamp_exp": Typed([0.5] * 8, "arr", "f32")}, [0, 1], {"swiglu_clamp_exp": [0.5, 0.5]}),
        # without the architecture before it
        ("apertus", {"xielu.beta": Typed([0.5 * i for i in range(8)], "arr", "f32")}, [1, 2], {"xielu.beta": [0.5, 1.0]}),
        # not an array of layers, though it has as many entries
        ("qwen2vl", {"rope.dimension_sections": Typed([1, 2, 3, 4], "arr", "i32"), "block_count": 4}, [0, 1], {}),
        ("llama", {"classifier.output_labels": Typed([*"abcdefgh"], "arr", "str")}, [0, 1], {}),
        ("eurobert", {"attention.causal": False}, [1], {}),
        # counts of first and last layers
        ("glm4moe", {"leading_dense_block_count": 3}, [0, 2, 4, 5], {"leading_dense_block_count": 2}),
        ("glm4moe", {"leading_dense_block_count": 3}, [4, 5], {"leading_dense_block_count": 0}),
        ("glm4moe", {"leading_dense_block_count": 3}, [0, 1, 2, 7], {}),
        (
            "deepseek4",
            {"hash_layer_count": 3, "attention.compress_ratios": u32([4] * 8)},
            [1, 2, 6],
            {"hash_layer_count": 2, "attention.compress_ratios": [4, 4, 4]},
        ),
        ("modern-bert", {"decision.block_count": 2}, [0, 1, 2, 7], {"decision.block_count": 1}),
        (
            "gemma4",
            {"attention.shared_kv_layers": 4, "attention.sliding_window_pattern": u32([1, 0] * 4)},
            [2, 3, 4, 7],
            {"attention.shared_kv_layers": 2, "attention.sliding_window_pattern": [1, 0, 1, 0]},
        ),
        ("t5", {"decoder_block_count": 4}, [0, 3, 4, 5], {"decoder_block_count": 2}),
        # numbers that happen to speak of layers, and don't change
        ("nanbeige", {"num_loops": 2}, [0, 1], {}),
        ("rwkv6qwen2", {"rescale_every_n_layers": 6}, [0, 1], {}),
    ],
)
def test_arrays_and_counts(architecture: str, keys: dict[str, Any], kept: Keep, result: dict[str, Any]) -> None:
    view = model(architecture, keys.pop("block_count", 8), keys)
    assert changed(view, keep(view, kept)) == result


def test_an_array_that_is_not_known_is_cut_and_told() -> None:
    view = model("llama", keys={"attention.new_thing": u32(range(8)), "attention.new_pair": u32([1, 2])})
    cut = keep(view, [1, 5])
    assert changed(view, cut) == {"attention.new_thing": [1, 5]}
    assert refusals(cut) == []
    assert any("llama.attention.new_thing isn't known here" in remark for remark in remarks(cut))


def test_arrays_keep_their_type() -> None:
    pattern = Typed([True, False] * 4, "arr", "bool")
    view = model("gemma2", keys={"attention.sliding_window_pattern": pattern})
    cut = keep(view, [0, 3, 4])
    assert cut.metadata.type("gemma2.attention.sliding_window_pattern") == "arr[bool]"
    assert cut.hparam("attention.sliding_window_pattern") == [True, False, True]


def test_names_of_tensors_with_extra_attributes() -> None:
    names = ["output.weight", "blk.0.attn_q.weight", "blk.2.attn_q.weight", "blk.10.attn_q.weight", "blk.11.attn_q.weight"]
    extra = {
        "general.tensor_extra.name": Typed(names, "arr", "str"),
        "general.tensor_extra.prec_a4": Typed([True, True, False, True, False], "arr", "bool"),
    }
    view = model("llama", 12, keys=extra)
    cut = keep(view, [2, 9, 10])
    assert cut.metadata["general.tensor_extra.name"] == ["output.weight", "blk.0.attn_q.weight", "blk.2.attn_q.weight"]
    assert cut.metadata["general.tensor_extra.prec_a4"] == [True, False, True]


# Patterns ---


@pytest.mark.parametrize(
    ("architecture", "keys", "kept", "result"),
    [
        # whole periods: nothing to write
        ("gemma2", {}, [0, 1, 4, 5], {}),
        ("cohere2", {}, [4, 5, 6, 7], {}),
        ("gemma3", {"attention.sliding_window": 64, "attention.sliding_window_pattern": 2}, [2, 3], {}),
        ("qwen3next", {}, [0, 1, 2, 3], {}),
        # shifted: llama.cpp's own period, or the file's, is written out
        ("gemma2", {}, [0, 2, 3], {"attention.sliding_window_pattern": [True, True, False]}),
        ("gemma3", {"attention.sliding_window": 64}, [4, 5, 6], {"attention.sliding_window_pattern": [True, False, True]}),
        (
            "gemma3",
            {"attention.sliding_window": 64, "attention.sliding_window_pattern": 2},
            [0, 2, 3],
            {"attention.sliding_window_pattern": [True, True, False]},
        ),
        ("cohere2moe", {}, [1, 2, 4], {"attention.sliding_window_pattern": [True, True, False]}),
        ("qwen3next", {}, [0, 3, 4], {"attention.recurrent_layers": [True, False, True]}),
        ("qwen35", {"full_attention_interval": 2}, [0, 2, 3], {"attention.recurrent_layers": [True, True, False]}),
        # a period of 0 marks every layer
        ("gemma2", {"attention.sliding_window_pattern": 0}, [1, 2], {}),
        # no window, no pattern: one must not appear
        ("gemma3", {}, [0, 5], {}),
        ("gemma3", {"attention.sliding_window": 0}, [0, 5], {}),
        # no layer with a window is left: it is switched off, where that changes nothing else
        (
            "gemma3",
            {"attention.sliding_window": 64, "attention.sliding_window_pattern": u32([1, 0] * 4)},
            [1, 3],
            {"attention.sliding_window": 0, "attention.sliding_window_pattern": [0, 0]},
        ),
        # periods of other things
        ("llama4", {"interleave_moe_layer_step": 2}, [1, 5], {"interleave_moe_layer_step": 1}),
        ("nomic-bert-moe", {"moe_every_n_layers": 2}, [0, 1, 2, 4], {"moe_every_n_layers": 3}),
    ],
)
def test_patterns(architecture: str, keys: dict[str, Any], kept: Keep, result: dict[str, Any]) -> None:
    view = model(architecture, keys=keys)
    cut = keep(view, kept)
    assert changed(view, cut) == result
    before, after = kinds(view), kinds(cut)
    for number, origin in enumerate(kept):
        for aspect in {"window", "recurrent", "mixer", "ffn"} & set(after[number]):
            assert after[number][aspect] == before[origin][aspect]


def test_llama4_keeps_its_scalar_step_for_whole_periods() -> None:
    view = model("llama4", 16, {"interleave_moe_layer_step": 2})
    assert changed(view, keep(view, [*range(4), *range(12, 16)])) == {}


def test_patterns_have_no_entry_for_layers_that_predict_tokens() -> None:
    view = opened(build_gguf(*synthetic("qwen3next", layers=8, experts=0, mtp=1)))
    cut = ops.drop_layers([0])(view)
    assert cut.hparam("attention.recurrent_layers") == [True, True, False, True, True, True, False, False]
    indexer = opened(
        build_gguf(*synthetic("glm-dsa", layers=8, experts=0, mtp=1, metadata={"glm-dsa.context_length": 1 << 20}))
    )
    cut = ops.drop_layers([0])(indexer)
    assert cut.hparam("attention.indexer.types") == [True, True, False, False, False, True, False]
    assert refusals(cut) == []


def test_a_draft_that_is_nothing_but_layers_that_predict_tokens() -> None:
    keys = {"nextn_predict_layers": 4, "attention.sliding_window_pattern": u32([1, 1, 1, 0])}
    view = model("gemma4-assistant", 4, keys)
    cut = keep(view, [0, -2, -1])
    assert cut.blocks == (0, 2, 3)
    assert changed(view, cut) == {"nextn_predict_layers": 3, "attention.sliding_window_pattern": [1, 1, 0]}
    assert refusals(cut) == []


def test_the_table_of_indexers_is_written_out() -> None:
    """From a context of 2**20 on, GLM 5.2's table: an indexer in layers 0, 1, 2, 6, 10, ...; before, in all."""
    long, short = (model("glm-dsa", 12, {"context_length": length}) for length in (1 << 20, 4096))
    cut = keep(long, [0, 1, 2, 6, 7])
    assert changed(long, cut) == {"attention.indexer.types": [True, True, True, True, False]}
    assert refusals(cut) == []
    assert changed(short, keep(short, [0, 6, 7])) == {}


# What depends on the number of layers ---


def test_values_that_follow_the_number_of_layers_are_written_out() -> None:
    minicpm = model("minicpm")
    cut = keep(minicpm, [0, 1])
    assert changed(minicpm, cut) == {"residual_scale": float(np.float32(1.4 / np.sqrt(8)))}
    assert cut.metadata.type("minicpm.residual_scale") == "f32"
    assert refusals(cut) == []
    told = model("minicpm", keys={"residual_scale": 0.25})
    assert changed(told, keep(told, [0, 1])) == {}


@pytest.mark.parametrize(
    ("layers", "keys", "kept", "result", "refused"),
    [
        (27, {}, 12, {"attention.q_lora_rank": 0}, False),  # lite models have none, unless their depth hides that
        (26, {}, 25, {"attention.q_lora_rank": 0}, False),
        (27, {}, 26, {}, False),
        (48, {"vocab_size": 128256}, 24, {"attention.q_lora_rank": 0}, False),
        (61, {"attention.q_lora_rank": 1536}, 12, {}, False),
        (61, {"attention.q_lora_rank": 1536}, 27, {}, True),
        (48, {"attention.q_lora_rank": 768, "vocab_size": 154880}, 20, {"expert_gating_func": 2}, False),
        (60, {"attention.q_lora_rank": 768, "vocab_size": 154880}, 48, {"expert_gating_func": 1}, False),
        (48, {"attention.q_lora_rank": 768, "vocab_size": 154880, "expert_gating_func": 2}, 20, {}, False),
    ],
)
def test_deepseek2_by_the_number_of_its_layers(
    layers: int, keys: dict[str, Any], kept: int, result: dict[str, Any], *, refused: bool
) -> None:
    view = model("deepseek2", layers, keys=keys)
    cut = ops.keep_layers(kept)(view)
    if not refused:
        assert changed(view, cut) == result
    assert bool(refusals(cut)) == refused


@pytest.mark.parametrize(
    ("architecture", "layers", "kept", "says"),
    [
        ("baichuan", 32, 31, "position encoding"),
        ("baichuan", 40, 32, "position encoding"),
        ("baichuan", 8, 7, None),
        ("exaone4", 64, 60, "'rope' of layer"),
        ("exaone4", 30, 20, None),
        ("command-r", 64, 63, "norms of queries and keys"),
        ("command-r", 80, 64, None),
        ("command-r", 40, 8, None),
        ("gemma2", 46, 44, "attention scale"),
        ("gemma2", 42, 40, None),
        ("gemma3", 62, 60, "attention scale"),
        ("minicpm3", 8, 7, "residual scale"),
        ("smallthinker", 8, 4, "'rope' of layer 0"),
        ("smallthinker", 12, 8, None),
    ],
)
def test_what_the_number_of_layers_decides(architecture: str, layers: int, kept: int, says: str | None) -> None:
    found = refusals(ops.keep_layers(kept)(model(architecture, layers, keys={"attention.sliding_window": 64})))
    assert (says in found[0]) if says else not found


# Layers that know their number, or read from others ---


@pytest.mark.parametrize(
    ("architecture", "keys", "kept", "says"),
    [
        ("smollm3", {}, [0, 1, 2, 4], "'rope' of layer 4"),
        ("smollm3", {}, [0, 1, 2, 3, 4], None),
        ("smollm3", {}, [4, 5, 6, 7], None),
        ("smollm3", {}, [1, 2], None),
        ("afmoe", {"attention.sliding_window": 64}, [1, 2, 3], "'rope' of layer 3"),
        ("llama4", {"attention.sliding_window": 0}, [0, 1], "'rope' of layer 1"),  # only the last is without
        ("llama4", {"attention.sliding_window": 0}, [0, 1, 7], None),
        ("llama4", {}, [0, 1, 2], "a block without rope"),
        ("nomic-bert-moe", {"moe_every_n_layers": 2}, [1, 2, 3], "'ffn' of layer 1"),
        ("ernie4_5-moe", {"interleave_moe_layer_step": 2}, [0, 1], "no layer of ernie4_5-moe can be dropped"),
        ("ernie4_5-moe", {"interleave_moe_layer_step": 1, "leading_dense_block_count": 1}, [1, 5], None),
        # weights were halved for the place
        ("rwkv6", {"rescale_every_n_layers": 4}, [0, 1, 2, 3], None),
        ("rwkv6", {"rescale_every_n_layers": 4}, [0, 1, 2, 3, 6], None),
        ("rwkv6", {"rescale_every_n_layers": 4}, [0, 1, 4], "'halvings before' of layer 4"),
        ("rwkv6", {}, [0, 4], None),
        # the first layer makes values for all
        ("rwkv7", {}, [0, 5], None),
        ("rwkv7", {}, [1, 5], "it was layer 0, and is layer 1"),
        ("arwkv7", {}, [2], "'values of' of layer 2"),
        # linear attention forgets faster in later layers
        ("minimax-01", {"full_attention_interval": 2}, [0, 1, 2], "'decay slope' of layer 2"),
        ("minimax-01", {"full_attention_interval": 2, "block_count": 9}, [0, 3, 4, 5, 8], None),  # 0/8, 4/8, 8/8
        # a shared indexer reads what the last full one chose
        ("hy_v4", {"attention.indexer.top_k": 4, "attention.indexer.types": u32([1, 0] * 4)}, [0, 1, 4], None),
        (
            "hy_v4",
            {"attention.indexer.top_k": 4, "attention.indexer.types": u32([1, 0] * 4)},
            [0, 3],
            "it was layer 2, and is layer 0",
        ),
        ("hy_v4", {"attention.indexer.top_k": 4, "attention.indexer.types": u32([1, 0] * 4)}, [1, 2], "is none as layer 0"),
        ("glm-dsa", {"attention.indexer.types": u32([1, 1, 0, 0, 1, 0, 0, 0])}, [0, 1, 3, 4, 7], None),
        ("glm-dsa", {"attention.indexer.types": u32([1, 1, 0, 0, 1, 0, 0, 0])}, [0, 3], "it was layer 1, and is layer 0"),
        # the last layers read the keys of two before them
        (
            "gemma4",
            {"attention.shared_kv_layers": 2, "attention.sliding_window_pattern": u32([1, 0] * 4)},
            [2, 3, 4, 5, 7],
            None,
        ),
        (
            "gemma4",
            {"attention.shared_kv_layers": 2, "attention.sliding_window_pattern": u32([1, 0] * 4)},
            [2, 3, 6],
            "it was layer 4, and is layer 2",
        ),
        ("gemma4", {"attention.sliding_window_pattern": u32([1, 0] * 4)}, [3, 4], None),
        (
            "gemma4",
            {"embedding_length_per_layer_input": 256, "attention.sliding_window_pattern": u32([1, 0] * 4)},
            [0, 1],
            "inside rows",
        ),
        ("gemma3n", {}, [0, 1], "inside rows"),
        # kinds that must be there
        ("gpt-oss", {}, [1, 3], "a sliding-window block"),
        ("gemma-embedding", {}, [0, 1, 2], "a block of full attention"),
        ("dots3note", {"attention.sliding_window_pattern": u32([1, 0] * 4)}, [0, 2], "a block of full attention"),
        ("minimax-m3", {"leading_dense_block_count": 2}, [0, 1], "a block of sparse attention"),
        ("deepseek4", {"attention.compress_ratios": u32([0, 4, 128, 4, 0, 0, 0, 0])}, [0, 2], "compress ratio 4"),
        (
            "granite_swa",
            {"attention.sliding_window_pattern": u32([1] * 8), "attention.rope_pattern": u32([0, 1] * 4)},
            [0, 2],
            "a block with rope",
        ),
        ("jamba", {"attention.head_count_kv": u32([0, 1] * 4)}, [0, 2], "a block of attention"),
        ("qwen3next", {}, [0, 1, 2], "a block of attention"),
        (
            "nemotron_h",
            {"attention.head_count_kv": u32([0, 1, 1, 0] * 2), "feed_forward_length": u32([0, 0, 9, 0] * 2)},
            [0, 2],
            "a block of attention",
        ),
        (
            "nemotron_h",
            {"attention.head_count_kv": u32([0, 1, 1, 0] * 2), "feed_forward_length": u32([0, 0, 9, 0] * 2)},
            [1, 3],
            None,
        ),
    ],
)
def test_layers_that_know_their_number(architecture: str, keys: dict[str, Any], kept: Keep, says: str | None) -> None:
    keys = dict(keys)
    found = refusals(keep(model(architecture, keys.pop("block_count", 8), keys=keys), kept))
    assert any(says in text for text in found) if says else found == []


def test_an_embedding_of_one_layer_goes_with_it() -> None:
    keys = {"ple.layers": u32([4]), "ple.ngram_size": 3, "full_attention_interval": 2}
    view = model("qwen4exp", tensors=[TensorSpec("per_layer_token_embd.weight", (8, 32), 0)], keys=keys)
    cut = keep(view, [1, 2, 4])
    assert cut.hparam("ple.layers") == [2]
    assert "per_layer_token_embd.weight" in cut
    without = keep(view, [1, 2])
    assert not any("ple." in key for key in without.metadata)
    assert "per_layer_token_embd.weight" not in without
    assert refusals(cut) == refusals(without) == []


def test_rope_frequencies_go_with_the_last_layer_of_full_attention() -> None:
    view = model(
        "gemma4",
        tensors=[TensorSpec("rope_freqs.weight", (8,), 0)],
        keys={"attention.sliding_window_pattern": u32([1, 0] * 4)},
    )
    assert "rope_freqs.weight" in keep(view, [0, 1])
    windows = keep(view, [0, 2])
    assert "rope_freqs.weight" not in windows
    assert refusals(windows) == []


@pytest.mark.parametrize(
    ("kept", "size", "says"),
    [
        (list(range(12)), 12, None),
        ([*range(4), *range(12, 16)], 4, None),  # checkpoints at 0 and 12, which become 0 and 4
        ([*range(12), 22, 23], 14, None),  # none but 0
        ([0, 1, 3, 12, 13, 15, 16], 12, "'residual checkpoint' of layer 12"),  # 0 and 3, but not 6
        ([1, 2, 3], 12, "'residual checkpoint' of layer 1"),
        ([12, 13, 15], 12, None),
    ],
)
def test_checkpoints_of_the_residual_stream(kept: Keep, size: int, says: str | None) -> None:
    view = opened(build_gguf(*kimi_k3(layers=24, experts=4, used=2, width=16, vocab=300)))
    cut = keep(view, kept)
    found = refusals(cut)
    assert (says in found[0]) if says else found == []
    assert says or cut.hparam("attn_res.block_size") == size


def test_layers_whose_checkpoint_is_gone_are_told() -> None:
    view = opened(build_gguf(*kimi_k3(layers=24, experts=4, used=2, width=16, vocab=300)))
    assert any(
        "layer 22 adds to the stream that began before it" in text for text in remarks(keep(view, [0, 1, 2, 3, 22, 23]))
    )


def test_two_stacks_of_blocks() -> None:
    """The first half of the blocks is one stack, the second another; block_count counts how often they run."""
    keys = {"hrm.layers_per_stack": 4, "hrm.h_cycles": 2, "hrm.l_cycles": 2, "block_count": 24}
    view = model("hrm_text", 8, keys={**keys, "swiglu_clamp_exp": Typed([float(i % 4) for i in range(24)], "arr", "f32")})
    cut = keep(view, [1, 2, 4, 7])
    assert changed(view, cut) == {
        "hrm.layers_per_stack": 2,
        "swiglu_clamp_exp": [1.0, 2.0, 1.0, 2.0, 0.0, 3.0] * 2,  # low, low, high, twice
    }
    assert cut.block_count == 12
    assert refusals(cut) == []
    assert "4 layers, but there are 5" in refusals(keep(view, [0, 1, 2, 4, 5]))[0].replace("6 layers", "4 layers")


def test_encoder_and_decoder() -> None:
    """Both stacks lose the same layers, and the table of relative positions moves to the new first one."""
    parts = ("attn_norm.weight", "attn_q.weight")
    tensors = [
        TensorSpec(f"{stack}.blk.{i}.{part}", (8,), 0) for stack in ("enc", "dec") for i in range(4) for part in parts
    ]
    tensors += [TensorSpec(f"{stack}.blk.0.attn_rel_b.weight", (2, 8), 0) for stack in ("enc", "dec")]
    metadata = {"general.architecture": "t5", "t5.block_count": 4, "t5.attention.head_count": 2, "t5.embedding_length": 8}
    view = opened(build_gguf(metadata, tensors))
    cut = keep(view, [1, 3])
    assert set(cut) == {
        f"{stack}.blk.{number}.{part}" for stack in ("enc", "dec") for number in (0, 1) for part in parts
    } | {"enc.blk.0.attn_rel_b.weight", "dec.blk.0.attn_rel_b.weight"}
    assert cut["dec.blk.1.attn_q.weight"].pieces == view["dec.blk.3.attn_q.weight"].pieces
    assert cut["enc.blk.0.attn_rel_b.weight"].pieces == view["enc.blk.0.attn_rel_b.weight"].pieces
    assert refusals(cut) == []


# The first layer ---


def test_lengths_that_came_from_the_first_layer_are_written_out() -> None:
    gone = dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"))
    heads = u32([4, 4, 2, 2, 4, 4, 2, 2])
    view = model("openelm", keys={**gone, "attention.head_count": heads})
    cut = keep(view, [2, 3])
    assert changed(view, cut) == {
        "attention.head_count": [2, 2],
        "attention.key_length": 8,  # 32 wide, of 4 heads
        "attention.value_length": 8,
        "rope.dimension_count": 8,
    }
    assert refusals(cut) == []


def test_a_first_layer_without_heads() -> None:
    """Lengths of heads are only read where the first layer has some (llama-model.cpp:1437)."""
    deci = model("deci", keys={"attention.head_count": u32([2, 0] * 4), "attention.head_count_kv": u32([1, 0] * 4)})
    assert refusals(keep(deci, [0, 1, 3])) == []
    assert "which has 2 heads" in refusals(keep(deci, [1, 2]))[0]
    # where heads for keys and values tell recurrent layers, those for queries can stay
    jamba = model("jamba", keys={"attention.head_count": u32([2, 0] * 4), "attention.head_count_kv": u32([1, 0] * 4)})
    cut = keep(jamba, [1, 2, 3])
    assert cut.hparam("attention.head_count") == [2, 2, 0]
    assert cut.hparam("attention.head_count_kv") == [0, 1, 0]
    assert refusals(cut) == []


@pytest.mark.parametrize(
    ("architecture", "keys", "kept", "refused"),
    [
        ("laguna", {"rope.dimension_count": 8, "rope.dimension_count_swa": 16}, [1, 4], True),
        ("laguna", {"rope.dimension_count": 8, "rope.dimension_count_swa": 16}, [4, 5], False),
        ("laguna", {"rope.dimension_count": 8, "rope.dimension_count_swa": 8}, [1, 4], False),
        ("gemma2", {"attention.key_length_swa": 32}, [1, 2], True),
        ("plamo3", {"rope.dimension_count_swa": 8, "attention.sliding_window_pattern": 2}, [1, 3], True),  # windows go off
        ("lfm2", {"rope.dimension_count_swa": 8, "attention.head_count_kv": u32([1, 0] * 4)}, [1, 2], True),
        ("lfm2", {"rope.dimension_count_swa": 8, "attention.head_count_kv": u32([1, 0] * 4)}, [2, 3], False),
        ("step35", {"rope.dimension_count_swa": 16, "attention.sliding_window_pattern": u32([1, 0] * 4)}, [1, 2], False),
    ],
)
def test_lengths_of_sliding_window_layers(architecture: str, keys: dict[str, Any], kept: Keep, *, refused: bool) -> None:
    found = refusals(keep(model(architecture, keys={"attention.sliding_window": 64, **keys}), kept))
    assert ("must stay" in found[0]) if refused else found == []


# What other operations break ---


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (
            ops.set_metadata(
                {"gemma2.attention.sliding_window_pattern": 3}, types={"gemma2.attention.sliding_window_pattern": "u32"}
            ),
            "'window' of layer",
        ),
        (ops.set_metadata({"gemma2.block_count": 7}), "describes 7 layers, but there are 8"),
        (ops.set_metadata({"gemma2.block_count": 9}), "describes 9 layers, but there are 8"),
        (
            ops.set_metadata({"gemma2.feed_forward_length": [64] * 7}, types={"gemma2.feed_forward_length": "arr[u32]"}),
            "has 7 entries, and llama.cpp demands 8",
        ),
        (ops.set_metadata({"gemma2.attention.key_length": 8}), "length of heads"),
        (
            ops.set_metadata({"gemma2.nextn_predict_layers": 1}, types={"gemma2.nextn_predict_layers": "u32"}),
            "'part' of layer 7",
        ),
        (ops.set_metadata({"general.architecture": "llama"}), "was 'gemma2', and is 'llama'"),
        (
            ops.rename_tensors({"blk.0.attn_q.weight": "blk.7.attn_extra.weight"}),
            "layer 0, now layer 0, has lost the tensor",
        ),
    ],
)
def test_a_change_that_makes_a_layer_something_else(op: Callable[[GGUF], GGUF], says: str) -> None:
    assert any(says in text for text in refusals(op(model("gemma2")))), refusals(op(model("gemma2")))


def test_a_value_that_a_user_changes_is_not_laid_to_the_number_of_layers() -> None:
    told = model("deepseek2", keys={"attention.q_lora_rank": 4, "expert_gating_func": 2})
    changed = ops.set_metadata({"deepseek2.expert_gating_func": 1})(told)
    assert refusals(changed) == ["expert_gating_func of deepseek2 was 2 for llama.cpp, and is 1"]


def test_attention_in_chunks_can_not_be_switched_off() -> None:
    """Only a window of 0 that is written down does that (llama.cpp b11434, src/models/llama4.cpp:8)."""
    off = ops.set_metadata({"llama4.attention.sliding_window": 0}, types={"llama4.attention.sliding_window": "u32"})
    assert "attention in chunks of llama4 was True for llama.cpp, and is False" in refusals(off(model("llama4")))


def test_tensors_that_a_cut_lost() -> None:
    view = keep(model("llama"), [0, 3])
    lost = view.evolve(tensors=[tensor for name, tensor in view.items() if name != "blk.1.ffn_up.weight"])
    assert "layer 3, now layer 1, has lost the tensor 'blk.3.ffn_up.weight'" in refusals(lost)[0]
    norm = view.evolve(tensors=[tensor for name, tensor in view.items() if name != "output_norm.weight"])
    assert "'output_norm.weight' is gone" in refusals(norm)[0]
    renamed = view.evolve(tensors=[attrs.evolve(t, name=n.replace("1.ffn_up", "1.ffn_top")) for n, t in view.items()])
    assert refusals(renamed) == []
    assert "has another name now" in remarks(renamed)[0]


def swapped(view: GGUF, one: int, other: int) -> GGUF:
    """Give the tensors of two layers each other's names."""
    pairs = {f"blk.{one}.": f"blk.{other}.", f"blk.{other}.": f"blk.{one}."}
    names = {name: new + name.removeprefix(old) for name in view for old, new in pairs.items() if name.startswith(old)}
    return ops.rename_tensors(names)(view)


@pytest.mark.parametrize("architecture", ["gemma3", "laguna", "lfm2", "mellum", "modern-bert", "olmo2", "plamo3"])
def test_without_a_window_its_pattern_does_not_matter(architecture: str) -> None:
    view = model(architecture)
    assert changed(view, keep(view, [1, 2, 6])) == {}
    assert refusals(keep(view, [1, 2, 6])) == []


def test_a_layer_can_not_move_by_another_name() -> None:
    """Layer 0 of gpt-oss attends to a window and layer 1 to all, whatever tensors they have."""
    view = model("gpt-oss")
    assert "under the number of another layer" in refusals(swapped(view, 0, 1))[0]
    assert (
        "tensor 'blk.3.attn_norm.weight' (and 21 more) was 'blk.1.attn_norm.weight'"
        in refusals(swapped(keep(view, [1, 3, 4, 5]), 0, 3))[0]
    )
    # A name that was wrong is put right, and what is put in knowingly is recorded.
    assert refusals(swapped(swapped(view, 0, 1), 0, 1)) == []
    assert refusals(ops.graft(swapped(view, 0, 1), r"^blk\.0\.")(view)) == []


def test_experts_can_not_move_to_another_layer_by_their_name() -> None:
    view = opened(build_gguf(*synthetic(layers=3)))
    router = "blk.{}.ffn_gate_inp.weight".format
    moved = ops.rename_tensors({router(0): router(1), router(1): router(0)})(ops.select_experts([5, 0])(view))
    assert "tensor 'blk.1.ffn_gate_inp.weight' (and 1 more) was 'blk.0.ffn_gate_inp.weight'" in refusals(moved)[0]


def test_a_view_as_it_was_opened_and_a_fragment_are_not_judged() -> None:
    view = model("gpt-oss", keys={"feed_forward_length": u32([64] * 5)})
    assert check(view) == ()
    assert check(ops.drop_tensors("attn")(keep(view, [1, 3]))) == ()


def test_what_was_wrong_before_is_not_the_cuts_fault() -> None:
    view = model("gpt-oss", keys={"attention.sliding_window_pattern": u32([0] * 8)})
    assert refusals(keep(view, [1, 3])) == []


# What a reader should know ---


def test_images_are_told_about() -> None:
    view = model("qwen3vl", keys={"n_deepstack_layers": 3})
    assert remarks(keep(view, [0, 1, 2, 6])) == []
    assert "first 3 layers, which are others now" in remarks(keep(view, [0, 1, 3]))[0]
    mapping = Typed([-1, 0, -1, 1, -1, -1, -1, -1], "arr", "i32")
    granite = model("granite", keys={"deepstack_mapping": mapping})
    assert remarks(keep(granite, [0, 1, 3, 4])) == []
    assert "added to layer 3, which is gone" in remarks(keep(granite, [0, 1, 4]))[0]


# Which cuts would work ---


@pytest.mark.parametrize(
    ("kept", "hints"),
    [
        ([0, 1, 2, 4, 5, 6, 7], ["keep layer 3 too", "keep whole periods of 4, layers 4-7"]),
        ([0, 1, 3], ["keep layer 2 too"]),
        ([2, 3, 4, 5, 6, 7, 8, 9, 10, 11], ["keep whole periods of 4, layers 4-11"]),
    ],
)
def test_a_refusal_names_cuts_that_work(kept: Keep, hints: list[str]) -> None:
    view = model("smollm3", 12)
    found = [finding for finding in check(keep(view, kept)) if finding.refuse]
    for hint in hints:
        assert hint in found[0].hint


def test_layers_that_would_change_can_go_too() -> None:
    view = model("glm-dsa", keys={"attention.indexer.types": u32([1, 1, 1, 0, 0, 0, 1, 0])})
    cut = ops.drop_layers([2])(view)
    assert "drop layers 3-5 too" in next(finding.hint for finding in check(cut) if finding.refuse)
    assert refusals(ops.drop_layers([2, 3, 4, 5])(view)) == []


def test_hints_are_sound() -> None:
    """The first ones of too few layers: the hint names the next number that is enough."""
    finding = next(f for f in check(ops.keep_layers(3)(model("qwen3next"))) if f.refuse)
    assert finding.hint.startswith("these would work: keep the first 4 layers")
    assert refusals(ops.keep_layers(4)(model("qwen3next"))) == []
