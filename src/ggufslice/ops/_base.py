"""What our operations have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from ggufslice.view import GGUF

__all__ = ["Op"]


class Op(ABC):
    """An operation: a value that turns a view into another.

    Subclasses are frozen attrs classes whose public fields are the arguments, so that operations can be printed, compared
    and stored.
    """

    __slots__ = ()

    def __call__(self, view: GGUF) -> GGUF:
        """Apply the operation and record it."""
        return self._apply(view).evolve(op=json.dumps(self.describe(), separators=(",", ":")))

    @abstractmethod
    def _apply(self, view: GGUF) -> GGUF: ...

    def describe(self) -> dict[str, Any]:
        """Return the operation as JSON-able values: its name and the arguments that were given."""
        arguments = {
            field.name: _plain(getattr(self, field.name))
            for field in attrs.fields(type(self))  # type: ignore[arg-type]  # subclasses are attrs classes
            if getattr(self, field.name) != field.default
        }
        return {"op": type(self).__name__, **arguments}


def _plain(value: Any) -> Any:
    """Return `value` in the types that JSON has."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, range | tuple | list | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value
