"""Cut an importance matrix along with the model that it was measured on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from ggufslice.arch._moe import block_number, chunks, moe_blocks
from ggufslice.errors import FormatError, UnsupportedCutError
from ggufslice.selection import source_name
from ggufslice.view import GGUF

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
        A GGUF that llama-imatrix made from the model that `cut` was opened as: a path, a URL, or an open one.
    cut
        A view with its operations; not a file that was written from it.

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
        It has other counts of experts than the model.

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
    names = _new_names(cut)
    kept = _kept(cut)
    tensors: list[Tensor] = []
    for name, tensor in source.items():
        entry = _ENTRY.fullmatch(name)
        if entry is None or entry[2] == "stats" or entry[1] not in names:
            continue
        new = names[entry[1]]
        ids = kept.get(new)
        if ids is not None and len(tensor.ne) > 1:
            tensor = _taken(tensor, ids[0], ids[1])  # noqa: PLW2901 - the same entry, cut
        tensors.append(attrs.evolve(tensor, name=f"{new}.{entry[2]}"))
    metadata = source.metadata
    if _NEXTN in metadata and metadata[_NEXTN] != cut.nextn_count:
        metadata = metadata.set({_NEXTN: cut.nextn_count})
    return source.evolve(metadata=metadata, tensors=tensors, op='"custom:slice_imatrix"', fragment=True)


def _new_names(cut: GGUF) -> dict[str, str]:
    """Map names of the model as it was opened to those that the tensors have now; dropped ones aren't there."""
    blocks = {old: new for new, old in enumerate(cut.blocks)}
    names: dict[str, str] = {}
    for name in cut.base:
        at = block_number(name)
        if at is None:
            new = name
        elif at[0] in blocks:
            new = f"blk.{blocks[at[0]]}.{at[1]}"
        else:
            continue
        if new in cut:
            names[name] = new
    return names


def _kept(cut: GGUF) -> Mapping[str, tuple[Sequence[int], int]]:
    """Return, by new name, which experts a tensor of experts kept, and of how many."""
    experts = cut.lineage.experts if cut.lineage else {}
    base = moe_blocks(cut.base)
    per_chunk = max(1, int(cut.base.hparam("experts_per_group", 1)))
    kept: dict[str, tuple[Sequence[int], int]] = {}
    for new, old in enumerate(cut.blocks):
        if old not in experts or old not in base:
            continue
        for rest, tensor in base[old].routed.items():
            if "_exps." in rest:
                kept[f"blk.{new}.{rest}"] = (experts[old], tensor.ne[-1])
        for rest, tensor in base[old].chunked.items():
            kept[f"blk.{new}.{rest}"] = (chunks(experts[old], per_chunk, f"block {new}"), tensor.ne[-1])
    return kept


def _taken(entry: Tensor, ids: Sequence[int], count: int) -> Tensor:
    if entry.ne[-1] != count:
        raise UnsupportedCutError(
            f"imatrix entry {entry.name!r} has {entry.ne[-1]} experts and the model {count}: it was measured on another "
            "model, or comes from a file without counts by expert"
        )
    return entry[ids]
