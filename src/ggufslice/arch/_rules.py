"""What rules are made of: patterns over the block number, and facts that depend on the number of blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from ggufslice.arch._hparams import Hparams

__all__ = ["Arch", "Block", "Kind", "Need", "Pattern", "Trait", "Whole", "always"]

Kind: TypeAlias = Mapping[str, object]
"""What llama.cpp assumes of a block: aspect to value."""

Trait: TypeAlias = "Callable[[Hparams, int], object]"
"""An aspect of a block, from a model's numbers and the block's own."""

Whole: TypeAlias = "Callable[[Hparams], object]"
"""An aspect of the whole model."""


@attrs.frozen
class Block:
    """A value that names another block, whose state a block reads."""

    number: int


def always(_: Hparams) -> bool:
    """Whatever the model."""
    return True


@attrs.frozen
class Pattern:
    """A yes or no for every block, as an array in the file or by a rule of the loader.

    Parameters
    ----------
    key
        Of the array, without the architecture. One value there stands for every block, unless it is the period itself.
    implicit
        The loader's rule where the file has no array; None where it demands one.
    on
        Whether the loader looks at the pattern at all.
    trunk_only
        Whether the array has no entries for MTP blocks.
    """

    key: str
    implicit: Callable[[Hparams, int], bool] | None = None
    on: Callable[[Hparams], bool] = always
    trunk_only: bool = False

    def at(self, h: Hparams, block: int) -> bool:
        """Return the value of a block."""
        if not self.on(h):
            return False
        value = h.get(self.key)
        if isinstance(value, list):
            return block < len(value) and bool(value[block])
        if self.implicit is not None:
            return self.implicit(h, block)
        return bool(value)


@attrs.frozen
class Need:
    """Kinds of blocks without which llama.cpp does not run an architecture.

    Parameters
    ----------
    what
        In words.
    met
        Tells from the model's numbers and the trunk's blocks, in order.
    """

    what: str
    met: Callable[[Hparams, Sequence[Kind]], bool]


@attrs.frozen
class Arch:
    """What an architecture derives from a block's number or from the number of blocks.

    Anything else is the same in all of them: blocks are tensors named by number, arrays have an entry for each block, MTP
    blocks come last, `leading_dense_block_count` blocks at the head are dense.

    Parameters
    ----------
    traits
        Aspects of a block that a cut must not change.
    patterns
        Aspects that an array in the file decides; it is written when the loader's own rule would give a kept block another
        value.
    whole
        Aspects of the model that depend on how many blocks it has. Named like the key that overrides it, with its type in
        `written`, an aspect is made explicit when a cut would change it.
    written
        Types of the keys that override one of `whole`.
    steps
        Keys of a period or a length that a cut may rewrite.
    heads, tails
        Keys that count blocks at the start and at the end, besides those that do so everywhere.
    needs
        What must be among the kept blocks.
    own_dims
        Whether sliding-window blocks may have head dimensions of their own wherever they are; elsewhere those of block 0
        stand for all.
    prefixes
        What block tensors' names start with.
    slots
        Which of the entries of arrays, and so of `block_count`, belong to these blocks: their numbers, but where the same
        block runs more than once.
    refuse
        Why no block can be dropped.
    """

    traits: Mapping[str, Trait] = attrs.field(factory=dict)
    patterns: Mapping[str, Pattern] = attrs.field(factory=dict)
    whole: Mapping[str, Whole] = attrs.field(factory=dict)
    written: Mapping[str, str] = attrs.field(factory=dict)
    steps: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    tails: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    own_dims: bool = False
    prefixes: tuple[str, ...] = ("blk",)
    slots: Callable[[Hparams, Sequence[int]], Sequence[int]] = lambda _, kept: kept
    refuse: Callable[[Hparams], str] = lambda _: ""
