"""Records to JSON values and back: frozen attrs classes of numbers, text, tuples, dicts and other records."""

from __future__ import annotations

import contextlib
import types
import typing
from functools import cache
from typing import Any, TypeVar

import attrs

from ggufslice.errors import FormatError

__all__ = ["load", "plain"]

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Return a record as the types that JSON has."""
    if attrs.has(type(value)):
        return {field.name: plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def load(kind: type[T], data: Any, where: str) -> T:
    """Make a record of `kind` from what `plain` gave.

    Parameters
    ----------
    kind
        The class.
    data
        What JSON held.
    where
        How messages call it.

    Raises
    ------
    FormatError
        A field is missing, is not one of the class, or has another type.
    """
    return typing.cast("T", _load(kind, data, where))


def _load(kind: Any, data: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _load_union(arguments, data, where)
    if kind is Any:
        return data
    if attrs.has(kind):
        return _load_record(kind, data, where)
    if origin in (tuple, list) and isinstance(data, list):
        return origin(_load(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is dict and isinstance(data, dict):
        return {key: _load(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    number = int | float if kind is float else kind
    if origin is not None or not isinstance(data, number) or (isinstance(data, bool) and kind is not bool):
        raise FormatError(f"{where} should be {getattr(kind, '__name__', kind)}, and is {data!r:.80}")
    return data


def _load_union(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and types.NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not types.NoneType]
    for kind in others[:-1]:
        with contextlib.suppress(FormatError):
            return _load(kind, data, where)
    return _load(others[-1], data, where)


def _load_record(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise FormatError(f"{where} should be a table of {kind.__name__}, and is {data!r:.80}")
    hints = _hints(kind)
    if foreign := sorted(data.keys() - hints.keys()):
        raise FormatError(f"{where} has {', '.join(foreign)}, which this version doesn't know; it has {', '.join(hints)}")
    needed = {field.name for field in attrs.fields(kind) if field.default is attrs.NOTHING}
    if missing := sorted(needed - data.keys()):
        raise FormatError(f"{where} has no {', '.join(missing)}")
    return kind(**{name: _load(hints[name], value, f"{where}.{name}") for name, value in data.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
