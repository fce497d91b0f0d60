"""Operations on tensors by name."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

import attrs

from ggufslice.errors import TensorNotFoundError
from ggufslice.ops._base import Op
from ggufslice.view import source_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggufslice.view import GGUF

__all__ = ["checked_pattern", "drop_tensors", "keep_tensors", "matching", "rename_tensors"]

_MAX_NAME = 63  # bytes that ggml can hold: ggml/include/ggml.h, GGML_MAX_NAME


def checked_pattern(pattern: str) -> str:
    """Return a regular expression that compiles.

    Raises
    ------
    ValueError
        It doesn't.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {pattern!r} ({error})") from None
    return pattern


def matching(pattern: str, view: GGUF) -> list[str]:
    """Return the names that a pattern is found in.

    Raises
    ------
    TensorNotFoundError
        None.
    """
    names = [name for name in view if re.search(pattern, name)]
    if not names:
        near = difflib.get_close_matches(pattern.replace("\\", ""), list(view), n=3, cutoff=0.5)
        hint = f"; near to it are {', '.join(map(repr, near))}" if near else ""
        raise TensorNotFoundError(f"no tensor of {source_name(view)} matches {pattern!r}{hint}")
    return names


@attrs.frozen
class keep_tensors(Op):  # noqa: N801 - operations read as verbs
    r"""Keep only the tensors whose name matches; the result is a fragment, which isn't meant to load.

    Parameters
    ----------
    pattern
        A regular expression that is searched for in the name, as llama-quantize and llama.cpp's ``--override-tensor`` do.
        Anchor it with ``^`` and ``$`` to match whole names.

    Raises
    ------
    ValueError
        At once: not a regular expression.
    TensorNotFoundError
        When applied: nothing matches.

    Examples
    --------
    >>> keep_tensors(r"^blk\.0\.")
    keep_tensors(pattern='^blk\\.0\\.')
    """

    pattern: str = attrs.field(converter=checked_pattern)

    def _apply(self, view: GGUF) -> GGUF:
        names = set(matching(self.pattern, view))
        return _only(view, names)


@attrs.frozen
class drop_tensors(Op):  # noqa: N801 - operations read as verbs
    """Drop the tensors whose name matches; the result is a fragment, which isn't meant to load.

    Parameters
    ----------
    pattern
        As of `keep_tensors`.

    Raises
    ------
    ValueError
        At once: not a regular expression.
    TensorNotFoundError
        When applied: nothing matches.
    """

    pattern: str = attrs.field(converter=checked_pattern)

    def _apply(self, view: GGUF) -> GGUF:
        names = set(matching(self.pattern, view))
        return _only(view, set(view) - names)


def _only(view: GGUF, names: set[str]) -> GGUF:
    if len(names) == len(view):
        return view
    return view.evolve(tensors=[t for t in view.all_tensors if t.name in names], fragment=True)


def _mapping(mapping: Mapping[str, str]) -> dict[str, str]:
    return dict(mapping)


@attrs.frozen
class rename_tensors(Op):  # noqa: N801 - operations read as verbs
    """Rename tensors.

    Parameters
    ----------
    mapping
        Old name to new one. Names may be swapped.

    Raises
    ------
    ValueError
        At once: a name that is empty or longer than the 63 bytes that llama.cpp reads, or two tensors of one name. When
        applied: a name that another tensor has.
    TensorNotFoundError
        When applied: no tensor of the old name.
    """

    mapping: Mapping[str, str] = attrs.field(converter=_mapping)

    def __attrs_post_init__(self) -> None:
        for name in self.mapping.values():
            size = len(name.encode("utf-8", "surrogateescape"))
            if not 0 < size <= _MAX_NAME:
                raise ValueError(f"tensor name {name!r} has {size} bytes: llama.cpp reads 1 to {_MAX_NAME}")
        if len(set(self.mapping.values())) < len(self.mapping):
            raise ValueError("two tensors can't get the same name")

    def _apply(self, view: GGUF) -> GGUF:
        for old, new in self.mapping.items():
            if old not in view:
                raise TensorNotFoundError.among(old, view, source_name(view))
            if new in view and new not in self.mapping:
                raise ValueError(f"tensor {old!r} can't be called {new!r}: there is a tensor of that name")
        grafted = view.lineage.grafted if view.lineage else {}
        return view.evolve(
            tensors=[attrs.evolve(t, name=self.mapping.get(t.name, t.name)) for t in view.all_tensors],
            grafted={self.mapping.get(name, name): where for name, where in grafted.items()},
        )
