"""Operations on metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.errors import MetadataKeyError
from ggufslice.ops._base import Op
from ggufslice.values import Record
from ggufslice.view import source_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggufslice.view import GGUF

__all__ = ["parse_assignment", "remove_metadata", "set_metadata"]

_MAX_ALIGNMENT = 1 << 30


def _types(types: Mapping[str, str] | None) -> dict[str, str]:
    return dict(types or {})


def _named(values: Mapping[Any, Any]) -> dict[str, Any]:
    for key in values:
        if not isinstance(key, str) or not key:
            raise ValueError(f"a metadata key is text of at least one letter, not {key!r}")
    return dict(values)


@attrs.frozen
class set_metadata(Op):  # noqa: N801 - operations read as verbs
    """Set metadata; a key that is there keeps its place, a new one goes to the end.

    Parameters
    ----------
    values
        Key to value: a number, a bool, text, or a list of these.
    types
        Key to type, such as ``u32`` or ``arr[f32]``. Without one a key keeps the type that it has; a new key needs one
        unless its value is text or a bool.

    Raises
    ------
    ValueError
        A value that doesn't fit its type: at once where `types` says it, else when applied. A new number without a type; an
        alignment that isn't a power of two.

    Examples
    --------
    >>> set_metadata({"general.name": "Kimi-K3 12L"})
    set_metadata(values={'general.name': 'Kimi-K3 12L'}, types={})
    """

    values: dict[str, Any] = attrs.field(converter=_named)
    types: dict[str, str] = attrs.field(factory=dict, kw_only=True, converter=_types)

    def __attrs_post_init__(self) -> None:
        for key, type_ in self.types.items():
            if key not in self.values:
                raise ValueError(f"types names {key!r}, to which no value is given")
            Record.of(key, self.values[key], type_)
        align = self.values.get("general.alignment", 1)
        if not isinstance(align, int) or not 0 < align <= _MAX_ALIGNMENT or align & (align - 1):
            raise ValueError(f"metadata key 'general.alignment': expected a power of two, got {align!r}")
        if self.types.get("general.alignment", "u32") != "u32":
            raise ValueError("metadata key 'general.alignment' has the type u32")

    def _apply(self, view: GGUF) -> GGUF:
        types = {"general.alignment": "u32", **self.types} if "general.alignment" in self.values else self.types
        return view.evolve(metadata=view.metadata.set(self.values, types=types))

    def describe(self) -> dict[str, Any]:
        """Return the operation as JSON-able values."""
        described = super().describe()
        return described if self.types else {k: v for k, v in described.items() if k != "types"}


@attrs.frozen(init=False)
class remove_metadata(Op):  # noqa: N801 - operations read as verbs
    """Remove metadata.

    Parameters
    ----------
    *keys
        Keys that are there.

    Raises
    ------
    MetadataKeyError
        When applied: no such key.
    """

    keys: tuple[str, ...]

    def __init__(self, *keys: str) -> None:
        if not keys or not all(isinstance(key, str) for key in keys):
            raise TypeError(f"expected names of metadata keys, got {keys!r}")
        self.__attrs_init__(keys)

    def _apply(self, view: GGUF) -> GGUF:
        for key in self.keys:
            if key not in view.metadata:
                raise MetadataKeyError.among(key, view.metadata, source_name(view))
        return view.evolve(metadata=view.metadata.remove(self.keys))


def parse_assignment(text: str) -> tuple[str, str, Any]:
    """Read ``KEY=TYPE:VALUE``, such as ``general.name=str:Kimi-K3 12L`` or ``a.b=arr[u32]:[1, 2]``.

    Parameters
    ----------
    text
        The value of a number may be written ``0x20``; that of an array is a JSON list.

    Returns
    -------
    key : str
        The metadata key.
    type : str
        Its type, such as ``u32``.
    value
        For `set_metadata`, which checks that it fits.

    Raises
    ------
    ValueError
        Not of that form, or a value that doesn't fit its type.
    """
    key, equals, rest = text.partition("=")
    type_, colon, written = rest.partition(":")
    if not (key and equals and type_ and colon):
        raise ValueError(f"expected KEY=TYPE:VALUE, such as general.name=str:tiny, got {text!r}")
    try:
        value = _parse(type_, written)
    except (ValueError, KeyError):
        raise ValueError(f"metadata key {key!r}: {written!r} is not of type {type_}") from None
    Record.of(key, value, type_)
    return key, type_, value


def _parse(type_: str, written: str) -> Any:
    if type_.startswith("arr["):
        return json.loads(written)
    if type_ == "bool":
        return {"true": True, "false": False}[written.lower()]
    if type_ in ("f32", "f64"):
        return float(written)
    return written if type_ == "str" else int(written, 0) if type_[:1] in "ui" else written
