"""The loader's and the graphs' own rules, one function each: what they derive from a block's number.

File names and lines are those of llama.cpp b11434, below src/models/ where no folder is given.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from ggufslice.arch._rules import Block, Pattern, always

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ggufslice.arch._hparams import Hparams
    from ggufslice.arch._rules import Trait


def every(key: str, default: int, *, first: bool = False) -> Callable[[Hparams, int], bool]:
    """Return the rule by which all blocks of a period but its last (or its first) are marked, and no MTP block.

    llama.cpp b11434, src/llama-hparams.cpp:8, set_swa_pattern; a period of 0 marks all.
    """

    def implicit(h: Hparams, block: int) -> bool:
        period = h.get(key, default)
        return block < h.n_trunk and (not period or block % period != (0 if first else period - 1))

    return implicit


def window_given(h: Hparams) -> bool:
    """Whether there is a window of at least one token."""
    return h.number("attention.sliding_window") > 0


SWA_KEY = "attention.sliding_window_pattern"


def swa(period: int | None, *, first: bool = False, on: Callable[[Hparams], bool] = always) -> Pattern:
    """Return the pattern of sliding-window blocks (src/llama-model.cpp:3451, load_swa_pattern)."""
    return Pattern(SWA_KEY, every(SWA_KEY, period, first=first) if period else None, on)


def interval(default: int) -> Pattern:
    """Return the pattern of recurrent blocks: all but the last of each interval (qwen35.cpp:17)."""
    return Pattern("attention.recurrent_layers", _interval(default))


def _interval(default: int) -> Callable[[Hparams, int], bool]:
    rule = every("full_attention_interval", default)

    def implicit(h: Hparams, block: int) -> bool:
        flag = h.get("attention.recurrent_layers")
        return rule(h, block) if flag is None else bool(flag)

    return implicit


def without_kv_heads(h: Hparams, block: int) -> str:
    """Recurrent are blocks without heads for keys and values (jamba.cpp:11 and others)."""
    heads = h.at("attention.head_count_kv", block, h.at("attention.head_count", block, 0))
    return "recurrent" if block < h.n_trunk and heads == 0 else "attention"


def windows_of_attention() -> Pattern:
    """Return the pattern where all blocks of attention have the window, if there is one (lfm2.cpp:26)."""
    return Pattern(SWA_KEY, lambda h, block: without_kv_heads(h, block) == "attention", window_given)


def nemotron_mixer(h: Hparams, block: int) -> str:
    """Each block is one of attention, state space and feed-forward (nemotron-h.cpp:14, 102)."""
    return "feed-forward" if h.at("feed_forward_length", block, 0) else without_kv_heads(h, block)


def dense_lead(h: Hparams, block: int) -> str:
    """Dense are the first blocks (deepseek2.cpp:126 and others)."""
    return "dense" if block < h.number("leading_dense_block_count") else "MoE"


def nope_last_of_4(_: Hparams, block: int) -> bool:
    """Every fourth block does without rope (smollm3.cpp:69, afmoe.cpp:135)."""
    return block % 4 != 3


def nope_first_of_4(h: Hparams, block: int) -> bool:
    """Every fourth block does without rope, unless there are four in all or no window (smallthinker.cpp:106)."""
    return not window_given(h) or h.n_trunk == 4 or block % 4 != 0


def llama4_chunked(h: Hparams) -> bool:
    """Only a window of 0 that is written down switches it off (llama4.cpp:8)."""
    return bool(h.get("attention.sliding_window") != 0)


def llama4_rope(h: Hparams, block: int) -> bool:
    """Every fourth block does without rope, or only the last where there is no window (llama4.cpp:11, 143)."""
    return (block + 1) % (4 if llama4_chunked(h) else max(1, h.n_trunk)) != 0


def llama4_ffn(h: Hparams, block: int) -> str:
    """MoE in every n-th block (llama4.cpp:62)."""
    step = h.number("interleave_moe_layer_step")
    return "MoE" if step and (block + 1) % step == 0 else "dense"


def nomic_ffn(h: Hparams, block: int) -> str:
    """MoE in the second of each period (nomic-bert-moe.cpp:37, bert.cpp:165)."""
    step = h.number("moe_every_n_layers")
    return "MoE" if step and block % step == 1 else "dense"


def residual_checkpoint(h: Hparams, block: int) -> bool:
    """Set the residual stream aside before the first block of each group, and start it anew (kimi-k3.cpp:288)."""
    size = h.number("attn_res.block_size")
    return bool(size) and block % size == 0


def halvings(h: Hparams, block: int) -> int:
    """How often the stream was halved before; weights make up for it (rwkv6.cpp:164)."""
    every_n = h.number("rescale_every_n_layers")
    return block // every_n if every_n else 0


def decay_slope(h: Hparams, block: int) -> Fraction | None:
    """How fast linear attention forgets (minimax-01.cpp:288)."""
    if not RECURRENT_8.at(h, block):
        return None
    return Fraction(block, max(1, h.n_trunk - 1))


RECURRENT_8 = interval(8)


def first_block(_h: Hparams, _block: int) -> Block:
    """Every block reads the values of block 0 (rwkv7-base.cpp:74)."""
    return Block(0)


def shared_kv(h: Hparams, block: int) -> Block | None:
    """Blocks at the tail read the keys and values of one before them (src/llama-model.cpp:2796, gemma4.cpp:8)."""
    start = h.n_blocks - h.number("attention.shared_kv_layers")
    if block < start:
        return None
    return Block(start - (2 if swa(None).at(h, block) else 1))


def shared_indexer(pattern: Pattern, mixer: Trait | None = None) -> Trait:
    """Make the trait: a block without an indexer of its own reads that of the one before (glm-dsa.cpp:245)."""

    def source(h: Hparams, block: int) -> Block | None:
        if block >= h.n_trunk or (mixer is not None and mixer(h, block) != "attention"):
            return None
        for number in range(block, -1, -1):
            if pattern.at(h, number) and (mixer is None or mixer(h, number) == "attention"):
                return Block(number)
        return None

    return source


def glm_dsa_indexer(h: Hparams, block: int) -> bool:
    """Before GLM 5.2 every block has an indexer, from then on three, then every fourth (glm-dsa.cpp:3, 60)."""
    return h.number("context_length") < 1048576 or block < 3 or block % 4 == 2


def hash_routed(h: Hparams, block: int) -> bool:
    """Route by token id in the first blocks (deepseek4.cpp:157)."""
    return block < h.number("hash_layer_count")


def per_layer_embedding(h: Hparams, block: int) -> bool:
    """One block adds embeddings of its own (qwen4exp.cpp:85)."""
    return block in h.get("ple.layers", [])


def decision_head(h: Hparams, block: int) -> bool:
    """Count the last blocks as a decision head (modern-bert.cpp:32)."""
    return block >= h.n_trunk - h.number("decision.block_count")


def hrm_stack(h: Hparams, block: int) -> str:
    """Tell the first blocks, the low stack, from as many of the high one (hrm-text.cpp:46)."""
    return "low" if block < h.number("hrm.layers_per_stack") else "high"


def hrm_slots(h: Hparams, kept: Sequence[int]) -> list[int]:
    """Each cycle runs the low stack some times, then the high one; every run has slots of its own (hrm-text.cpp:22, 52)."""
    size, cycles = h.number("hrm.layers_per_stack"), h.number("hrm.l_cycles") + 1
    low, high = [i for i in kept if i < size], [i - size for i in kept if i >= size]
    runs = range(h.number("hrm.h_cycles") * cycles)
    return [run * size + i for run in runs for i in (high if run % cycles == cycles - 1 else low)]
