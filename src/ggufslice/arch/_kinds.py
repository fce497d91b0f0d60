"""What llama.cpp will assume of each block, from metadata and the block's number alone."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ggufslice.arch._hparams import Hparams
from ggufslice.arch._rules import Arch, Block
from ggufslice.arch._table import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ggufslice.arch._rules import Kind
    from ggufslice.view import GGUF

__all__ = ["changes", "kind_of", "kinds", "kinds_of", "rule_of"]

_PLAIN = Arch()


def rule_of(h: Hparams) -> Arch:
    """Return the rules of a model's architecture; of an unknown one, those that all have."""
    return ARCHITECTURES.get(h.architecture, _PLAIN)


def kinds(view: GGUF) -> tuple[Kind, ...]:
    """Return what llama.cpp assumes of each block of a view: aspect, such as ``rope`` or ``window``, to value."""
    return kinds_of(Hparams.of(view))


@lru_cache(maxsize=8)
def kinds_of(h: Hparams) -> tuple[Kind, ...]:
    """Return what llama.cpp assumes of each block."""
    return tuple(kind_of(h, block) for block in range(h.n_named))


def kind_of(h: Hparams, block: int) -> Kind:
    """Return what llama.cpp assumes of one block."""
    rule = rule_of(h)
    return {
        # heads for multi-token prediction are told apart by their order
        "part": f"MTP head {block - h.n_trunk}" if block >= h.n_trunk else "trunk",
        **{aspect: pattern.at(h, block) for aspect, pattern in rule.patterns.items()},
        **{aspect: trait(h, block) for aspect, trait in rule.traits.items()},
    }


def changes(old: Hparams, new: Hparams, blocks: Sequence[int]) -> Iterator[tuple[str, int, object, object]]:
    """Yield each aspect of a kept block that would change.

    Parameters
    ----------
    old, new
        The model's numbers before and after a cut.
    blocks
        For each block, its number before.

    Yields
    ------
    tuple of str, int, object, object
        The aspect, the block's number now, what it was and what it would be. Blocks that others read are given by their
        number before.
    """
    before = kinds_of(old)
    for number, origin in enumerate(blocks[: new.n_named]):
        if origin >= len(before):  # grafted
            continue
        for aspect, value in kind_of(new, number).items():  # block after block: a search can stop at the first change
            now = Block(blocks[value.number]) if isinstance(value, Block) and value.number < len(blocks) else value
            if now != before[origin][aspect]:
                yield aspect, number, before[origin][aspect], now
