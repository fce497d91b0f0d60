"""Which layers to keep, and why: choosers that `keep_layers` asks when it meets a model.

No criterion ranks layers from a file's header alone. What a small model of the same architecture needs is its first layers,
which are special in many of them, at least one whole period of kinds, and its last layers; `ends` and `evenly` name those.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.arch import trunk_length, would_load
from ggufslice.errors import UnsupportedCutError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggufslice.view import GGUF

__all__ = ["chooser_of", "ends", "evenly"]


def _count(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"a number of layers is a whole number, not the bool {value!r}")
    if (number := operator.index(value)) < 0:
        raise ValueError(f"a number of layers can't be {number}")
    return number


@attrs.frozen
class ends:  # noqa: N801 - choosers read as words: keep_layers(ends(2, 2))
    """The first and the last layers of the trunk.

    Parameters
    ----------
    first, last
        How many of each.

    Examples
    --------
    >>> ends(2, 2)
    ends(first=2, last=2)
    """

    first: int = attrs.field(converter=_count)
    last: int = attrs.field(converter=_count)

    def __attrs_post_init__(self) -> None:
        if not self.first + self.last:
            raise ValueError("keep at least 1 layer")

    def __call__(self, view: GGUF) -> tuple[int, ...]:
        """Return the layers' numbers in a view.

        Raises
        ------
        UnsupportedCutError
            The model has fewer layers.
        """
        trunk = trunk_length(view)
        if self.first + self.last > trunk:
            raise UnsupportedCutError(f"can't keep {self.first} first and {self.last} last layers: the model has {trunk}")
        return (*range(self.first), *range(trunk - self.last, trunk))

    def to_json(self) -> dict[str, Any]:
        """Return what a recipe says."""
        return {"ends": [self.first, self.last]}


@attrs.frozen
class evenly:  # noqa: N801 - choosers read as words: keep_layers(evenly(8))
    """Layers spread over the trunk, in groups of neighbours as small as the architecture allows.

    Where layers repeat in periods, such as three of recurrence and one of attention, groups are whole periods, so that every
    layer stays what it is. The first and the last group are always among them.

    Parameters
    ----------
    count
        How many layers.

    Examples
    --------
    >>> evenly(8)
    evenly(count=8)
    """

    count: int = attrs.field(converter=_count)

    def __attrs_post_init__(self) -> None:
        if not self.count:
            raise ValueError("keep at least 1 layer")

    def __call__(self, view: GGUF) -> tuple[int, ...]:
        """Return the layers' numbers in a view.

        Raises
        ------
        UnsupportedCutError
            The model has fewer layers, or no such choice keeps every layer what it is.
        """
        trunk = trunk_length(view)
        if self.count > trunk:
            raise UnsupportedCutError(f"can't keep {self.count} layers: the model has {trunk}")
        for size in range(1, self.count + 1):
            if self.count % size == 0:
                kept = self._spread(trunk // size, size)
                if would_load(view, kept):
                    return kept
        raise UnsupportedCutError(
            f"no {self.count} evenly spread layers of {view.architecture} keep their kinds; try a multiple of the period in "
            "which they repeat"
        )

    def _spread(self, groups: int, size: int) -> tuple[int, ...]:
        wanted = self.count // size
        chosen = [0] if wanted == 1 else [round(i * (groups - 1) / (wanted - 1)) for i in range(wanted)]
        return tuple(group * size + i for group in chosen for i in range(size))

    def to_json(self) -> dict[str, Any]:
        """Return what a recipe says."""
        return {"evenly": self.count}


def chooser_of(described: Mapping[str, Any]) -> ends | evenly:
    """Return the chooser that a recipe describes, such as ``{"ends": [2, 2]}``.

    Raises
    ------
    ValueError
        No chooser is called so.
    """
    match dict(described):
        case {"ends": [first, last], **rest} if not rest:
            return ends(first, last)
        case {"evenly": count, **rest} if not rest:
            return evenly(count)
    raise ValueError(f"layers are chosen by {{'ends': [first, last]}} or {{'evenly': count}}, not by {dict(described)!r}")
