"""What a file to be packed consists of: typed metadata values, and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs

from ggufslice.testing._data import ByteOrder, random_bytes, size_of

Key: TypeAlias = str | bytes
Metadata: TypeAlias = Mapping[Any, Any] | list[tuple[Any, Any]]
"""Keys (text or bytes) and values; a list of pairs when a key shall come twice."""

VALUE_TYPES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64")
"""Names of the GGUF value types; the position is the type's number in a file."""


@attrs.frozen
class Typed:
    """A metadata value with its GGUF type.

    Parameters
    ----------
    value
        A number, a bool, text (or bytes, which needn't be UTF-8), or a list of such.
    type
        One of `VALUE_TYPES`: ``u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str arr``.
    element_type
        The type of an array's elements. The elements of an array of arrays are `Typed` arrays.

    Examples
    --------
    >>> Typed(3, "u16")
    Typed(value=3, type='u16', element_type=None)
    >>> nested = Typed([Typed([1, 2], "arr", "u8"), Typed([], "arr", "str")], "arr", "arr")
    """

    value: Any
    type: str = attrs.field(validator=attrs.validators.in_(VALUE_TYPES))
    element_type: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.in_(VALUE_TYPES))
    )

    def __attrs_post_init__(self) -> None:
        """Arrays have an element type and nothing else does."""
        if (self.type == "arr") != (self.element_type is not None):
            raise ValueError(f"element_type is for arrays: type {self.type!r} with {self.element_type!r}")

    @classmethod
    def guess(cls, value: object) -> Typed:
        """Give a plain Python value the type that it has in most files.

        Text is ``str``, a bool ``bool``, an int ``u32`` (``i32`` when negative), a float ``f32``, and a list an
        array of what its elements are (``i32`` when an int among them is negative).

        Raises
        ------
        TypeError
            There is no such type, or the list is empty: say `Typed` for what you mean.
        """
        match value:
            case Typed():
                return value
            case bool():
                return cls(value, "bool")
            case int():
                return cls(value, "i32" if value < 0 else "u32")
            case float():
                return cls(value, "f32")
            case str() | bytes():
                return cls(value, "str")
            case [_, *_]:
                types = {cls.guess(item).type for item in value}
                kind = "i32" if types == {"i32", "u32"} else types.pop()
                items = [cls.guess(item) for item in value] if kind == "arr" else list(value)
                return cls(items, "arr", kind)
        raise TypeError(f"{value!r} has no GGUF type of its own: use Typed(value, type)")


@attrs.frozen
class TensorSpec:
    """A tensor of a file to be packed.

    Parameters
    ----------
    name
        The tensor's name; bytes when it isn't UTF-8.
    ne
        The dimensions in GGUF's own order, fastest first (the reverse of a numpy shape).
    type
        The ggml type id, or a ``gguf.GGMLQuantizationType``.
    data
        The exact bytes. None generates them: pseudo-random ones that depend on `seed` and `name` alone and
        dequantize to finite numbers (around 1 for a norm, around 0 otherwise). A type that isn't known here
        needs explicit data.
    fill
        ``"zeros"`` generates zero bytes.
    seed
        Another seed, other bytes.
    offset
        Where the header says the tensor starts, in bytes from the start of the data section, for files that no
        writer would make. None is behind the tensor before it.
    """

    name: Key
    ne: tuple[int, ...] = attrs.field(converter=tuple[int, ...])
    type: int = attrs.field(default=0, converter=int)
    data: bytes | None = attrs.field(default=None, repr=False, kw_only=True)
    fill: Literal["random", "zeros"] = attrs.field(default="random", kw_only=True)
    seed: int = attrs.field(default=0, kw_only=True)
    offset: int | None = attrs.field(default=None, kw_only=True)

    @property
    def n_bytes(self) -> int:
        """The size of the data, without padding.

        Raises
        ------
        ValueError
            The type is unknown, or rows aren't whole blocks, and there is no explicit data.
        """
        return size_of(self.type, self.ne) if self.data is None else len(self.data)

    def tobytes(self, byteorder: ByteOrder = "little") -> bytes:
        """Return the data as it stands in a file of this byte order; explicit data is never changed."""
        if self.data is not None:
            return self.data
        if self.fill == "zeros":
            return bytes(self.n_bytes)
        around = 1.0 if b"norm" in encoded(self.name) else 0.0
        return random_bytes(self.type, self.n_bytes, (self.seed, self.name), around=around, byteorder=byteorder)


def encoded(value: Key) -> bytes:
    """Turn a name or a text into bytes; lone bytes decoded with surrogateescape come back."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
