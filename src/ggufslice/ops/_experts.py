"""Operations on routed experts: which stay, and how many a token uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import attrs

from ggufslice.arch._experts import PER_LAYER_USED, WIDTH_BY_USED
from ggufslice.arch._moe import GROUP_KEYS, ID_TABLE, chunks, moe_blocks, regroup, strangers
from ggufslice.errors import UnsupportedCutError
from ggufslice.ops._base import Op
from ggufslice.selection import ExpertPlan, is_plan, positive, whole
from ggufslice.spans import Remap, Span
from ggufslice.view import source_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufslice.arch._moe import MoEBlock
    from ggufslice.metadata import Metadata
    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = ["select_experts", "set_expert_used"]


_Keep: TypeAlias = SupportsIndex | Iterable[SupportsIndex] | Mapping[Any, Any] | ExpertPlan
_Kept: TypeAlias = int | tuple[int, ...] | dict[int, tuple[int, ...]] | ExpertPlan


def _as_given(keep: _Keep) -> _Kept:
    """Check what to keep at once, and freeze it in the form that it was given in."""
    plan = ExpertPlan.of(keep)
    if isinstance(keep, Mapping):
        return plan if is_plan(keep) else dict(plan.keep)
    return plan if plan is keep or plan.rule is None else plan.rule.listed or plan.rule.n


@attrs.frozen
class select_experts(Op):  # noqa: N801 - operations read as verbs
    """Keep these routed experts, in this order.

    Parameters
    ----------
    keep
        A number (the first so many), a list of ids (in every MoE block), ids by block, or an `ExpertPlan`. Blocks have the
        numbers of the view, and all of them keep as many experts: ``expert_count`` is one number for the whole model, MTP
        blocks included.
    groups
        Of models that route by groups: ``"keep"`` the groups, for which each block keeps as many experts of each group,
        group after group, or whole groups; or ``"reset"`` them, so that tokens choose among all kept experts.

    Raises
    ------
    TypeError, ValueError
        At once, for what can't be a choice of experts.
    UnsupportedCutError
        When applied: an id out of range, blocks that keep different numbers, groups or chunks torn apart, tensors that no
        rule names, layers that route by token id.

    Notes
    -----
    Router rows, router biases, selection biases, expert biases and scales are cut in the same order. ``expert_used_count``
    stays: more than are kept is refused when the result is planned; see `set_expert_used`.

    Examples
    --------
    >>> select_experts([5, 0, 3])
    select_experts(keep=(5, 0, 3), groups='keep')
    """

    keep: _Kept = attrs.field(converter=_as_given)
    groups: str = attrs.field(default="keep", kw_only=True, validator=attrs.validators.in_(("keep", "reset")))

    def _apply(self, view: GGUF) -> GGUF:
        blocks = moe_blocks(view)
        if not blocks:
            raise UnsupportedCutError(_without_experts(view))
        if found := list(strangers(view)):
            raise UnsupportedCutError("experts can't be cut: " + "; ".join(found[:8]))
        if max(blocks) >= len(view.blocks):
            raise UnsupportedCutError(
                f"block {max(blocks)} has experts, but {view.key('block_count')} says that there are {len(view.blocks)} "
                "blocks: set it with set_metadata first"
            )
        first_mtp = view.block_count - view.nextn_count
        kept, notes = ExpertPlan.of(self.keep).resolve(
            {number: block.count for number, block in blocks.items()}, [n for n in blocks if n >= first_mtp]
        )
        metadata, note = self._metadata(view, kept)
        changed: dict[str, Tensor] = {}
        per_chunk = max(1, int(view.hparam("experts_per_group", 1)))
        for number, ids in kept.items():
            if ids != tuple(range(blocks[number].count)):
                changed |= _cut(view, blocks[number], ids, per_chunk)
        experts = dict(view.lineage.experts) if view.lineage else {}
        for number, ids in kept.items():
            base = view.blocks[number]
            before = experts.get(base, range(blocks[number].count))
            experts[base] = tuple(before[i] for i in ids)
        view = view.evolve(metadata=metadata, tensors=[changed.get(t.name, t) for t in view.all_tensors], experts=experts)
        for text in (*notes, *note):
            view = view.evolve(note=text)
        return view

    def _metadata(self, view: GGUF, kept: Mapping[int, Sequence[int]]) -> tuple[Metadata, list[str]]:
        count = len(next(iter(kept.values())))
        metadata = view.metadata
        if count != view.expert_count:
            metadata = metadata.set({view.key("expert_count"): count})
        group_count = int(view.hparam(GROUP_KEYS[0], 0))
        keys = [view.key(suffix) for suffix in GROUP_KEYS]
        if group_count <= 1:
            # One group is no limit, but llama.cpp wants fewer groups than experts.
            return (metadata.remove(keys) if group_count and (count == 1 or self.groups == "reset") else metadata), []
        if self.groups == "reset":
            return metadata.remove(keys), [f"expert groups were reset: tokens choose among all {count} experts of a layer"]
        groups = regroup(view, kept)
        if groups is None:
            return metadata.remove(keys), []
        return (metadata.set({keys[0]: groups.count}) if groups.count != group_count else metadata), []


def _cut(view: GGUF, block: MoEBlock, ids: tuple[int, ...], per_chunk: int) -> dict[str, Tensor]:
    """Return the tensors of a block that change, by name."""
    where = f"blk.{block.number}"
    changed = {f"{where}.{rest}": tensor[ids] for rest, tensor in block.routed.items()}
    if block.chunked:
        kept = chunks(ids, per_chunk, f"block {block.number}")
        changed |= {f"{where}.{rest}": tensor[kept] for rest, tensor in block.chunked.items()}
    table = view.get(f"{where}.{ID_TABLE}")
    if table is not None:
        changed[table.name] = _renumber(table, ids, block.count)
    return changed


def _renumber(table: Tensor, ids: tuple[int, ...], count: int) -> Tensor:
    """Renumber a table of expert ids after all experts were put in another order."""
    if len(ids) < count:
        raise UnsupportedCutError(
            f"tensor {table.name!r} names the experts of every token, among them ones that this drops: a layer that routes "
            f"by token id can only keep all {count} experts, in any order"
        )
    new = {old: i for i, old in enumerate(ids)}
    pieces = []
    for piece in table.pieces:
        if isinstance(piece, Span):
            pieces.append(Remap(piece, tuple(new[i] for i in range(count)), table.byteorder))
        elif isinstance(piece, Remap):
            pieces.append(Remap(piece.span, tuple(new[i] for i in piece.ids), piece.byteorder))
        else:
            raise UnsupportedCutError(f"tensor {table.name!r} was replaced: its expert ids can't be renumbered")
    return attrs.evolve(table, pieces=pieces)


def _used(n: SupportsIndex | Sequence[SupportsIndex]) -> int | tuple[int, ...]:
    if isinstance(n, list | tuple):
        return tuple(positive(v, "experts used, by layer") if whole(v, "experts used, by layer") else 0 for v in n)
    return positive(n, "experts used")


@attrs.frozen
class set_expert_used(Op):  # noqa: N801 - operations read as verbs
    """Set how many experts a token goes through.

    Parameters
    ----------
    n
        At least 1. A list, one number for each block, only for nemotron_h: elsewhere llama.cpp routes by the first and sums
        by the others.

    Raises
    ------
    TypeError, ValueError
        At once, for what isn't a positive number.
    UnsupportedCutError
        When applied: the model has no experts, or a list that its architecture doesn't take.

    Notes
    -----
    Where the width of an expert is implied by ``feed_forward_length / expert_used_count``, it is written out first, as
    ``expert_feed_forward_length``.
    """

    n: int | tuple[int, ...] = attrs.field(converter=_used)

    def _apply(self, view: GGUF) -> GGUF:
        blocks = moe_blocks(view)
        if not blocks:
            raise UnsupportedCutError(_without_experts(view))
        if isinstance(self.n, tuple):
            if view.architecture not in PER_LAYER_USED:
                raise UnsupportedCutError(
                    f"{view.architecture} takes one expert_used_count for all layers; only "
                    f"{' and '.join(sorted(PER_LAYER_USED))} take a list"
                )
            if len(self.n) != view.block_count:
                raise UnsupportedCutError(f"{len(self.n)} used counts for {view.block_count} blocks")
        if self.n == view.expert_used_count:
            return view
        metadata = view.metadata
        if view.architecture in WIDTH_BY_USED and not view.hparam("expert_feed_forward_length"):
            width = _expert_width(blocks)
            metadata = metadata.set(
                {view.key("expert_feed_forward_length"): width}, types={view.key("expert_feed_forward_length"): "u32"}
            )
        key = view.key("expert_used_count")
        value, type_ = (list(self.n), "arr[u32]") if isinstance(self.n, tuple) else (self.n, "u32")
        return view.evolve(metadata=metadata.set({key: value}, types={key: type_}))


def _expert_width(blocks: Mapping[int, MoEBlock]) -> int:
    """Return the width of the experts: what their down projections take in."""
    widths = {b.routed["ffn_down_exps.weight"].ne[0] for b in blocks.values() if "ffn_down_exps.weight" in b.routed}
    if len(widths) != 1:
        raise UnsupportedCutError(
            f"the experts' width is implied by expert_used_count, but their tensors have {sorted(widths) or 'no'} widths; "
            "set expert_feed_forward_length with set_metadata first"
        )
    return widths.pop()


def _without_experts(view: GGUF) -> str:
    return f"{source_name(view)} ({view.architecture or 'no architecture'}) has no routed experts"
