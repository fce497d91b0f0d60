"""The rules of each architecture, read from llama.cpp b11434.

Most architectures derive nothing from a block's number but what all do, and are only names here. The others say which
aspects of a block or of the whole model a cut could change unnoticed, and what must stay for the result to run. A rule's
function, in `_traits`, says where in llama.cpp it comes from.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ggufslice.arch import _traits as t
from ggufslice.arch._rules import Arch, Need, Pattern, always

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ggufslice.arch._hparams import Hparams
    from ggufslice.arch._rules import Kind

__all__ = ["ARCHITECTURES"]

PLAIN = """
    apertus arcee arctic bailingmoe bert bitnet bloom chameleon chatglm codeshell cogvlm dbrx deci dream ernie4_5
    eurobert exaone falcon falcon-h1 gemma glm4 gpt2 gptneox granitemoe graniteswitch grok grovemoe hunyuan-dense
    hunyuan-moe hunyuan_vl hy_v3 internlm2 jais jais2 jina-bert-v2 jina-bert-v3 llada llada-moe llama llama-embed
    maincoder mamba mamba2 minimax-m2 mistral3 mpt nanbeige nemotron neo-bert nomic-bert olmo olmoe openelm orion
    paddleocr pangu-embedded phi2 phi3 phimoe plamo plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3tts
    rnd1 rwkv6qwen2 seed_oss stablelm starcoder starcoder2 talkie xverse
"""


# What must stay ---


def some(aspect: str, value: object, *, on: Callable[[Hparams], bool] = always) -> Callable[[Hparams, Sequence[Kind]], bool]:
    """Return the demand that a block has an aspect, in models where it matters."""
    return lambda h, kinds: not on(h) or any(kind.get(aspect) == value for kind in kinds)


# Without a block of a kind, its mask or state is never allocated (src/llama-graph.cpp:483, ggml/src/ggml-backend.cpp:345).
HYBRID = (
    Need("a block of attention", some("mixer", "attention")),
    Need("a recurrent block", some("mixer", "recurrent")),
)


# Families ---


def dense_lead(**more: Any) -> Arch:
    """Make the rules where the first blocks are dense and the others MoE."""
    return Arch(traits={"ffn": t.dense_lead, **more.pop("traits", {})}, **more)


def swa(
    period: int | None,
    *,
    first: bool = False,
    on: Callable[[Hparams], bool] = always,
    full: bool = False,
    rope: bool | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Make the rules where some blocks attend to a window: all but one of each period, or those that an array marks.

    At least one must (src/llama-model.cpp:2823), and in some architectures another one must not, or one with or without rope
    must be there.
    """
    needs = [Need("a sliding-window block", some("window", value=True, on=on))]
    if full:
        needs.append(Need("a block of full attention", some("window", value=False, on=on)))
    if rope is not None:
        needs.append(Need(f"a block {'with' if rope else 'without'} rope", some("rope", rope, on=on)))
    return {"patterns": {"window": t.swa(period, first=first, on=on)}, "needs": tuple(needs), **more}


def kv_hybrid(**traits: Any) -> Arch:
    """Make the rules where blocks without key-value heads are recurrent."""
    return Arch(traits={"mixer": t.without_kv_heads, **traits}, needs=HYBRID)


def interval_hybrid(default: int, **more: Any) -> Arch:
    """Make the rules where all blocks but the last of each interval are recurrent, or those that an array marks."""
    pattern = t.interval(default)

    def mixer(h: Hparams, block: int) -> str:
        return "recurrent" if pattern.at(h, block) else "attention"

    return Arch(traits={"mixer": mixer, **more.pop("traits", {})}, patterns={"recurrent": pattern}, needs=HYBRID, **more)


def refused(reason: str) -> Arch:
    """Make the rule that no block can be dropped."""
    return Arch(refuse=lambda _: reason)


# What depends on how many blocks there are ---


def layers_are(*counts: int) -> Callable[[Hparams], bool]:
    """Return the condition that the trunk has one of these numbers of blocks."""
    return lambda h: h.n_trunk in counts


def _position(h: Hparams) -> str:
    """baichuan.cpp:5, 58, 77."""
    return {32: "rope", 40: "ALiBi"}.get(h.n_trunk, "none")


def _residual_scale(h: Hparams) -> float:
    """minicpm.cpp:6, 13."""
    return float(h.get("residual_scale", np.float32(1.4 / math.sqrt(h.n_trunk))))


def _is_lite(h: Hparams) -> bool:
    """deepseek2.cpp:8."""
    return h.n_trunk in {26, 27} or (h.n_trunk == 48 and h.n_vocab == 128256)


def _q_lora_rank(h: Hparams) -> int | None:
    """deepseek2.cpp:12: lite models have none, whatever the file says; others must say one."""
    return 0 if _is_lite(h) else h.get("attention.q_lora_rank")


def _gating(h: Hparams) -> int:
    """deepseek2.cpp:23: 2 is sigmoid, 1 softmax."""
    return h.number("expert_gating_func") or (2 if h.n_trunk in {47, 48} and h.n_vocab == 154880 else 1)


def _half_moe(h: Hparams) -> str:
    """ernie4-5.cpp:49 loads MoE tensors for all blocks behind the lead, ernie4-5-moe.cpp:64 only uses those of each n-th."""
    step = h.number("interleave_moe_layer_step")
    return f"with interleave_moe_layer_step = {step} llama.cpp loads other tensors than it uses" if step > 1 else ""


def _dense_graph(h: Hparams) -> str:
    """refact.cpp:128."""
    return "llama.cpp loads its experts and computes dense layers" if h.number("expert_count") else ""


def _packed_embeddings(h: Hparams) -> str:
    """gemma3n.cpp:39, gemma4.cpp:59."""
    if h.architecture == "gemma4" and not h.number("embedding_length_per_layer_input"):
        return ""
    return (
        "per_layer_token_embd.weight holds the embeddings of all blocks side by side in each row: dropping one would cut "
        "inside rows"
    )


DEEPSEEK2 = dense_lead(
    whole={"attention.q_lora_rank": _q_lora_rank, "expert_gating_func": _gating},
    written={"attention.q_lora_rank": "u32", "expert_gating_func": "u32"},
)
INDEXER = "attention.indexer.types"
GLM_DSA_INDEXER = Pattern(INDEXER, t.glm_dsa_indexer, trunk_only=True)
GLM5_INDEXER = Pattern(INDEXER, lambda _h, _block: True, trunk_only=True)
HY_V4_INDEXER = Pattern(
    INDEXER, lambda _h, _block: False, lambda h: h.number("attention.indexer.top_k") > 0, trunk_only=True
)

ARCHITECTURES: dict[str, Arch] = {name: Arch() for name in PLAIN.split()} | {
    # dense blocks first, and nothing else
    **dict.fromkeys(
        ["bailingmoe2", "deepseek", "deepseek2-ocr", "deepseek32", "dots1", "glm4moe"],
        dense_lead(),
    ),
    "deepseek2": DEEPSEEK2,
    "mistral4": DEEPSEEK2,
    # sliding windows
    "gemma2": Arch(**swa(2), whole={"attention scale of 46 blocks": layers_are(46)}),  # gemma2.cpp:17
    "gemma3": Arch(**swa(6, on=t.window_given), whole={"attention scale of 62 blocks": layers_are(62)}),  # gemma3.cpp:18
    "gemma-embedding": Arch(**swa(6, full=True)),
    "gpt-oss": Arch(**swa(2)),
    "cohere2": Arch(**swa(4)),
    "cohere2moe": dense_lead(**swa(4, first=True)),
    "exaone-moe": dense_lead(**swa(4)),
    "exaone4": Arch(
        **swa(4, on=layers_are(64)), traits={"rope": lambda h, i: h.n_trunk != 64 or t.swa(4).at(h, i)}
    ),  # exaone4.cpp:4, 111
    "muse-glimmer": Arch(**swa(4)),
    "olmo2": Arch(**swa(4, on=t.window_given)),
    "mellum": Arch(**swa(4, on=t.window_given)),
    "plamo3": Arch(**swa(8, on=t.window_given)),
    "laguna": dense_lead(**swa(4, first=True, on=t.window_given)),
    "maple": Arch(**swa(None), own_dims=True),
    "mimo2": Arch(**swa(None)),
    "spark2_5": Arch(**swa(None), own_dims=True),
    "step35": Arch(**swa(None), own_dims=True),
    "granite_swa": Arch(
        **swa(None, rope=True), traits={"rope": lambda h, i: bool(h.at("attention.rope_pattern", i, default=True))}
    ),
    "dots3note": dense_lead(**swa(None, full=True)),
    "modern-bert": Arch(
        **swa(3, first=True, on=t.window_given, full=True),
        traits={"decision head": t.decision_head},
        tails=("decision.block_count",),
    ),
    "dflash": Arch(**swa(None, on=lambda h: t.window_given(h) and not h.number("hyper_connection.count"))),
    # sliding windows, and blocks without rope
    "llama4": Arch(
        **swa(4, on=t.llama4_chunked, rope=False),
        traits={"rope": t.llama4_rope, "ffn": t.llama4_ffn},
        whole={"attention in chunks": t.llama4_chunked},
        steps=("interleave_moe_layer_step",),
    ),
    "afmoe": dense_lead(**swa(4, on=t.window_given), traits={"rope": t.nope_last_of_4}),
    "smallthinker": Arch(**swa(4, first=True, on=t.window_given, rope=True), traits={"rope": t.nope_first_of_4}),
    "smollm3": Arch(traits={"rope": t.nope_last_of_4}),
    # attention and recurrent blocks
    "granitehybrid": kv_hybrid(),
    "jamba": kv_hybrid(),
    "lfm2": attrs.evolve(kv_hybrid(), patterns={"window": t.windows_of_attention()}),
    "plamo2": kv_hybrid(),
    "bailingmoe3": kv_hybrid(ffn=t.dense_lead),
    "kimi-linear": kv_hybrid(ffn=t.dense_lead),
    "lfm2moe": kv_hybrid(ffn=t.dense_lead),
    "kimi-k3": attrs.evolve(
        kv_hybrid(**{"ffn": t.dense_lead, "residual checkpoint": t.residual_checkpoint}), steps=("attn_res.block_size",)
    ),
    "glm5-next": attrs.evolve(
        kv_hybrid(**{"ffn": t.dense_lead, "indexer of": t.shared_indexer(GLM5_INDEXER, t.without_kv_heads)}),
        patterns={"indexer": GLM5_INDEXER},
    ),
    **dict.fromkeys(["nemotron_h", "nemotron_h_moe"], Arch(traits={"mixer": t.nemotron_mixer}, needs=HYBRID)),
    **dict.fromkeys(["qwen3next", "qwen35", "qwen35moe", "clef"], interval_hybrid(4)),
    "qwen4exp": interval_hybrid(4, traits={"embeddings of its own": t.per_layer_embedding}),
    "minimax-01": interval_hybrid(8, traits={"decay slope": t.decay_slope}),
    # blocks that read what another one made
    "glm-dsa": dense_lead(traits={"indexer of": t.shared_indexer(GLM_DSA_INDEXER)}, patterns={"indexer": GLM_DSA_INDEXER}),
    "hy_v4": dense_lead(traits={"indexer of": t.shared_indexer(HY_V4_INDEXER)}, patterns={"indexer": HY_V4_INDEXER}),
    "rwkv7": Arch(traits={"values of": t.first_block}),
    "arwkv7": Arch(traits={"values of": t.first_block}),
    "gemma4": Arch(
        **swa(None),
        traits={"keys and values of": t.shared_kv},
        tails=("attention.shared_kv_layers",),
        own_dims=True,
        refuse=_packed_embeddings,
    ),
    "gemma4-assistant": Arch(**swa(None), own_dims=True),
    "gemma3n": Arch(**swa(5), refuse=_packed_embeddings),
    # others
    "deepseek4": Arch(
        traits={"routing by token id": t.hash_routed, "compress ratio": lambda h, i: h.at("attention.compress_ratios", i)},
        needs=(Need("a block with compress ratio 4", some("compress ratio", 4)),),  # its cache divides by their number
    ),
    "minimax-m3": dense_lead(needs=(Need("a block of sparse attention", some("ffn", "MoE")),)),  # minimax-m3.cpp:334
    "ernie4_5-moe": dense_lead(refuse=_half_moe),
    "refact": Arch(refuse=_dense_graph),
    "nomic-bert-moe": Arch(traits={"ffn": t.nomic_ffn}, steps=("moe_every_n_layers",)),
    "rwkv6": Arch(traits={"halvings before": t.halvings}),
    "baichuan": Arch(whole={"position encoding": _position}),
    "command-r": Arch(whole={"norms of queries and keys": lambda h: h.n_trunk >= 64}),  # command-r.cpp:28
    "minicpm": Arch(whole={"residual_scale": _residual_scale}, written={"residual_scale": "f32"}),
    "minicpm3": Arch(whole={"residual scale of so many blocks": lambda h: h.n_trunk}),  # minicpm3.cpp:197
    "granite": Arch(),
    "qwen3vl": Arch(),
    "qwen3vlmoe": Arch(),
    "t5": Arch(prefixes=("enc.blk", "dec.blk"), heads=("decoder_block_count",)),
    "t5encoder": Arch(prefixes=("enc.blk",)),
    "hrm_text": Arch(
        traits={"stack": t.hrm_stack},
        heads=("hrm.layers_per_stack",),
        slots=t.hrm_slots,
    ),
    "wavtokenizer-dec": refused("its posnet has six blocks that llama.cpp knows by number (wavtokenizer-dec.cpp:21)"),
    "eagle3": refused("a draft of this kind has one block (eagle3.cpp:156)"),
    "clip": refused("its blocks belong to an image encoder, which llama.cpp's mtmd loads"),
    "gptj": refused("llama.cpp has no loader for it"),
}
"""Architecture to what is special about it."""
