"""Whole models from a few numbers: plausible names, keys and shapes, at any size."""

from __future__ import annotations

from itertools import chain, count, islice, product
from typing import TYPE_CHECKING, Any, TypeAlias

from ggufslice.testing._data import BLOCKS
from ggufslice.testing._specs import TensorSpec, Typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Model: TypeAlias = tuple[dict[str, Any], list[TensorSpec]]
"""A model's metadata and tensors, as `build_gguf` and the others take them."""

_F32, _F16, _Q8_0, _Q6_K, _IQ2_XXS, _IQ1_S = 0, 1, 8, 14, 16, 19
_NORMAL, _CONTROL = 1, 3  # token types


def synthetic(  # noqa: C901, PLR0913 - the shape of a model is as many numbers, each a branch
    architecture: str = "qwen3moe",
    *,
    layers: int = 4,
    experts: int = 8,
    used: int = 2,
    width: int = 32,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 16,
    ffn: int = 64,
    expert_ffn: int = 32,
    vocab: int = 264,
    dense_lead: int = 0,
    shared: int = 0,
    mtp: int = 0,
    qk_norm: bool = True,
    attention_bias: bool = False,
    router_bias: bool = False,
    expert_bias: bool = False,
    selection_bias: bool = False,
    scales: bool = False,
    tensor_type: int = _F32,
    expert_type: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    tensors: Iterable[TensorSpec] = (),
    seed: int = 0,
) -> Model:
    """Make a tiny transformer, of experts or dense, under any architecture's name.

    The defaults are a ``qwen3moe`` of 0.5 MB that llama.cpp loads and runs. Other architectures get the same
    tensors under their own keys: flexible, and exact only where `metadata` and `tensors` make it so.

    Parameters
    ----------
    architecture
        ``general.architecture``, and the prefix of the keys.
    layers
        Blocks of the trunk.
    experts, used
        Routed experts of a layer and how many a token uses; 0 experts make a dense model.
    width, heads, kv_heads, head_dim, ffn, expert_ffn, vocab
        Dimensions: the residual stream, attention, the dense and the experts' feed-forward, and the vocabulary (a
        byte-level tokenizer that works from 257 tokens on).
    dense_lead
        So many first layers are dense (``leading_dense_block_count``).
    shared
        So many shared experts (``ffn_*_shexp``, in one tensor).
    mtp
        So many blocks for multi-token prediction behind the trunk (``nextn_predict_layers``).
    qk_norm, attention_bias
        Add norms of queries and keys, and biases of the projections.
    router_bias, expert_bias, selection_bias, scales
        Add ``ffn_gate_inp.bias``, ``ffn_*_exps.bias``, ``exp_probs_b.bias`` and ``ffn_*_exps.scale``.
    tensor_type, expert_type
        ggml types of the matrices and of the experts' ones (None: the same). Where rows aren't whole blocks, it is
        F16.
    metadata
        Keys to add or replace; the value None removes one.
    tensors
        Tensors to add, or to replace by name.
    seed
        Another seed, other weights.

    Returns
    -------
    tuple of dict and list of TensorSpec
        Metadata and tensors for `build_gguf`, `split_gguf` and the others.

    Examples
    --------
    >>> metadata, tensors = synthetic(layers=2, experts=4)
    >>> metadata["qwen3moe.expert_count"], len(tensors)
    (4, 27)
    """
    expert_type = tensor_type if expert_type is None else expert_type

    def weight(name: str, *ne: int, kind: int = tensor_type) -> TensorSpec:
        return TensorSpec(f"{name}.weight", ne, _fit(kind, ne[0]), seed=seed)

    def plain(name: str, *ne: int) -> TensorSpec:
        return TensorSpec(name, ne, _F32, seed=seed)

    def ffn_tensors(blk: str, suffix: str, size: int, *outer: int, kind: int = tensor_type) -> Iterator[TensorSpec]:
        for part, ne in {"gate": (width, size), "up": (width, size), "down": (size, width)}.items():
            name = f"{blk}.ffn_{part}{suffix}"
            yield weight(name, *ne, *outer, kind=kind)
            if expert_bias and outer:
                yield plain(f"{name}.bias", ne[1], *outer)
            if scales and outer:
                yield plain(f"{name}.scale", *outer)

    def block(index: int) -> Iterator[TensorSpec]:
        blk = f"blk.{index}"
        yield plain(f"{blk}.attn_norm.weight", width)
        for part, n_heads in {"q": heads, "k": kv_heads, "v": kv_heads}.items():
            yield weight(f"{blk}.attn_{part}", width, n_heads * head_dim)
            if attention_bias:
                yield plain(f"{blk}.attn_{part}.bias", n_heads * head_dim)
            if qk_norm and part != "v":
                yield plain(f"{blk}.attn_{part}_norm.weight", head_dim)
        yield weight(f"{blk}.attn_output", heads * head_dim, width)
        yield plain(f"{blk}.ffn_norm.weight", width)
        if not experts or index < dense_lead:
            yield from ffn_tensors(blk, "", ffn)
            return
        yield plain(f"{blk}.ffn_gate_inp.weight", width, experts)
        if router_bias:
            yield plain(f"{blk}.ffn_gate_inp.bias", experts)
        if selection_bias:
            yield plain(f"{blk}.exp_probs_b.bias", experts)
        yield from ffn_tensors(blk, "_exps", expert_ffn, experts, kind=expert_type)
        if shared:
            yield from ffn_tensors(blk, "_shexp", shared * expert_ffn)

    def nextn(index: int) -> Iterator[TensorSpec]:
        yield weight(f"blk.{index}.nextn.eh_proj", 2 * width, width)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield plain(f"blk.{index}.nextn.{name}.weight", width)

    specs = chain(
        [weight("token_embd", width, vocab)],
        *(block(index) for index in range(layers + mtp)),
        *(nextn(index) for index in range(layers, layers + mtp)),
        [plain("output_norm.weight", width), weight("output", width, vocab)],
    )
    keys: dict[str, Any] = {
        "block_count": layers + mtp,
        "context_length": 512,
        "embedding_length": width,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    }
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": used, "expert_feed_forward_length": expert_ffn}
    if shared:
        keys |= {"expert_shared_count": shared, "expert_shared_feed_forward_length": shared * expert_ffn}
    if dense_lead:
        keys["leading_dense_block_count"] = dense_lead
    if mtp:
        keys["nextn_predict_layers"] = mtp
    described = _describe(architecture, f"Synthetic {architecture}", keys, vocab)
    for key, value in (metadata or {}).items():
        described[key] = value
        if value is None:
            del described[key]
    by_name = {spec.name: spec for spec in chain(specs, tensors)}
    return described, list(by_name.values())


def kimi_k3(  # noqa: PLR0915 - a statement for each tensor of the architecture
    *,
    layers: int = 93,
    experts: int = 896,
    used: int = 16,
    width: int = 7168,
    latent: int | None = None,
    expert_ffn: int | None = None,
    heads: int | None = None,
    head_dim: int = 128,
    vocab: int = 163_840,
    seed: int = 0,
) -> Model:
    """Make a model of Kimi-K3's architecture (``kimi-k3``), at its own size or any smaller one.

    Every fourth layer (``i % 4 == 3``) has latent attention (MLA), the others Kimi delta attention (KDA); layer 0
    is dense, and the routed experts work in a space of half the width. With the defaults the tensors have about
    594 GB, which only `write_sparse` or `write_shards(sparse=True)` should write. All other dimensions follow the
    width.

    Parameters
    ----------
    layers, experts, used
        Blocks, routed experts in each but the first, and experts used a token.
    width
        The residual stream. Of 16, with 512 tokens, the full 93 layers of 896 experts take 37 MB. Where rows
        aren't whole blocks of the large model's type, as in such a narrow one, a matrix is F16.
    latent, expert_ffn, heads
        The experts' width (half of `width`), their feed-forward (three sevenths), and attention heads (three for
        every 224); None takes the proportion in brackets.
    head_dim
        Of a KDA head. llama.cpp has kernels for 64 and 128.
    vocab
        Tokens; there are nearly as many merges.
    seed
        Another seed, other weights.

    Returns
    -------
    tuple of dict and list of TensorSpec
        Metadata and tensors for `write_shards` and the others.

    Notes
    -----
    Names, keys and shapes are those that llama.cpp b11434 loads. A narrow one that it loads and runs with the
    large model's types is
    ``kimi_k3(layers=8, experts=8, used=2, width=256, latent=256, expert_ffn=256, vocab=512)``.

    Examples
    --------
    >>> metadata, tensors = kimi_k3()
    >>> round(sum(tensor.n_bytes for tensor in tensors) / 1e9)
    594
    """
    latent = width // 2 if latent is None else latent
    expert_ffn = max(2, width * 3 // 7) if expert_ffn is None else expert_ffn
    heads = max(1, width * 3 // 224) if heads is None else heads
    inner = heads * head_dim
    dense_ffn = width * 33 // 7
    q_lora, kv_lora = width * 3 // 14, 4 * head_dim
    rope = head_dim // 2
    is_mla = [index % 4 == 3 for index in range(layers)]

    def weight(name: str, *ne: int, kind: int = _Q8_0) -> TensorSpec:
        return TensorSpec(f"{name}.weight", ne, _fit(kind, ne[0]), seed=seed)

    def plain(name: str, *ne: int) -> TensorSpec:
        return TensorSpec(name, ne, _F32, seed=seed)

    def mla(blk: str) -> Iterator[TensorSpec]:
        yield weight(f"{blk}.attn_q_a", width, q_lora)
        yield plain(f"{blk}.attn_q_a_norm.weight", q_lora)
        yield weight(f"{blk}.attn_q_b", q_lora, heads * (head_dim + rope))
        yield weight(f"{blk}.attn_kv_a_mqa", width, kv_lora + rope)
        yield plain(f"{blk}.attn_kv_a_norm.weight", kv_lora)
        yield weight(f"{blk}.attn_k_b", head_dim, kv_lora, heads)
        yield weight(f"{blk}.attn_v_b", kv_lora, head_dim, heads)
        yield weight(f"{blk}.attn_gate", width, inner, kind=_Q6_K)

    def kda(blk: str) -> Iterator[TensorSpec]:
        for part in "qkv":
            yield weight(f"{blk}.attn_{part}", width, inner, kind=_Q6_K)
            yield plain(f"{blk}.ssm_conv1d_{part}.weight", 4, 1, inner)
        yield weight(f"{blk}.ssm_f_a", width, head_dim)
        yield weight(f"{blk}.ssm_f_b", head_dim, inner)
        yield weight(f"{blk}.ssm_beta", width, heads)
        yield plain(f"{blk}.ssm_a", heads)
        yield plain(f"{blk}.ssm_dt.bias", inner)
        yield weight(f"{blk}.ssm_g", width, inner, kind=_Q6_K)
        yield plain(f"{blk}.ssm_norm.weight", head_dim)

    def moe(index: int) -> Iterator[TensorSpec]:
        blk = f"blk.{index}"
        yield plain(f"{blk}.ffn_gate_inp.weight", width, experts)
        yield plain(f"{blk}.exp_probs_b.bias", experts)
        yield weight(f"{blk}.ffn_routed_down", width, latent, kind=_Q6_K)
        yield plain(f"{blk}.ffn_routed_norm.weight", latent)
        yield weight(f"{blk}.ffn_gate_exps", latent, expert_ffn, experts, kind=_IQ1_S)
        yield weight(f"{blk}.ffn_up_exps", latent, expert_ffn, experts, kind=_IQ1_S)
        yield weight(f"{blk}.ffn_down_exps", expert_ffn, latent, experts, kind=_IQ2_XXS if index <= 26 else _IQ1_S)
        yield weight(f"{blk}.ffn_routed_up", latent, width)
        yield from dense(blk, "_shexp", expert_ffn)

    def dense(blk: str, suffix: str, size: int) -> Iterator[TensorSpec]:
        yield weight(f"{blk}.ffn_gate{suffix}", width, size)
        yield weight(f"{blk}.ffn_up{suffix}", width, size)
        yield weight(f"{blk}.ffn_down{suffix}", size, width)

    def block(index: int) -> Iterator[TensorSpec]:
        blk = f"blk.{index}"
        yield plain(f"{blk}.attn_norm.weight", width)
        yield plain(f"{blk}.attn_res_score.weight", width)
        yield from mla(blk) if is_mla[index] else kda(blk)
        yield weight(f"{blk}.attn_output", inner, width, kind=_Q6_K)
        yield plain(f"{blk}.ffn_norm.weight", width)
        yield plain(f"{blk}.ffn_res_score.weight", width)
        yield from moe(index) if index else dense(blk, "", dense_ffn)

    tensors = [
        weight("token_embd", width, vocab, kind=_Q6_K),
        *chain.from_iterable(map(block, range(layers))),
        plain("output_norm.weight", width),
        plain("output_res_score.weight", width),
        weight("output", width, vocab, kind=_Q6_K),
    ]
    keys = {
        "block_count": layers,
        "context_length": 4096,
        "embedding_length": width,
        "feed_forward_length": dense_ffn,
        "leading_dense_block_count": 1,
        "expert_count": experts,
        "expert_used_count": used,
        "expert_shared_count": 1,
        "expert_feed_forward_length": expert_ffn,
        "expert_latent_length": latent,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.0,
        "attention.head_count": heads,
        "attention.head_count_kv": [int(kind) for kind in is_mla],
        "attention.key_length": kv_lora + rope,
        "attention.value_length": kv_lora,
        "attention.key_length_mla": head_dim + rope,
        "attention.value_length_mla": head_dim,
        "attention.q_lora_rank": q_lora,
        "attention.kv_lora_rank": kv_lora,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": rope,
        "rope.freq_base": 10000.0,
        "ssm.conv_kernel": 4,
        "kda.head_dim": head_dim,
        "kda.safe_gate": False,
        "kda.gate_lower_bound": -5.0,
        "attn_res.block_size": 12,
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0,
    }
    return _describe("kimi-k3", "Kimi-K3 (synthetic)", keys, vocab), tensors


def _fit(kind: int, row: int) -> int:
    """Choose the wanted type, or F16 where rows of this length aren't whole blocks of it."""
    return kind if row % BLOCKS[kind][0] == 0 else _F16


def _describe(architecture: str, name: str, keys: Mapping[str, Any], vocab: int) -> dict[str, Any]:
    """Put the metadata together: general keys, the architecture's, a tokenizer."""
    tokens, merges = _vocabulary(vocab)
    return {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": name,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": Typed(tokens, "arr", "str"),
        "tokenizer.ggml.token_type": Typed([_CONTROL if index == _END else _NORMAL for index in range(vocab)], "arr", "i32"),
        "tokenizer.ggml.merges": Typed(merges, "arr", "str"),
        "tokenizer.ggml.bos_token_id": min(_END, vocab - 1),
        "tokenizer.ggml.eos_token_id": min(_END, vocab - 1),
        "tokenizer.ggml.add_bos_token": False,
    }


_END = 256  # the token behind the 256 single bytes


def _vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Make the tokens of a byte-level tokenizer, and the merges behind those of several bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = count(0x100)  # a byte that doesn't print is written as a letter from there on
    letters = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    pairs = ((first, second) for first, second in product(letters, repeat=2))
    triples = ((first + second, third) for first, second, third in product(letters, repeat=3))
    merged = list(islice(chain(pairs, triples), max(0, size - _END - 1)))
    tokens = [*letters, "<|end|>", *(first + second for first, second in merged)][:size]
    return tokens, [f"{first} {second}" for first, second in merged]
