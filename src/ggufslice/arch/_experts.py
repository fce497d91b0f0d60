"""What llama.cpp demands of the experts of a cut, and what the cut does to their routing.

A view is compared with the one that it was opened as: what was wrong there is not the cut's fault and is left alone. Rules
from llama.cpp b11434, src/llama-model.cpp:1333-1376 and src/llama-graph.cpp:2085-2260.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufslice.arch._finding import Finding
from ggufslice.arch._moe import GROUP_KEYS, ID_TABLE, chunks, expert_axis, moe_blocks, regroup, strangers
from ggufslice.arch._table import ARCHITECTURES
from ggufslice.errors import UnsupportedCutError
from ggufslice.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ggufslice.arch._moe import MoEBlock
    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = ["PER_LAYER_USED", "WIDTH_BY_USED", "check", "expert_axis"]

WIDTH_BY_USED = frozenset(
    {
        "glm4moe", "grovemoe", "hy_v3", "llada-moe", "mellum", "nemotron_h", "nemotron_h_moe", "qwen2moe", "qwen35moe",
        "qwen3moe", "qwen3next", "qwen3vlmoe", "qwen4exp", "rnd1",
    }
)  # fmt: skip
"""Architectures where an expert is ``feed_forward_length / expert_used_count`` wide without ``expert_feed_forward_length``.

llama.cpp b11434: src/models/qwen3moe.cpp:50 and the like.
"""

PER_LAYER_USED = frozenset({"nemotron_h", "nemotron_h_moe"})
"""Architectures that honour another used count for each layer (llama.cpp b11434, src/models/nemotron-h.cpp:309).

Elsewhere routing takes the first and the sum over experts the others.
"""

_MAX_EXPERTS = 1024  # src/llama-hparams.h:12, LLAMA_MAX_EXPERTS
_SOFTMAX = 1  # expert_gating_func
# Softmax over all experts before top-k, and no normalisation behind it: fewer experts, larger weights.
_BARE_SOFTMAX = frozenset({"deepseek", "jamba", "llada-moe", "nomic-bert-moe", "olmoe", "qwen2moe"})
_SOFTMAX_BY_DEFAULT = frozenset({"bailingmoe", "deepseek2", "deepseek2-ocr", "mistral4"})
_DENSE_IF_ONE = frozenset({"hunyuan-dense", "hunyuan_vl"})


def check(view: GGUF) -> tuple[Finding, ...]:
    """Return what is wrong with, or worth knowing of, the experts of a view that operations made."""
    if view.lineage is None or view.lineage.fragment:
        return ()
    before = set(_state(view.base))
    return (*(finding for finding in _state(view) if finding not in before), *_changes(view))


def _state(view: GGUF) -> Iterator[Finding]:
    """Yield what llama.cpp would refuse in a view, whatever it was made from."""
    blocks = moe_blocks(view)
    for message in strangers(view):
        yield Finding(message)
    yield from _counts(view)
    if blocks:
        yield from _groups(view)
        yield from _tables(view, blocks)
        if view.architecture in _DENSE_IF_ONE and view.expert_count <= 1:
            yield Finding(
                f"{view.architecture} with {view.expert_count} expert is loaded as a dense model, which has other tensors",
                "keep at least 2 experts",
            )


def _counts(view: GGUF) -> Iterator[Finding]:
    n, by_layer, key = view.expert_count, _used(view), view.key("expert_used_count")
    if n > _MAX_EXPERTS:
        yield Finding(f"{n} experts are more than the {_MAX_EXPERTS} that llama.cpp takes")
    most = max(by_layer, default=0)
    if most > n:
        yield Finding(f"{key} = {most}, but a layer keeps {counted(n, 'expert')}", f"add {_use(n)} or a lower number")
    elif n and not most:
        yield Finding(f"{key} is 0 or not there, but layers have {counted(n, 'expert')}", f"add {_use('N')}")
    if len(set(by_layer)) > 1 and view.architecture not in PER_LAYER_USED:
        yield Finding(f"{key} differs between layers, which llama.cpp gets wrong in {view.architecture}", f"add {_use('N')}")


def _used(view: GGUF) -> list[int]:
    """Return how many experts a token goes through: of each layer, or the one number for all."""
    used = view.expert_used_count
    return used if isinstance(used, list) else [used]


def _use(n: int | str) -> str:
    """Name the operation that sets the used count, and the option of the command line."""
    return f"set_expert_used({n}) (--expert-used {n})"


def _groups(view: GGUF) -> Iterator[Finding]:
    n = view.expert_count
    count, used = (int(view.hparam(key, 0)) for key in GROUP_KEYS)
    if n and count >= n:
        yield Finding(f"{view.key(GROUP_KEYS[0])} = {count} must be below the {n} experts", "remove both group keys")
    elif count > 1:
        most = max(_used(view), default=0)
        if n % count:
            yield Finding(f"{n} experts can't be split into {count} groups", "keep as many experts of each group")
        if not 0 < used < count:
            yield Finding(
                f"{view.key(GROUP_KEYS[1])} = {used} of {count} groups", "it must be at least 1 and below the groups"
            )
        if most > used * (n // count):
            yield Finding(
                f"a token uses {most} experts, but only {used} groups of {n // count} are open to it, so masked experts "
                "would be used",
                f"add {_use(max(1, used * (n // count)))} or a lower number, or keep more experts of each group",
            )


def _tables(view: GGUF, blocks: dict[int, MoEBlock]) -> Iterator[Finding]:
    """Yield what the used count contradicts: adjugate experts, tables of ids, implied widths."""
    most = max(_used(view), default=0)
    adjugate = {tensor.ne[-1] for block in blocks.values() for tensor in block.chunked.values()}
    if adjugate and min(adjugate) < most:
        yield Finding(
            f"layers have {min(adjugate)} adjugate experts (ffn_*_chexps), fewer than the {most} experts used",
            f"keep more experts, or add {_use(min(adjugate))}",
        )
    for block in blocks.values():
        table = view.get(f"blk.{block.number}.{ID_TABLE}")
        if table is not None and table.ne[0] != most:
            yield Finding(
                f"tensor {table.name!r} names {table.ne[0]} experts a token, but {most} are used",
                f"models that route by token id need {_use(table.ne[0])}",
            )
    if most and view.architecture in WIDTH_BY_USED and not view.hparam("expert_feed_forward_length"):
        ffn = view.hparam("feed_forward_length", 0)
        down = next((b.routed[d] for b in blocks.values() if (d := "ffn_down_exps.weight") in b.routed), None)
        if down is not None and isinstance(ffn, int) and ffn // most != down.ne[0]:
            yield Finding(
                f"without {view.key('expert_feed_forward_length')} experts would be {ffn} / {most} wide, but tensor "
                f"{down.name!r} has {down.ne[0]}",
                f"{_use('N')} writes the key",
            )


def _changes(view: GGUF) -> Iterator[Finding]:
    """Yield what a view does to the routing of the one that it was made from."""
    base = view.base
    n, all_of = view.expert_count, base.expert_count
    yield from _order(view)
    if view.architecture == "llama4" and (n == 128) != (all_of == 128):  # src/models/llama4.cpp:26
        yield Finding(
            f"llama.cpp normalises queries and keys of llama4 unless there are exactly 128 experts: {n} of {all_of} would "
            "compute another attention",
            "keep all experts",
        )
    if view.lineage and view.lineage.experts and view.architecture not in ARCHITECTURES:
        yield Finding(
            f"the architecture {view.architecture!r} is not known here: experts were told by the names of tensors",
            refuse=False,
        )
    if not 0 < n < all_of:
        return
    used = view.expert_used_count
    if used == n or used == [n] * view.block_count:
        yield Finding(
            f"all {n} kept experts are used for every token: nothing is routed any more, the layer is dense", refuse=False
        )
    if _bare_softmax(view):
        yield Finding(
            f"{view.architecture} weighs experts by a softmax over all of them: over {n} instead of {all_of}, the kept "
            "ones weigh more than they did",
            refuse=False,
        )
    if _lost_groups(view):
        yield Finding(
            f"tokens choose among all {n} experts; the model's {base.hparam(GROUP_KEYS[0])} groups no longer limit them",
            refuse=False,
        )


def _bare_softmax(view: GGUF) -> bool:
    if view.architecture in _BARE_SOFTMAX:
        return True
    gating = view.hparam("expert_gating_func", 0)
    softmax = gating == _SOFTMAX or (not gating and view.architecture in _SOFTMAX_BY_DEFAULT)
    return softmax and not view.hparam("expert_weights_norm", default=False)


def _lost_groups(view: GGUF) -> bool:
    """Whether a limit to groups is gone that the kept experts would still need."""
    base = view.base
    if int(base.hparam(GROUP_KEYS[0], 0)) <= 1 or int(view.hparam(GROUP_KEYS[0], 0)) > 1 or view.lineage is None:
        return False
    if not view.lineage.experts:
        return True
    try:
        if regroup(base, view.lineage.experts) is not None:
            return True
    except UnsupportedCutError:
        return True
    # One expert in each group: the limit was one on how many a token uses.
    count, most = (int(base.hparam(key, 0)) for key in GROUP_KEYS)
    size = base.expert_count // count
    left = {i // size for i in next(iter(view.lineage.experts.values()))}
    return len(left) > most and max(_used(view), default=0) > most


def _order(view: GGUF) -> Iterator[Finding]:
    """Yield tensors that took other experts than the record of the cut says.

    Router rows and expert slabs are only right together; an operation that moves some of them and not the others would route
    tokens to other experts without any error.
    """
    if view.lineage is None:
        return
    base_blocks = moe_blocks(view.base)
    per_chunk = max(1, int(view.base.hparam("experts_per_group", 1)))
    for number, block in moe_blocks(view).items():
        origin = view.blocks[number] if number < len(view.blocks) else None
        base = base_blocks.get(origin) if origin is not None else None
        if base is None:
            continue
        ids = view.lineage.experts.get(base.number, tuple(range(base.count)))
        for rest, tensor in block.routed.items():
            yield from _same(tensor, base.routed.get(rest), ids, view)
        if block.chunked:
            kept = chunks(ids, per_chunk, f"block {number}")
            for rest, tensor in block.chunked.items():
                yield from _same(tensor, base.chunked.get(rest), kept, view)


def _same(tensor: Tensor, base: Tensor | None, ids: Sequence[int], view: GGUF) -> Iterator[Finding]:
    """Compare a tensor with the slabs of its base that it should be made of; a tensor of other sources is left alone."""
    if base is None or (view.lineage and tensor.name in view.lineage.grafted):
        return
    if tensor.pieces == base.pieces and list(ids) == list(range(base.ne[-1])):
        return  # whole: types that can't be sliced are no matter
    if tensor.pieces == base[ids].pieces:
        return
    slabs = {base[i].pieces: i for i in range(base.ne[-1])}
    taken = [slabs.get(tensor[i].pieces) for i in range(tensor.ne[-1])]
    if None not in taken:
        yield Finding(
            f"tensor {tensor.name!r} has the experts {taken}, but the cut of its block kept {list(ids)}: router rows and "
            "experts would not belong together",
            "take the same ids from every tensor of `arch.expert_axis`, and record them with evolve(experts=...)",
        )
