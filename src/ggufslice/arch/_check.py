"""Compare a view with the one that it was made from: whether it would load, and each kept block is what it was."""

from __future__ import annotations

from bisect import bisect
from itertools import groupby, islice
from typing import TYPE_CHECKING

from ggufslice.arch._finding import Finding
from ggufslice.arch._hparams import MAX_BLOCKS, Hparams
from ggufslice.arch._kinds import changes, kind_of, kinds_of, rule_of
from ggufslice.arch._layers import PER_BLOCK, block_arrays, cut, split_name
from ggufslice.arch._rules import Block
from ggufslice.arch._table import ARCHITECTURES
from ggufslice.spans import Remap, Span
from ggufslice.units import counted, ranges_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = ["check_layers", "sound"]

# Decided by a pattern and so compared as a kind, or changed on purpose by operations on experts.
_NOT_COMPARED = frozenset(
    {
        "attention.indexer.types",
        "attention.recurrent_layers",
        "attention.sliding_window_pattern",
        "expert_feed_forward_length",
        "expert_used_count",
    }
)
# Arrays that must have as many entries as the model has blocks (src/llama-model-loader.cpp:459).
_EXACT = PER_BLOCK - {
    "activation_sparsity_scale",
    "attention.compress_ratios",
    "attention.indexer.types",
    "attention.rope_pattern",
    "attention.sliding_window_pattern",
    "deepstack_mapping",
}
_MOST_TRIES = 300


def check_layers(view: GGUF) -> Iterator[Finding]:
    """Yield what is wrong with, or worth knowing of, the blocks of a view."""
    if view.lineage is None or view.lineage.fragment:
        return
    old, new, blocks = Hparams.of(view.base), Hparams.of(view), view.blocks
    if blocks == tuple(range(old.n_blocks)) and old.n_named < old.n_blocks:
        blocks = blocks[: old.n_named]
    if new.architecture != old.architecture:
        yield Finding(f"general.architecture was {old.architecture!r}, and is {new.architecture!r}: nothing can be checked")
        return
    fewer = blocks != tuple(range(old.n_named))
    known = new.architecture in ARCHITECTURES
    if fewer and not known:
        yield Finding(
            f"the architecture {new.architecture!r} is not known here: which of its layers differ, and how llama.cpp tells, "
            "can't be said",
            "keep all layers",
        )
        return
    problems = list(_problems(old, new, blocks))
    if problems:
        hint = _hint(old, blocks) if fewer else ""
        yield from (Finding(problem, hint) for problem in problems)
    yield from _tensors(view, new)
    yield from _moved(view, new)
    if fewer:
        yield from _remarks(old, new, blocks)


def _problems(old: Hparams, new: Hparams, blocks: Sequence[int]) -> Iterator[str]:
    """Yield what metadata alone shows to be wrong."""
    rule = rule_of(new)
    if len(blocks) < old.n_named and (reason := rule.refuse(old)):
        yield f"no layer of {new.architecture} can be dropped: {reason}"
        return
    if not 1 <= new.n_blocks <= MAX_BLOCKS:
        if new.n_blocks != old.n_blocks:  # adapters, vision towers and vocabularies have none, and need none
            yield f"llama.cpp takes 1 to {MAX_BLOCKS} layers, not {new.n_blocks}"
        return
    if new.n_named != len(blocks):
        yield f"{new.architecture}'s metadata describes {new.n_named} layers, but there are {len(blocks)}"
        return
    yield from _changed_kinds(old, new, blocks)
    yield from _changed_arrays(old, new, blocks)
    for name, whole in rule.whole.items():
        if whole(old) != whole(new) and new.n_trunk == old.n_trunk:
            yield f"{name} of {new.architecture} was {whole(old)} for llama.cpp, and is {whole(new)}"
        elif whole(old) != whole(new):
            yield (
                f"llama.cpp derives {name} of {new.architecture} from the number of layers: with {new.n_trunk} instead of "
                f"{old.n_trunk} it would be {whole(new)} instead of {whole(old)}"
            )
    yield from _first_block(old, new, blocks)
    trunk = [kind for kind in kinds_of(new) if kind["part"] == "trunk"]
    before = [kind for kind in kinds_of(old) if kind["part"] == "trunk"]
    for need in rule.needs:
        if not need.met(new, trunk) and need.met(old, before):
            yield f"llama.cpp needs at least {need.what} in {new.architecture}, and none is kept"


def _changed_kinds(old: Hparams, new: Hparams, blocks: Sequence[int]) -> Iterator[str]:
    found = sorted(changes(old, new, blocks), key=lambda change: change[0])
    for aspect, group in groupby(found, key=lambda change: change[0]):
        changed = list(group)
        _, number, was, now = changed[0]
        others = f" (and of {counted(len(changed) - 1, 'other')})" if len(changed) > 1 else ""
        yield (
            f"{aspect!r} of layer {blocks[number]}{others} would change: it was {_said(was)}, and is {_said(now)} "
            f"as layer {number}"
        )


def _said(value: object) -> str:
    if isinstance(value, Block):
        return f"layer {value.number}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _changed_arrays(old: Hparams, new: Hparams, blocks: Sequence[int]) -> Iterator[str]:
    once = old.n_named == old.n_blocks  # else entries belong to runs of a block, all alike
    for suffix in sorted(PER_BLOCK):
        before, after = old.get(suffix), new.get(suffix)
        if suffix in _EXACT and isinstance(after, list) and len(after) != new.n_blocks:
            if not isinstance(before, list) or len(before) == old.n_blocks:
                yield f"{new.architecture}.{suffix} has {len(after)} entries, and llama.cpp demands {new.n_blocks}"
        elif suffix not in _NOT_COMPARED and isinstance(before, list) and once:
            for number, origin in enumerate(blocks[: new.n_named]):
                if origin >= old.n_named:  # grafted
                    break
                was, now = old.at(suffix, origin), new.at(suffix, number)
                if was != now and not _only_dims(new, suffix, number):
                    yield f"{new.architecture}.{suffix} was {was} for layer {origin}, and is {now} for it as layer {number}"
                    break


def _only_dims(h: Hparams, suffix: str, block: int) -> bool:
    """Whether a number of heads is there for their length alone, in a block that does not attend."""
    return suffix == "attention.head_count" and not block and kind_of(h, 0).get("mixer", "attention") != "attention"


def _first_block(old: Hparams, new: Hparams, blocks: Sequence[int]) -> Iterator[str]:
    """Yield what llama.cpp takes from block 0 for all, and another block would give."""
    if new.head_dims != old.head_dims:
        yield (
            f"llama.cpp takes the length of heads from layer 0, which has {old.at('attention.head_count', 0, 0)} heads: "
            f"with layer {blocks[0]} in its place keys, values, rope would have {new.head_dims} instead of {old.head_dims}"
        )
    elif _dims_of_first(new) != _dims_of_first(old):
        window = rule_of(old).patterns["window"].at(old, 0)
        kind = "a sliding-window layer" if window else "a layer of full attention"
        yield f"llama.cpp takes the length of heads of {new.architecture} from layer 0, which must stay {kind}"


def _dims_of_first(h: Hparams) -> tuple[int, int, int]:
    """Return the length of keys, values and rope in block 0, another if it has a window (src/llama-model.cpp:1464)."""
    window = rule_of(h).patterns.get("window")
    if window is None or rule_of(h).own_dims or not window.at(h, 0):
        return h.head_dims
    suffixes = ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa")
    key, value, rope = (h.get(suffix, full) for suffix, full in zip(suffixes, h.head_dims, strict=True))
    return key, value, rope


def _tensors(view: GGUF, new: Hparams) -> Iterator[Finding]:
    """Yield tensors that were lost on the way, block by block, and others."""
    here, base = _by_block(view, new), _by_block(view.base, Hparams.of(view.base))
    for number, origin in enumerate(view.blocks[: new.n_named]):
        have, had = here.get(number, set()), base.get(origin, set())
        lost = [name.replace("*", str(origin), 1) for name in sorted(had - have) if not name.endswith("attn_rel_b.weight")]
        if lost and len(have) < len(had):
            yield Finding(f"layer {origin}, now layer {number}, has lost the tensor {lost[0]!r}" + _more(lost))
        elif lost:
            yield Finding(f"tensor {lost[0]!r} of layer {origin} has another name now{_more(lost)}", refuse=False)
    have, had = here.get(None, set()), base.get(None, set())
    lost = sorted(had - have - {"rope_freqs.weight", "per_layer_token_embd.weight"})
    if lost and len(have) < len(had):
        yield Finding(f"the tensor {lost[0]!r}{_more(lost)} is gone, which the model needs whichever layers are kept")


def _moved(view: GGUF, new: Hparams) -> Iterator[Finding]:
    """Yield tensors that a name has put into another layer than the one whose place that layer has."""
    rule = rule_of(new)
    owners = sorted((*place, name) for name, tensor in view.base.items() if (place := _start(tensor)))
    grafted = view.lineage.grafted if view.lineage else {}
    moved = []
    for name, tensor in view.items():
        parts, place = split_name(name, rule), _start(tensor)
        if not parts or not place or name in grafted or parts[1] >= len(view.blocks):
            continue
        nearest = bisect(owners, (*place, "\U0010ffff")) - 1
        if nearest < 0 or owners[nearest][0] != place[0]:
            continue
        owner = split_name(owners[nearest][2], rule)
        if owner and owner[1] != view.blocks[parts[1]] and owner[2] != "attn_rel_b.weight":
            moved.append((name, owners[nearest][2]))
    if moved:
        name, was = moved[0]
        yield Finding(
            f"tensor {name!r}{_more(moved)} was {was!r}: under the number of another layer it would compute something else",
            "rename within a layer; to put one layer's tensors into another knowingly, graft them",
        )


def _start(tensor: Tensor) -> tuple[str, int] | None:
    """Return where the first byte of a tensor is read; None for one that is empty or was replaced."""
    piece = next(iter(tensor.pieces), None)
    span = piece.span if isinstance(piece, Remap) else piece
    return (span.source.url, span.start) if isinstance(span, Span) and len(span) else None


def _more(names: Sequence[object]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _by_block(view: GGUF, h: Hparams) -> dict[int | None, set[str]]:
    """Return the names of tensors for each block, with ``*`` for its number; those of no block under None."""
    rule = rule_of(h)
    out: dict[int | None, set[str]] = {}
    for name in view:
        parts = split_name(name, rule)
        if parts:
            out.setdefault(parts[1], set()).add(f"{parts[0]}.*.{parts[2]}")
        else:
            out.setdefault(None, set()).add(name)
    return out


def _remarks(old: Hparams, new: Hparams, blocks: Sequence[int]) -> Iterator[Finding]:
    """Yield what is worth knowing of a cut that is sound."""
    for key, value, known in block_arrays(old):
        if not known:
            yield Finding(
                f"{key} isn't known here; it has an entry for each layer, it seems ({len(value)}), and was cut with them",
                refuse=False,
            )
    first = old.number("n_deepstack_layers")
    if first > len(blocks) or blocks[:first] != tuple(range(first)):
        yield Finding(
            f"features of an image are added to the first {first} layers, which are others now: text works, images don't",
            refuse=False,
        )
    mapping = old.get("deepstack_mapping")
    if isinstance(mapping, list):
        gone = [i for i, value in enumerate(mapping[: old.n_named]) if value >= 0 and i not in blocks]
        if gone:
            yield Finding(
                f"features of an image are added to layer {gone[0]}, which is gone: images won't work", refuse=False
            )
    size = old.number("attn_res.block_size")
    apart = [i for i in blocks if size and i - i % size not in blocks]
    if apart:
        yield Finding(
            f"the residual stream is no longer set aside at layer {apart[0] - apart[0] % size}, which is gone: layer "
            f"{apart[0]} adds to the stream that began before it",
            refuse=False,
        )
    if new.architecture == "gemma4" and blocks[-2:] != (old.n_blocks - 2, old.n_blocks - 1):
        yield Finding(
            f"a gemma4-assistant draft reads the last two layers, {old.n_blocks - 2} and {old.n_blocks - 1}, and no longer "
            "fits this model",
            refuse=False,
        )


# Which cuts would work ---


def _hint(old: Hparams, blocks: Sequence[int]) -> str:
    """Say which cuts near this one are sound: the nearest of each sort."""
    if rule_of(old).refuse(old):
        return "keep all layers"
    found: dict[str, str] = {}
    seen = {tuple(blocks), tuple(range(old.n_named))}
    for sort, kept, words in islice(_neighbours(old, blocks), _MOST_TRIES):
        if sort not in found and kept not in seen and sound(old, kept):
            found[sort] = words
            seen.add(kept)
    return f"these would work: {'; '.join(found.values())}" if found else "keep all layers"


def sound(old: Hparams, kept: Sequence[int]) -> bool:
    """Tell from metadata alone whether a cut would load and keep every layer what it is."""
    return not any(_problems(old, cut(old, kept), kept))


def _neighbours(old: Hparams, blocks: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield cuts like this one, nearest first: their sort, their blocks, their description."""
    trunk, tail = [i for i in blocks if i < old.n_trunk], tuple(i for i in blocks if i >= old.n_trunk)
    for sort, count in _counts_near(len(trunk), old.n_trunk) if trunk == list(range(len(trunk))) else ():
        yield sort, (*range(count), *tail), f"keep the first {counted(count, 'layer')}"
    for i in range(old.n_trunk):
        if i not in trunk:
            yield "keep", (*sorted([*trunk, i]), *tail), f"keep layer {i} too"
    if period := _period(old):
        groups = [range(start, min(start + period, old.n_trunk)) for start in range(0, old.n_trunk, period)]
        for test in (any, all):
            whole = [i for group in groups if test(i in trunk for i in group) for i in group]
            if whole:
                yield "periods", (*whole, *tail), f"keep whole periods of {period}, layers {ranges_text(whole)}"
    for i in trunk[1:] if len(trunk) > 1 else ():
        yield "drop", (*(k for k in trunk if k != i), *tail), f"drop layer {i} too"
    yield from _without_changed(old, blocks)


def _without_changed(old: Hparams, blocks: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield the cut that drops the layers too that would change, and those that change then."""
    kept = tuple(blocks)
    while bad := {kept[number] for _, number, _, _ in changes(old, cut(old, kept), kept)}:
        kept = tuple(i for i in kept if i not in bad)
    if kept:
        yield "drop", kept, f"drop layers {ranges_text(i for i in blocks if i not in kept)} too"


def _counts_near(count: int, most: int) -> Iterator[tuple[str, int]]:
    for step in range(1, most):
        yield from ((sort, n) for sort, n in (("fewer", count - step), ("more", count + step)) if 0 < n < most)


def _period(h: Hparams) -> int:
    """Return after how many layers kinds repeat, the first ones left out; 0 where they don't, or don't differ."""
    kinds = [{k: v for k, v in kind.items() if not isinstance(v, Block)} for kind in kinds_of(h)[: h.n_trunk]]
    periods = (p for p in range(1, h.n_trunk // 2 + 1) if kinds[p:-p] == kinds[2 * p :])
    period = next(periods, 0)
    return period if period > 1 else 0
