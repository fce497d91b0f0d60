"""Metadata of a cut of blocks: arrays, counts, patterns, periods, names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.arch._kinds import changes, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ggufslice.arch._hparams import Hparams
    from ggufslice.arch._rules import Arch
    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = ["PER_BLOCK", "block_arrays", "cut", "cut_tensors", "renamed", "split_name"]

# Arrays with an entry for each block, whichever architecture reads them (src/llama-model.cpp:1335, 1397-1433). Files that
# llama.cpp saved itself have all of them, some with 512 entries.
PER_BLOCK = frozenset(
    {
        "attention.compress_ratios",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.indexer.types",
        "attention.recurrent_layers",
        "attention.rope_pattern",
        "attention.sliding_window_pattern",
        "activation_sparsity_scale",
        "deepstack_mapping",
        "expert_feed_forward_length",
        "expert_used_count",
        "feed_forward_length",
        "swiglu_clamp_exp",
        "swiglu_clamp_shexp",
    }
)
_PER_BLOCK_BARE = frozenset({"xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"})  # without the architecture
# Arrays that may happen to be as long as the model has blocks.
_NOT_PER_BLOCK = frozenset(
    {
        "classifier.output_labels",
        "ple.head_offsets",
        "ple.head_vocab_sizes",
        "ple.layer_multipliers",
        "rope.dimension_sections",
        "target_layers",
    }
)
_HEADS = ("leading_dense_block_count", "hash_layer_count")
_DIMS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
_QUERY_HEADS = "attention.head_count"
_EXTRA_NAMES, _EXTRA = "general.tensor_extra.name", "general.tensor_extra."
_BLOCK = re.compile(r"((?:enc\.|dec\.)?blk)\.(\d+)\.(.+)", re.DOTALL)
_RELATIVE_BIAS = "attn_rel_b.weight"  # only in the first block, which all others read (src/models/t5.cpp:146, 305)
_WINDOW = "attention.sliding_window"


def split_name(name: str, rule: Arch) -> tuple[str, int, str] | None:
    """Split a block tensor's name into prefix, block and rest; None for other tensors."""
    match = _BLOCK.fullmatch(name)
    return (match[1], int(match[2]), match[3]) if match and match[1] in rule.prefixes else None


def block_arrays(h: Hparams) -> Iterator[tuple[str, list[Any], bool]]:
    """Yield the keys of arrays with an entry for each block, their values, and whether that is known or guessed."""
    prefix = h.key("")
    for key in h.names():
        suffix = key.removeprefix(prefix) if key.startswith(prefix) else None
        known = suffix in PER_BLOCK or key in _PER_BLOCK_BARE
        if known or (suffix and suffix not in _NOT_PER_BLOCK and not suffix.startswith("adapters.")):
            value = h.value(key)
            if isinstance(value, list) and (known or len(value) in {h.n_blocks, h.n_trunk} - {0}):
                yield key, value, known


def cut(h: Hparams, kept: Sequence[int]) -> Hparams:
    """Return the numbers of a model that has only these blocks.

    Keys that need no change aren't touched.

    Parameters
    ----------
    h
        The model's numbers.
    kept
        Block numbers, ascending.
    """
    rule = rule_of(h)
    slots = rule.slots(h, kept)
    new = h.but({h.key("block_count"): len(slots)} | _counts(h, rule, kept))
    new = new.but({key: [value[i] for i in slots if i < len(value)] for key, value, _ in block_arrays(h)})
    new = new.but(_tensor_names(h, kept, rule) | _lists(h, kept) | _first_heads(h, new, rule))
    if new.head_dims != h.head_dims:  # a default that comes from block 0 (src/llama-model.cpp:1437)
        dims = zip(_DIMS, h.head_dims, strict=True)
        new = new.but({h.key(suffix): n for suffix, n in dims if h.get(suffix) is None}, "u32")
    new = _patterns(h, new, rule, kept)
    new = _window_off(h, new, rule, kept)
    new = _whole(h, new, rule)
    return _steps(h, new, rule, kept)


def _counts(h: Hparams, rule: Arch, kept: Sequence[int]) -> dict[str, int]:
    """Count again how many of the first or last blocks there are."""
    ends = {suffix: range(h.number(suffix)) for suffix in (*_HEADS, *rule.heads)}
    ends |= {suffix: range(h.n_trunk - h.number(suffix), h.n_trunk) for suffix in rule.tails}
    ends["nextn_predict_layers"] = range(h.n_blocks - h.number("nextn_predict_layers"), h.n_blocks)
    return {h.key(suffix): sum(i in counted for i in kept) for suffix, counted in ends.items() if h.number(suffix)}


def _tensor_names(h: Hparams, kept: Sequence[int], rule: Arch) -> dict[str, Any]:
    """Cut the list of tensors with extra attributes, and the attributes in step (src/llama-model.cpp:1242)."""
    old = h.value(_EXTRA_NAMES)
    if not old:
        return {}
    names = renamed(old, kept, rule)
    lists = {key: h.value(key) for key in h.names() if key.startswith(_EXTRA)} | {_EXTRA_NAMES: names}
    return {
        key: [value for value, name in zip(values, names, strict=True) if name]
        for key, values in lists.items()
        if isinstance(values, list) and len(values) == len(names)
    }


def renamed(names: Iterable[str], kept: Sequence[int], rule: Arch) -> list[str | None]:
    """Give each name of a tensor its new one; None where its block is gone."""
    place = {old: new for new, old in enumerate(kept)}
    out: list[str | None] = []
    for name in names:
        parts = split_name(name, rule)
        if parts is None:
            out.append(name)
            continue
        prefix, block, rest = parts
        number = 0 if rest == _RELATIVE_BIAS and block == 0 else place.get(block)
        out.append(None if number is None else f"{prefix}.{number}.{rest}")
    return out


def _lists(h: Hparams, kept: Sequence[int]) -> dict[str, Any]:
    """Renumber the block with embeddings of its own, or forget it (src/models/qwen4exp.cpp:85)."""
    blocks = h.get("ple.layers")
    if not blocks:
        return {}
    place = {old: new for new, old in enumerate(kept)}
    if now := [place[block] for block in blocks if block in place]:
        return {h.key("ple.layers"): now}
    return dict.fromkeys(key for key in h.names() if key.startswith(h.key("ple.")))


def _first_heads(h: Hparams, new: Hparams, rule: Arch) -> dict[str, Any]:
    """Keep heads at block 0, from which llama.cpp takes their length (src/llama-model.cpp:1437).

    Only where the heads for keys and values say what a block is, and those for queries don't matter in others.
    """
    heads, before = new.get(_QUERY_HEADS), h.at(_QUERY_HEADS, 0)
    if "mixer" in rule.traits and isinstance(heads, list) and heads and not heads[0] and before:
        return {h.key(_QUERY_HEADS): [before, *heads[1:]]}
    return {}


def _patterns(h: Hparams, new: Hparams, rule: Arch, kept: Sequence[int]) -> Hparams:
    """Write patterns out that the loader's own rule would shift."""
    for pattern in rule.patterns.values():
        if pattern.implicit is None or not pattern.on(h) or isinstance(h.get(pattern.key), list):
            continue
        wanted = [pattern.at(h, i) for i in kept if i < h.n_trunk or not pattern.trunk_only]
        if wanted != [pattern.at(new, i) for i in range(len(wanted))]:
            new = new.but({h.key(pattern.key): wanted}, "arr[bool]")
    return new


def _window_off(h: Hparams, new: Hparams, rule: Arch, kept: Sequence[int]) -> Hparams:
    """Switch the window off where no block that uses it is left, if the architecture allows that."""
    pattern = rule.patterns.get("window")
    if pattern is None or not pattern.on(h) or any(pattern.at(h, i) for i in kept):
        return new
    without = new.but({h.key(_WINDOW): 0})
    same = not pattern.on(without) and not any(changes(h, without, kept))
    return without if same and all(whole(without) == whole(h) for whole in rule.whole.values()) else new


def _whole(h: Hparams, new: Hparams, rule: Arch) -> Hparams:
    """Write defaults out that depend on the number of blocks."""
    for suffix, type_ in rule.written.items():
        value = rule.whole[suffix](h)
        if rule.whole[suffix](new) != value:
            new = new.but({h.key(suffix): value}, type_)
    return new


def _steps(h: Hparams, new: Hparams, rule: Arch, kept: Sequence[int]) -> Hparams:
    """Look for a period that gives every kept block its kind."""
    for suffix in rule.steps:
        if h.number(suffix) and any(changes(h, new, kept)):
            tries = (new.but({h.key(suffix): step}) for step in range(1, len(kept) + 2))
            new = next((other for other in tries if not any(changes(h, other, kept))), new)
    return new


def cut_tensors(view: GGUF, h: Hparams, kept: Sequence[int]) -> dict[str, Tensor]:
    """Return the tensors of a model that has only these blocks, under their new names.

    Parameters
    ----------
    view
        The model before the cut.
    h
        Its numbers after the cut.
    kept
        Block numbers, ascending.
    """
    rule = rule_of(h)
    names = renamed(view, kept, rule)
    unused = set(_unused(h, rule))
    return {
        name: attrs.evolve(tensor, name=name) if name != tensor.name else tensor
        for name, tensor in zip(names, view.values(), strict=True)
        if name and name not in unused
    }


def _unused(h: Hparams, rule: Arch) -> Iterator[str]:
    """Yield tensors of no block that the loader only creates for blocks that may be gone."""
    if h.architecture == "qwen4exp" and not h.get("ple.layers"):
        yield "per_layer_token_embd.weight"  # src/models/qwen4exp.cpp:196
    if h.architecture in {"gemma4", "gemma4-assistant"} and all(
        rule.patterns["window"].at(h, block) for block in range(h.n_blocks)
    ):
        yield "rope_freqs.weight"  # src/models/gemma4.cpp:94
