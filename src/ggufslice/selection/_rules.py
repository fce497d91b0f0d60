"""Checked numbers, and rules that choose experts in any block."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import attrs
import numpy as np

from ggufslice.errors import UnsupportedCutError

__all__ = ["Rule", "expert_ids", "positive", "whole"]


def expert_ids(values: Any, where: str = "experts") -> tuple[int, ...]:
    """Return a list of expert ids as a tuple.

    Parameters
    ----------
    values
        Whole numbers from 0 on, in their new order.
    where
        How a message calls them.

    Raises
    ------
    TypeError
        Not a list of whole numbers.
    ValueError
        None at all, a negative one, or one twice.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{where}: expected a list of expert ids, got {values!r}")
    if isinstance(values, set | frozenset):
        raise TypeError(f"{where}: a set has no order, and experts are kept in the order that is given; pass a list")
    ids = tuple(whole(v, where) for v in values)
    if not ids:
        raise ValueError(f"{where}: keep at least one expert")
    seen: set[int] = set()
    for i in ids:
        if i < 0:
            raise ValueError(f"{where}: expert ids count from 0, got {i}")
        if i in seen:
            raise ValueError(f"{where}: expert {i} is there twice")
        seen.add(i)
    return ids


def whole(value: Any, where: str) -> int:
    """Return a whole number as an int; a bool or a fraction is a TypeError."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError  # noqa: TRY301 - the same message as for any other type
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{where}: expected a whole number, got {value!r}") from None


def positive(value: Any, where: str) -> int:
    """Return a whole number of at least 1."""
    number = whole(value, where)
    if number < 1:
        raise ValueError(f"{where}: expected at least 1, got {number}")
    return number


def _n(value: Any) -> int:
    return positive(value, "experts to keep")


def _seed(value: Any) -> int:
    return whole(value, "seed")


def _ids(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


@attrs.frozen
class Rule:
    """A choice of experts that can be made for any block.

    Parameters
    ----------
    kind
        ``"first"``, ``"strided"`` (spread evenly), ``"random"`` or ``"listed"`` (the same ids everywhere).
    n
        How many to keep.
    seed
        Of ``"random"``.
    listed
        Of ``"listed"``.
    """

    kind: str = attrs.field(validator=attrs.validators.in_(("first", "strided", "random", "listed")))
    n: int = attrs.field(converter=_n)
    seed: int = attrs.field(default=0, converter=_seed)
    listed: tuple[int, ...] = attrs.field(default=(), converter=_ids)

    def ids(self, block: int, experts: int) -> tuple[int, ...]:
        """Choose among the `experts` of a block; in ascending order, unless they are listed.

        Raises
        ------
        UnsupportedCutError
            The block has fewer.
        """
        if self.n > experts:
            raise UnsupportedCutError(f"block {block} has {experts} experts: {self.n} of them can't be kept")
        match self.kind:
            case "first":
                return tuple(range(self.n))
            case "strided":
                return tuple(i * experts // self.n for i in range(self.n))
            case "random":
                # Ranking by a hash gives the same choice in every version of every library.
                def rank(i: int) -> bytes:
                    return blake2b(f"{self.seed}/{block}/{i}".encode()).digest()

                return tuple(sorted(sorted(range(experts), key=rank)[: self.n]))
            case _:
                return self.listed

    def to_json(self) -> dict[str, Any]:
        """Return the rule as JSON-able values."""
        extra = {"seed": self.seed} if self.kind == "random" else {"listed": list(self.listed)} if self.listed else {}
        return {"kind": self.kind, "n": self.n, **extra}
