"""Which class of weights a tensor belongs to, told by its name.

Names are those of llama.cpp b11434 (src/llama-arch.cpp). A name that says nothing is in the class "other".
"""

from __future__ import annotations

import re
from enum import StrEnum

__all__ = ["TensorClass", "block_of", "classify", "is_lookup"]


class TensorClass(StrEnum):
    """Classes of weights, in the order in which they are listed."""

    ROUTED = "routed experts"
    SHARED = "shared experts"
    ROUTER = "router"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    DENSE = "dense FFN"
    EMBEDDINGS = "embeddings"
    OUTPUT = "output"
    NORMS = "norms"
    OTHER = "other"


_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
# The first that matches a name, without its block and its last part, decides. Latent projections around the routed experts
# (ffn_latent_*, ffn_routed_*) serve every token: they are dense.
_RULES: tuple[tuple[re.Pattern[str], TensorClass], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r".*norm.*|time_mix_ln|(.*\.)?ln_?\w*", TensorClass.NORMS),
        (r"(a|v|mm)\..*|hc_.*|.*_res_score", TensorClass.OTHER),
        (r"ffn_\w+_(ch)?exps|ffn_(gate|up|down)\.\d+", TensorClass.ROUTED),
        (r"ffn_\w+_shexp", TensorClass.SHARED),
        (r"ffn_gate_inp|ffn_gate_tid2eid|exp_probs_b(_vl)?", TensorClass.ROUTER),
        (r"(ssm|time_mix)_\w+|shortconv\..*", TensorClass.RECURRENT),
        (r"(\w+\.)*((cross_)?attn_\w+|indexer\.\w+|indexer_\w+)", TensorClass.ATTENTION),
        (r"(\w+\.)*ffn(_\w+)?|channel_mix_\w+", TensorClass.DENSE),
        (r"token_embd|position_embd|token_types|per_layer_token_embd|nextn\.embed_tokens", TensorClass.EMBEDDINGS),
        (r"output|cls(\.output)?|nextn\.shared_head_head", TensorClass.OUTPUT),
    )
)
_LOOKUP = re.compile(r"(.*\.)?(token_embd|position_embd|token_types|per_layer_token_embd|embed_tokens|ffn_gate_tid2eid)")


def block_of(name: str) -> int | None:
    """Return the number of the block that a tensor belongs to, or None outside the blocks."""
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def classify(name: str) -> TensorClass:
    """Return the class of the tensor of that name."""
    stem = _stem(name)
    return next((kind for pattern, kind in _RULES if pattern.fullmatch(stem)), TensorClass.OTHER)


def is_lookup(name: str) -> bool:
    """Whether a token reads one row of the tensor and not the whole: tables of embeddings and of expert ids."""
    return _LOOKUP.fullmatch(_stem(name)) is not None


def _stem(name: str) -> str:
    """Return the name without its block and without its last part, such as ``.weight``."""
    match = _BLOCK.match(name)
    rest = match[2] if match else name
    return re.sub(r"\.(weight|bias|scale|input_scale)$", "", rest)
