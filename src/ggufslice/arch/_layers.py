"""Metadata of a cut of blocks: arrays, counts, patterns, periods, names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.arch._hparams import Hparams
from ggufslice.arch._kinds import changes, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ggufslice.arch._rules import Arch
    from ggufslice.metadata import Metadata
    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = ["PER_BLOCK", "block_arrays", "cut_metadata", "cut_tensors", "split_name"]

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
        "ple.layers",
        "rope.dimension_sections",
        "target_layers",
    }
)
_HEADS = ("leading_dense_block_count", "hash_layer_count")
_DIMS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
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
    prefix = f"{h.architecture}."
    for key in h.metadata:
        if not h.metadata.type(key).startswith("arr["):
            continue
        suffix = key.removeprefix(prefix) if key.startswith(prefix) else None
        if suffix in PER_BLOCK or key in _PER_BLOCK_BARE:
            yield key, h.metadata[key], True
        elif suffix and suffix not in _NOT_PER_BLOCK and not suffix.startswith("adapters."):
            value = h.metadata[key]
            if len(value) in {h.n_blocks, h.n_trunk} - {0}:
                yield key, value, False


def cut_metadata(h: Hparams, kept: Sequence[int]) -> Metadata:
    """Return the metadata of a model that has only these blocks.

    Keys that need no change stay as they are, byte for byte.

    Parameters
    ----------
    h
        The model's numbers.
    kept
        Block numbers, ascending.
    """
    rule = rule_of(h)
    slots = rule.slots(h, kept)
    new = _with(h, {"block_count": len(slots)})
    new = _with(new, _counts(h, rule, kept))
    for key, value, _ in block_arrays(h):
        new = _with_key(new, key, [value[i] for i in slots if i < len(value)])
    new = _names(new, kept, rule)
    new = _lists(new, kept)
    if new.head_dims != h.head_dims:  # a default that comes from block 0 (src/llama-model.cpp:1437)
        new = _with(new, {key: n for key, n in zip(_DIMS, h.head_dims, strict=True) if h.get(key) is None}, "u32")
    new = _patterns(h, new, rule, kept)
    new = _window_off(h, new, rule, kept)
    new = _whole(h, new, rule)
    return _steps(h, new, rule, kept).metadata


def _with_key(h: Hparams, key: str, value: Any, type_: str | None = None) -> Hparams:
    if key in h.metadata and h.metadata[key] == value:
        return h
    return Hparams(h.architecture, h.metadata.set({key: value}, types={key: type_} if type_ else None))


def _with(h: Hparams, values: dict[str, Any], type_: str | None = None) -> Hparams:
    for suffix, value in values.items():
        h = _with_key(h, f"{h.architecture}.{suffix}", value, type_)
    return h


def _counts(h: Hparams, rule: Arch, kept: Sequence[int]) -> dict[str, int]:
    """Count again how many of the first or last blocks there are."""
    ends = {key: range(h.number(key)) for key in (*_HEADS, *rule.heads)}
    ends |= {key: range(h.n_trunk - h.number(key), h.n_trunk) for key in rule.tails}
    ends["nextn_predict_layers"] = range(h.n_trunk, h.n_blocks)
    return {key: sum(i in counted for i in kept) for key, counted in ends.items() if h.number(key)}


def _names(h: Hparams, kept: Sequence[int], rule: Arch) -> Hparams:
    """Cut the list of tensors with extra attributes, and the attributes in step (src/llama-model.cpp:1242)."""
    if _EXTRA_NAMES not in h.metadata:
        return h
    names = _renamed(h.metadata[_EXTRA_NAMES], kept, rule)
    stay = [i for i, name in enumerate(names) if name]
    for key in [key for key in h.metadata if key.startswith(_EXTRA)]:
        value = [name for name in names if name] if key == _EXTRA_NAMES else h.metadata[key]
        if isinstance(value, list) and len(value) == len(names) and key != _EXTRA_NAMES:
            value = [value[i] for i in stay]
        h = _with_key(h, key, value)
    return h


def _renamed(names: Iterable[str], kept: Sequence[int], rule: Arch) -> list[str | None]:
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


def _lists(h: Hparams, kept: Sequence[int]) -> Hparams:
    """Renumber the block with embeddings of its own, or forget it (src/models/qwen4exp.cpp:85)."""
    blocks = h.get("ple.layers")
    if not blocks:
        return h
    place = {old: new for new, old in enumerate(kept)}
    now = [place[block] for block in blocks if block in place]
    if now:
        return _with(h, {"ple.layers": now})
    prefix = f"{h.architecture}.ple."
    return Hparams(h.architecture, h.metadata.remove([key for key in h.metadata if key.startswith(prefix)]))


def _patterns(h: Hparams, new: Hparams, rule: Arch, kept: Sequence[int]) -> Hparams:
    """Write patterns out that the loader's own rule would shift."""
    for pattern in rule.patterns.values():
        if pattern.implicit is None or not pattern.on(h) or isinstance(h.get(pattern.key), list):
            continue
        wanted = [pattern.at(h, i) for i in kept if i < h.n_trunk or not pattern.trunk_only]
        if wanted != [pattern.at(new, i) for i in range(len(wanted))]:
            new = _with(new, {pattern.key: wanted}, "arr[bool]")
    return new


def _window_off(h: Hparams, new: Hparams, rule: Arch, kept: Sequence[int]) -> Hparams:
    """Switch the window off where no block that uses it is left, if the architecture allows that."""
    pattern = rule.patterns.get("window")
    if pattern is None or not pattern.on(h) or any(pattern.at(h, i) for i in kept):
        return new
    without = _with(new, {_WINDOW: 0})
    same = not pattern.on(without) and not any(changes(h, without, kept))
    return without if same and all(whole(without) == whole(h) for whole in rule.whole.values()) else new


def _whole(h: Hparams, new: Hparams, rule: Arch) -> Hparams:
    """Write defaults out that depend on the number of blocks."""
    for key, type_ in rule.written.items():
        value = rule.whole[key](h)
        if rule.whole[key](new) != value:
            new = _with(new, {key: value}, type_)
    return new


def _steps(h: Hparams, new: Hparams, rule: Arch, kept: Sequence[int]) -> Hparams:
    """Look for a period that gives every kept block its kind."""
    for key in rule.steps:
        if not h.number(key) or not any(changes(h, new, kept)):
            continue
        tries = (_with(new, {key: step}) for step in [*range(1, len(kept) + 2), 0])
        new = next((other for other in tries if not any(changes(h, other, kept))), new)
    return new


def cut_tensors(view: GGUF, kept: Sequence[int], metadata: Metadata) -> dict[str, Tensor]:
    """Return the tensors of a model that has only these blocks, under their new names.

    Parameters
    ----------
    view
        The model before the cut.
    kept
        Block numbers, ascending.
    metadata
        That of the result.
    """
    h = Hparams(view.architecture, metadata)
    rule = rule_of(h)
    names = _renamed(view, kept, rule)
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
