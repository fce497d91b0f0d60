"""Put tensors of another file into a model."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.arch._layers import PER_BLOCK
from ggufslice.arch._moe import block_number
from ggufslice.errors import UnsupportedCutError, redact_url
from ggufslice.ops._base import Op
from ggufslice.ops._tensors import checked_pattern, matching
from ggufslice.view import GGUF, source_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ggufslice.metadata import Metadata
    from ggufslice.tensor import Tensor

__all__ = ["graft"]


def _donor(donor: Any) -> GGUF | str:
    if isinstance(donor, GGUF):
        return donor
    if not isinstance(donor, str | os.PathLike):
        raise TypeError(f"expected an open model, a path or a URL as donor, got {donor!r}")
    return os.fspath(donor)


@attrs.frozen
class graft(Op):  # noqa: N801 - operations read as verbs
    r"""Put tensors of another file in the place of those of the same name, or add them.

    Parameters
    ----------
    donor
        An open model, with operations or without, or a path or URL, which is opened when the operation is applied.
    pattern
        Which of its tensors: a regular expression, as of `keep_tensors`.

    Raises
    ------
    TypeError, ValueError
        At once: no such donor or pattern.
    SourceError, FormatError
        When applied: the donor can't be opened.
    TensorNotFoundError
        When applied: nothing matches.
    UnsupportedCutError
        When applied: a tensor of another shape than the one that it replaces, another byte order, a block that isn't there.

    Notes
    -----
    Types are free. Blocks have the numbers of both models as they are; only the donor's MTP blocks
    (``nextn_predict_layers``, at its tail) move to the tail of this one, and ``block_count``, ``nextn_predict_layers`` and
    the keys with an entry for each block follow. They need as many experts as this model has: cut the donor too.

    Examples
    --------
    >>> graft("https://example.org/Model-MTP.gguf", r"^blk\.92\.").describe()["donor"]
    'https://example.org/Model-MTP.gguf'
    """

    donor: GGUF | str = attrs.field(converter=_donor, repr=lambda donor: repr(_display(donor)))
    pattern: str = attrs.field(converter=checked_pattern)

    def _apply(self, view: GGUF) -> GGUF:
        donor = self.donor
        if not isinstance(donor, GGUF):
            from ggufslice import open as open_source  # noqa: PLC0415 - the front door to I/O

            donor = open_source(donor)
        where = _display(self.donor)
        if donor.byteorder != view.byteorder:
            raise UnsupportedCutError(f"{where} is {donor.byteorder}-endian and this model {view.byteorder}-endian")
        names = matching(self.pattern, donor)
        numbers = _numbers(donor, view, names, where)
        tensors = {tensor.name: tensor for tensor in view.all_tensors}
        grafted = dict(view.lineage.grafted) if view.lineage else {}
        for name in names:
            at = block_number(name)
            new = name if at is None else f"blk.{numbers[at[0]]}.{at[1]}"
            tensor = attrs.evolve(donor[name], name=new)
            if new in tensors:
                _same_shape(tensors[new], tensor, where)
            tensors[new] = tensor
            grafted[new] = where
        added = max(numbers.values(), default=-1) + 1 - view.block_count
        if added <= 0:
            return view.evolve(tensors=tensors, grafted=grafted)
        first = max((view.base.block_count, *(number + 1 for number in view.blocks)))
        return view.evolve(
            metadata=_lengthened(donor, view, added),
            tensors=tensors,
            grafted=grafted,
            blocks=(*view.blocks, *range(first, first + added)),
        )

    def describe(self) -> dict[str, Any]:
        """Return the operation as JSON-able values; the donor is its address, without credentials, or its file name."""
        return {"op": "graft", "donor": _display(self.donor), "pattern": self.pattern}


def _display(donor: GGUF | str) -> str:
    """Name the donor: a redacted URL, or a local file without its folder."""
    if isinstance(donor, GGUF):
        return source_name(donor)
    return redact_url(donor) if "://" in donor else PurePath(donor).name


def _same_shape(old: Tensor, new: Tensor, where: str) -> None:
    def padded(ne: tuple[int, ...]) -> tuple[int, ...]:
        return ne + (1,) * (4 - len(ne))

    if padded(old.ne) != padded(new.ne):
        raise UnsupportedCutError(
            f"tensor {new.name!r} of {where} has ne {new.ne}, but the one it would replace has {old.ne}"
        )


def _numbers(donor: GGUF, view: GGUF, names: Iterable[str], where: str) -> dict[int, int]:
    """Map the donor's block numbers to those of the view."""
    donor_trunk = donor.block_count - donor.nextn_count
    trunk = view.block_count - view.nextn_count
    numbers: dict[int, int] = {}
    for old in sorted({at[0] for name in names if (at := block_number(name))}):
        numbers[old] = old if old < donor_trunk else trunk + old - donor_trunk
        if old < donor_trunk and old >= trunk:
            raise UnsupportedCutError(
                f"block {old} of {where} is no MTP block, and this model's blocks end at {trunk - 1}: only MTP blocks can "
                "be added"
            )
    new = sorted(number for number in numbers.values() if number >= view.block_count)
    if new and new != list(range(view.block_count, view.block_count + len(new))):
        raise UnsupportedCutError(f"MTP blocks of {where} are added from the first on; the pattern leaves one out")
    if new and donor.architecture != view.architecture:
        raise UnsupportedCutError(f"MTP blocks of {donor.architecture} ({where}) don't fit {view.architecture}")
    return numbers


def _lengthened(donor: GGUF, view: GGUF, added: int) -> Metadata:
    """Return the view's metadata for so many more MTP blocks at its tail, with the donor's values for them."""
    values: dict[str, Any] = {
        "block_count": view.block_count + added,
        "nextn_predict_layers": view.nextn_count + added,
    }
    first = donor.block_count - donor.nextn_count + view.nextn_count
    for suffix in sorted(PER_BLOCK - {"attention.indexer.types"}):  # which has entries for the trunk alone
        ours = view.hparam(suffix)
        if not isinstance(ours, list) or len(ours) != view.block_count:
            continue
        theirs = donor.hparam(suffix)
        if theirs is None:
            raise UnsupportedCutError(f"{view.key(suffix)} needs entries for the new blocks, and the donor has no such key")
        values[suffix] = ours + (theirs[first : first + added] if isinstance(theirs, list) else [theirs] * added)
    return view.metadata.set(
        {view.key(suffix): value for suffix, value in values.items()},
        types={view.key("nextn_predict_layers"): "u32", view.key("block_count"): "u32"},
    )
