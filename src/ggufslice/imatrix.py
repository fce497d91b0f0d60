"""Cut an importance matrix along with the model that it was measured on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from ggufslice.arch._moe import block_number, chunks, moe_blocks
from ggufslice.errors import FormatError, UnsupportedCutError
from ggufslice.provenance import Origin
from ggufslice.view import GGUF, source_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from ggufslice.tensor import Tensor

__all__ = ["slice_imatrix"]

_ENTRY = re.compile(r"(.+)\.(in_sum2|in_sum|counts|stats)")
_NEXTN = "imatrix.n_layer_nextn"


def slice_imatrix(imatrix: GGUF | str | PathLike[str], cut: GGUF) -> GGUF:
    """Cut an importance matrix as a model was cut, so that llama-quantize takes it for the result.

    Parameters
    ----------
    imatrix
        A GGUF that llama-imatrix made from the whole model: a path, a URL, or an open one.
    cut
        A view with its operations, or a file that was written from one: it says in its metadata what was kept of the
        first model, which is the one that `imatrix` must have been made from.

    Returns
    -------
    GGUF
        To be written with ``.write(path)``: entries of kept blocks under their new names, those of kept experts in their new
        order, without those of dropped tensors and without the statistics derived from whole entries (``.stats``).

    Raises
    ------
    FormatError
        The file isn't an importance matrix.
    UnsupportedCutError
        It has other counts of experts than the model, or the cut doesn't say what was kept.

    Notes
    -----
    llama.cpp b11434, tools/imatrix/imatrix.cpp:866-1055: of a tensor of experts, ``in_sum2`` has the ne order
    [values, experts] and ``counts`` [1, experts]. llama-quantize refuses one of another size than the tensor's
    (src/llama-quant.cpp:1281-1295).

    Examples
    --------
    >>> slice_imatrix("model.imatrix.gguf", cut).write("cut.imatrix.gguf")  # doctest: +SKIP
    """
    from ggufslice import open as open_source  # noqa: PLC0415 - loads what it takes to open URLs

    source: GGUF = imatrix if isinstance(imatrix, GGUF) else open_source(imatrix)
    if source.metadata.get("general.type") != "imatrix":
        raise FormatError(
            f"{source_name(source)} is no importance matrix: general.type is {source.metadata.get('general.type')!r}; "
            "llama-imatrix writes one in the GGUF format"
        )
    kept = _Kept.of(cut)
    names = {kept.old_name(name): name for name in cut if not (cut.lineage and name in cut.lineage.grafted)}
    tensors: list[Tensor] = []
    for name, tensor in source.items():
        entry = _ENTRY.fullmatch(name)
        if entry is None or entry[2] == "stats" or entry[1] not in names:
            continue
        new = names[entry[1]]
        taken = tensor if len(tensor.ne) < 2 else kept.take(tensor, new)
        tensors.append(attrs.evolve(taken, name=f"{new}.{entry[2]}"))
    metadata = source.metadata
    if _NEXTN in metadata and metadata[_NEXTN] != cut.nextn_count:
        metadata = metadata.set({_NEXTN: cut.nextn_count})
    return source.evolve(metadata=metadata, tensors=tensors, op='"custom:slice_imatrix"', fragment=True)


@attrs.frozen
class _Kept:
    """What a cut kept of the model that was measured.

    Parameters
    ----------
    layers
        For each block its number there.
    experts
        Block to the ids that its experts had there; blocks that kept all are left out.
    count
        Experts of a block there.
    per_chunk
        Experts that share an adjugate expert.
    """

    layers: Sequence[int]
    experts: Mapping[int, Sequence[int]]
    count: int
    per_chunk: int

    @classmethod
    def of(cls, cut: GGUF) -> _Kept:
        per_chunk = max(1, int(cut.hparam("experts_per_group", 1)))
        if Origin.of(cut.base) is None:  # the view was opened as the model that was measured
            of_base = cut.lineage.experts if cut.lineage else {}
            experts = {new: of_base[old] for new, old in enumerate(cut.blocks) if old in of_base}
            return cls(cut.blocks, experts, cut.base.expert_count, per_chunk)
        origin, blocks, n = Origin.of(cut), list(moe_blocks(cut)), cut.expert_count
        ids = origin.kept_experts if origin else None
        count = origin.source.expert_count if origin else None
        if origin is None or origin.kept_layers is None or (blocks and (ids is None or count is None)):
            raise UnsupportedCutError(
                f"{source_name(cut)} does not say which layers and experts of the first model it has: cut the matrix with a "
                "view of that model that the same operations were applied to"
            )
        by_block = {b: (ids or ())[i * n : (i + 1) * n] for i, b in enumerate(blocks)}
        return cls(origin.kept_layers, by_block, count or 0, per_chunk)

    def old_name(self, name: str) -> str:
        """Return the name that a tensor of the cut had."""
        at = block_number(name)
        return name if at is None else f"blk.{self.layers[at[0]]}.{at[1]}"

    def take(self, entry: Tensor, new: str) -> Tensor:
        """Take the kept experts of an entry for the tensor `new` of the cut."""
        at = block_number(new)
        if at is None or at[0] not in self.experts or "exps." not in at[1]:
            return entry
        ids, count = self.experts[at[0]], self.count
        if "_chexps." in at[1]:
            ids, count = chunks(ids, self.per_chunk, f"block {at[0]}"), count // self.per_chunk
        if entry.ne[-1] != count:
            raise UnsupportedCutError(
                f"imatrix entry {entry.name!r} has {entry.ne[-1]} experts and the model {count}: it was measured on another "
                "model, or comes from a file without counts by expert"
            )
        return entry[ids]
