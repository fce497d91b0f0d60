"""How often, and with how much effect, experts were used when an importance matrix was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggufslice.errors import FormatError
from ggufslice.view import source_name

if TYPE_CHECKING:
    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = ["WAYS", "scores"]

WAYS = {"count": ("down.counts", "gate_up.counts", "up.counts", "gate.counts"), "count*activation": ("down.in_sum2",)}
"""Ways to rank experts, with the entries of a block that tell, the first that is there."""


def scores(view: GGUF, by: str) -> dict[int, np.ndarray[Any, Any]]:
    """Fetch what tells the experts of each block apart.

    Parameters
    ----------
    view
        An importance matrix.
    by
        One of `WAYS`.

    Returns
    -------
    dict of int to numpy.ndarray
        Block number to a score for each expert; blocks without entries by expert are left out.

    Raises
    ------
    FormatError
        No block has any.
    SourceError
        The file can't be read.
    """
    from ggufslice.io.read import read_pieces  # noqa: PLC0415 - the front door to I/O

    entries = _entries(view, WAYS[by])
    if not entries:
        raise FormatError(
            f"{source_name(view)}: no counts by expert (blk.N.ffn_*_exps.weight.counts of more than one entry); make it "
            "with llama-imatrix from the whole model, in the GGUF format"
        )
    data = read_pieces([piece for tensor in entries.values() for piece in tensor.pieces])
    found: dict[int, np.ndarray[Any, Any]] = {}
    at = 0
    for block, tensor in entries.items():
        order = ">f4" if tensor.byteorder == "big" else "<f4"
        rows = np.frombuffer(data, order, tensor.n_elements, at).reshape(tensor.shape)
        found[block] = rows.sum(axis=1, dtype=np.float64)
        at += tensor.n_bytes
    return found


def _entries(view: GGUF, wanted: tuple[str, ...]) -> dict[int, Tensor]:
    """Find, for each block with entries by expert, the tensor to rank by: ne order [values, experts]."""
    entries: dict[int, Tensor] = {}
    for part, kind in (name.split(".") for name in wanted):
        for name, tensor in view.items():
            head, _, block = name.removesuffix(f".ffn_{part}_exps.weight.{kind}").rpartition(".")
            if head == "blk" and block.isdecimal() and len(tensor.ne) == 2 and tensor.ne[1] > 1:
                entries.setdefault(int(block), tensor)
    return dict(sorted(entries.items()))
