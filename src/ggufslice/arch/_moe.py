"""Which tensors carry the expert axis, and what llama.cpp assumes of experts, groups and used counts.

In every architecture the expert axis is the outermost one, so experts are cut by taking slabs (`Tensor.__getitem__`). The
axis is chosen by a tensor's name, never by its size: an embedding as wide as the model has experts is common in small
models. Sources: llama.cpp b11434, src/llama-arch.cpp:455-735 (names), src/llama-model.cpp:1333-1376 (assertions),
src/llama-graph.cpp:2085-2260 (routing).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from ggufslice.errors import UnsupportedCutError
from ggufslice.units import blocks_by_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = [
    "GROUP_KEYS",
    "ID_TABLE",
    "MoEBlock",
    "block_number",
    "chunks",
    "expert_axis",
    "moe_blocks",
    "regroup",
    "strangers",
]

ID_TABLE = "ffn_gate_tid2eid.weight"
"""Table of expert ids by token, in layers that route by hash (deepseek4)."""

GROUP_KEYS = ("expert_group_count", "expert_group_used_count")

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
# Names behind `blk.N.` whose outermost axis is that of experts, with the number of axes that llama.cpp gives them.
_ROUTED = {
    re.compile(r"ffn_(gate|up|down|gate_up)_exps\.weight"): 3,
    re.compile(r"ffn_(gate|up|down|gate_up)_exps\.bias"): 2,
    re.compile(r"ffn_(gate|up|down|gate_up)_exps\.(scale|input_scale)"): 1,
    re.compile(r"ffn_gate_inp\.weight"): 2,
    re.compile(r"ffn_gate_inp\.bias"): 1,
    re.compile(r"exp_probs_b(_vl)?(\.bias)?"): 1,
}
# grovemoe's adjugate experts: one for each chunk of `experts_per_group` neighbours.
_CHUNKED = {re.compile(r"ffn_(gate|up|down)_chexps\.weight"): 3}
_LEGACY = re.compile(r"ffn_(gate|up|down)\.\d+\.(weight|bias)")
_LOOKS_ROUTED = re.compile(r"(ffn|exp)_.+")
# Looks like an expert's tensor and isn't: dense and shared feed-forwards, norms, projections around the experts.
_NOT_ROUTED = re.compile(
    r"ffn_((gate|up|down|gate_up)(_shexp)?|gate_inp_shexp|norm(_\d)?|(pre|post|sub)_norm(_\d)?|norm_exps|res_score|act"
    r"|(latent|routed|conv)_\w+)(\.\w+)?|ffn_gate_inp\.scale|" + re.escape(ID_TABLE)
)


@attrs.frozen
class MoEBlock:
    """The tensors of one block that carry the expert axis.

    Parameters
    ----------
    number
        Of the block, in the view.
    routed
        Tensors by name behind ``blk.N.``, their expert axis outermost.
    chunked
        Tensors that have one entry for each chunk of experts.
    """

    number: int
    routed: Mapping[str, Tensor]
    chunked: Mapping[str, Tensor]

    @property
    def count(self) -> int:
        """Experts of the block, by the first of its tensors."""
        return next(iter(self.routed.values())).ne[-1]


def block_number(name: str) -> tuple[int, str] | None:
    """Split ``blk.3.ffn_up_exps.weight`` into 3 and the rest; None for a tensor outside the blocks."""
    match = _BLOCK.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def _with_rank(tensor: Tensor, rank: int) -> Tensor:
    """Give the tensor `rank` axes: writers drop trailing ones of 1, as those of a model cut to one expert."""
    ne = tensor.ne
    while len(ne) > rank and ne[-1] == 1:
        ne = ne[:-1]
    return attrs.evolve(tensor, ne=ne + (1,) * (rank - len(ne)))


def _rank(rest: str, table: Mapping[re.Pattern[str], int]) -> int | None:
    return next((rank for pattern, rank in table.items() if pattern.fullmatch(rest)), None)


def moe_blocks(view: GGUF) -> dict[int, MoEBlock]:
    """Return the blocks that have routed experts, by number.

    Decided by tensors and not by ``expert_count``: a file may declare experts that it doesn't have.
    """
    routed: dict[int, dict[str, Tensor]] = {}
    chunked: dict[int, dict[str, Tensor]] = {}
    for name, tensor in view.items():
        if (at := block_number(name)) is None:
            continue
        number, rest = at
        for table, found in ((_ROUTED, routed), (_CHUNKED, chunked)):
            if (rank := _rank(rest, table)) is not None:
                found.setdefault(number, {})[rest] = _with_rank(tensor, rank)
    return {
        number: MoEBlock(number, tensors, chunked.get(number, {}))
        for number, tensors in sorted(routed.items())
        if any("_exps." in rest for rest in tensors)
    }


def expert_axis(view: GGUF) -> dict[str, int]:
    """Return the tensors that carry the expert axis.

    Returns
    -------
    dict of str to int
        Tensor name to entries on its outermost axis: experts, or chunks of experts (``ffn_*_chexps``).
    """
    return {
        f"blk.{block.number}.{rest}": tensor.ne[-1]
        for block in moe_blocks(view).values()
        for rest, tensor in {**block.routed, **block.chunked}.items()
    }


def strangers(view: GGUF) -> Iterator[str]:
    """Yield what makes it unsafe to cut experts by name, as messages.

    Tensors of other counts than the model says, old files with a tensor for each expert, and tensors that look like an
    expert's but that no rule names.
    """
    blocks = moe_blocks(view)
    n = view.expert_count
    per_chunk = max(1, int(view.hparam("experts_per_group", 1)))
    for name, entries in expert_axis(view).items():
        expected = n // per_chunk if "_chexps." in name else n
        if entries != expected:
            yield (
                f"tensor {name!r} has {entries} entries on its outermost axis, but {view.key('expert_count')} = {n} "
                f"means {expected}"
            )
    for name, tensor in view.items():
        if (at := block_number(name)) is None:
            continue
        number, rest = at
        if _LEGACY.fullmatch(rest):
            yield f"tensor {name!r} is one expert's own, as in old files that llama.cpp no longer loads; convert anew"
            continue
        looks = number in blocks and n > 1 and _LOOKS_ROUTED.fullmatch(rest) and tensor.ne[-1:] == (n,)
        if looks and not _NOT_ROUTED.fullmatch(rest) and _rank(rest, {**_ROUTED, **_CHUNKED}) is None:
            yield (
                f"tensor {name!r} of ne {tensor.ne} has an entry for each of the {n} experts, but its name is not known: "
                "whether it must be cut can't be told"
            )


def chunks(ids: Sequence[int], per_chunk: int, where: str) -> list[int]:
    """Return the chunks that kept ids make up.

    Parameters
    ----------
    ids
        Kept experts, in their new order.
    per_chunk
        Experts of a chunk: ``experts_per_group``.
    where
        How a message calls the block.

    Raises
    ------
    UnsupportedCutError
        The ids aren't whole chunks, one after another.

    Notes
    -----
    The adjugate expert is chosen as ``expert_id / experts_per_group``, rounded down (llama.cpp b11434,
    src/llama-graph.cpp:2165-2169).
    """
    kept: list[int] = []
    for start in range(0, len(ids), per_chunk):
        part = list(ids[start : start + per_chunk])
        chunk = part[0] // per_chunk
        if len(part) < per_chunk or sorted(part) != list(range(chunk * per_chunk, (chunk + 1) * per_chunk)):
            raise UnsupportedCutError(
                f"{where}: experts share an adjugate expert with {per_chunk - 1} neighbours, but {part} are not all of "
                f"{chunk * per_chunk} to {(chunk + 1) * per_chunk - 1}; keep whole chunks of {per_chunk}"
            )
        kept.append(chunk)
    return kept


@attrs.frozen
class Groups:
    """Group-limited routing: experts are in `count` ranges of equal size, of which a token uses the best `used`."""

    count: int
    used: int


def regroup(view: GGUF, kept: Mapping[int, Sequence[int]]) -> Groups | None:
    """Work out which groups are left of group-limited routing.

    Parameters
    ----------
    view
        Before the cut.
    kept
        Block to kept ids, as many in each block.

    Returns
    -------
    Groups or None
        None where no limit is left to express: one group, one expert in each, or as many groups as a token uses.

    Raises
    ------
    UnsupportedCutError
        The kept experts of a block aren't group after group, as many of each; or not as many groups in each block.

    Notes
    -----
    A group is a contiguous range of ids, scored by its best two experts (llama.cpp b11434, src/llama-graph.cpp:2132-2155).
    With one expert in each group the limit chooses what top-k chooses anyway, and with all groups in use it excludes
    nothing; llama.cpp aborts on both (src/llama-model.cpp:1366-1372).
    """
    count = int(view.hparam(GROUP_KEYS[0], 0))
    used = int(view.hparam(GROUP_KEYS[1], 0))
    if count <= 1:
        return None
    if view.expert_count % count:
        raise UnsupportedCutError(
            f"{view.expert_count} experts can't be in {count} groups of equal size ({view.key(GROUP_KEYS[0])}); in "
            "Python, pass groups='reset'"
        )
    size = view.expert_count // count
    left: dict[int, list[int]] = {}
    for number, ids in kept.items():
        runs: list[list[int]] = []  # group, experts kept of it
        for i in ids:
            if runs and runs[-1][0] == i // size:
                runs[-1][1] += 1
            else:
                runs.append([i // size, 1])
        groups = [group for group, _ in runs]
        if len(set(groups)) < len(groups) or len({n for _, n in runs}) > 1:
            per_group = ", ".join(f"{n} of group {group}" for group, n in runs)
            raise UnsupportedCutError(
                f"block {number}: its {view.expert_count} experts are routed in {count} groups of {size}, and this keeps "
                f"{per_group}; keep as many of each group, group after group, or whole groups, or in Python pass "
                "groups='reset' to route without groups"
            )
        left[number] = groups
    counts = {number: len(groups) for number, groups in left.items()}
    if len(set(counts.values())) > 1:
        raise UnsupportedCutError(
            f"blocks keep experts of different numbers of groups ({blocks_by_count(counts)}), but the model has one number "
            "for all; keep as many groups in each block, or in Python pass groups='reset'"
        )
    groups_left = next(iter(counts.values()))
    experts_left = len(next(iter(kept.values())))
    return None if groups_left <= used or experts_left == groups_left else Groups(groups_left, used)
