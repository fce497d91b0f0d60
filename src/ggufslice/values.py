"""Metadata values: the thirteen GGUF value types, decoding and exact encoding of one key-value record.

A type is written as llama.cpp prints it: ``u32``, ``str``, ``arr[i32]``, ``arr[arr[u8]]`` (ggml/src/gguf.cpp,
``GGUF_TYPE_NAME``). A record keeps the bytes it came in; values decode on access.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ARRAY", "STRING", "Record", "encode_string", "infer_type", "quoted", "type_name"]

# id -> name, numpy code; the ids are those of ggml/include/gguf.h, enum gguf_type
_SCALARS: dict[int, tuple[str, str]] = {
    0: ("u8", "u1"),
    1: ("i8", "i1"),
    2: ("u16", "u2"),
    3: ("i16", "i2"),
    4: ("u32", "u4"),
    5: ("i32", "i4"),
    6: ("f32", "f4"),
    7: ("bool", "u1"),
    10: ("u64", "u8"),
    11: ("i64", "i8"),
    12: ("f64", "f8"),
}
STRING, ARRAY = 8, 9
SIZES: dict[int, int] = {number: int(code[1]) for number, (_, code) in _SCALARS.items()}
_NAMES: dict[int, str] = {number: name for number, (name, _) in _SCALARS.items()} | {STRING: "str"}
_IDS: dict[str, int] = {name: number for number, name in _NAMES.items()}
_F32_MAX = float(np.finfo(np.float32).max)


def prefix(byteorder: str) -> str:
    """Return struct's and numpy's sign for a byte order."""
    return ">" if byteorder == "big" else "<"


def quoted(name: str) -> str:
    """Return a name fit for a message: in quotes, lone bytes and control characters escaped."""
    return re.sub(r"\\udc([89a-f][0-9a-f])", r"\\x\1", repr(name))


def encode_string(text: str, byteorder: str) -> bytes:
    """Return the length and the bytes of a string; lone bytes come out as they came in."""
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack(prefix(byteorder) + "Q", len(data)) + data


def type_name(number: int) -> str | None:
    """Return the name of a scalar or string type id, or None where there is no such type."""
    return _NAMES.get(number)


@attrs.frozen
class Record:
    """One key-value record, as the bytes it came in.

    Parameters
    ----------
    key
        The key; lone bytes that are not UTF-8 are surrogate escapes.
    type
        The value's type, such as ``u32`` or ``arr[str]``.
    raw
        The whole record: key, type and value, in `byteorder`.
    byteorder
        ``"little"`` or ``"big"``.
    """

    key: str
    type: str
    raw: bytes = attrs.field(repr=lambda raw: f"<{len(raw)} bytes>")
    byteorder: str = "little"

    @classmethod
    def of(cls, key: str, value: Any, type: str, *, byteorder: str = "little") -> Record:  # noqa: A002 - the field's own name
        """Encode a value.

        Raises
        ------
        ValueError
            The value does not fit the type: out of range, a bool where a number is meant, a number where text is.
        """
        try:
            tail = _encode(value, type, byteorder)
        except (ValueError, TypeError) as error:
            raise ValueError(f"metadata key {key!r}: {error}") from None
        return cls(key, type, encode_string(key, byteorder) + tail, byteorder)

    @property
    def value(self) -> Any:
        """The decoded value: int, float, bool, str, or a list of these."""
        at = 8 + len(self.key.encode("utf-8", "surrogateescape"))
        return _decode(self.raw, at, prefix(self.byteorder))[0]


def infer_type(value: Any) -> str | None:
    """Return the type of a value that can only mean one: text or a bool, alone or in a list; else None."""
    if isinstance(value, str):
        return "str"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, list | tuple) and value:
        kinds = {infer_type(v) for v in value}
        kind = kinds.pop()
        return f"arr[{kind}]" if not kinds and kind else None
    return None


def _decode(data: bytes, at: int, order: str) -> tuple[Any, int]:
    (number,) = struct.unpack_from(order + "I", data, at)
    at += 4
    if number == ARRAY:
        return _decode_array(data, at, order)
    if number == STRING:
        (length,) = struct.unpack_from(order + "Q", data, at)
        return data[at + 8 : at + 8 + length].decode("utf-8", "surrogateescape"), at + 8 + length
    values, at = _decode_scalars(data, at, order, number, 1)
    return values[0], at


def _decode_array(data: bytes, at: int, order: str) -> tuple[list[Any], int]:
    number, count = struct.unpack_from(order + "IQ", data, at)
    at += 12
    if number == STRING:
        unpack = struct.Struct(order + "Q").unpack_from
        texts = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0]
            texts.append(data[start:at].decode("utf-8", "surrogateescape"))
        return texts, at
    if number == ARRAY:
        arrays = []
        for _ in range(count):
            array, at = _decode_array(data, at, order)
            arrays.append(array)
        return arrays, at
    return _decode_scalars(data, at, order, number, count)


def _decode_scalars(data: bytes, at: int, order: str, number: int, count: int) -> tuple[list[Any], int]:
    name, code = _SCALARS[number]
    values = np.frombuffer(data, order + code, count, at)
    if name == "bool":
        values = values != 0  # some writers store 0xFF for true
    return values.tolist(), at + count * SIZES[number]


def _encode(value: Any, type_: str, byteorder: str) -> bytes:
    order = prefix(byteorder)
    if type_.startswith("arr[") and type_.endswith("]"):
        return struct.pack(order + "I", ARRAY) + _encode_array(value, type_[4:-1], byteorder)
    number = _id(type_)
    if number == STRING:
        return struct.pack(order + "I", number) + encode_string(_text(value), byteorder)
    return struct.pack(order + "I", number) + _encode_scalars([value], type_, order)


def _encode_array(values: Any, element: str, byteorder: str) -> bytes:
    order = prefix(byteorder)
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise TypeError(f"expected a list for arr[{element}], got {values!r}")
    if element.startswith("arr[") and element.endswith("]"):
        head = struct.pack(order + "IQ", ARRAY, len(values))
        return head + b"".join(_encode_array(v, element[4:-1], byteorder) for v in values)
    number = _id(element)
    head = struct.pack(order + "IQ", number, len(values))
    if number == STRING:
        return head + b"".join(encode_string(_text(v), byteorder) for v in values)
    return head + _encode_scalars(values, element, order)


def _id(type_: str) -> int:
    if type_ not in _IDS:
        raise ValueError(f"no value type is called {type_!r}; there are {', '.join(_IDS)} and arr[...] of these")
    return _IDS[type_]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text for type str, got {value!r}")
    return value


def _encode_scalars(values: Sequence[Any], type_: str, order: str) -> bytes:
    _, code = _SCALARS[_IDS[type_]]
    if type_ == "bool":
        checked: list[Any] = [_bool(v) for v in values]
    elif code.startswith("f"):
        checked = [_float(v, type_) for v in values]
    else:
        info = np.iinfo(code)
        checked = [_int(v, type_, int(info.min), int(info.max)) for v in values]
    return np.array(checked, order + code).tobytes()


def _bool(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"expected True or False for type bool, got {value!r}")
    return bool(value)


def _int(value: Any, type_: str, low: int, high: int) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"expected a number for type {type_}, got the bool {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"expected a whole number for type {type_}, got {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{number} does not fit type {type_} ({low} to {high})")
    return number


def _float(value: Any, type_: str) -> float:
    if isinstance(value, bool | np.bool_ | str):
        raise TypeError(f"expected a number for type {type_}, got {value!r}")
    number = float(value)
    if type_ == "f32" and math.isfinite(number) and abs(number) > _F32_MAX:
        raise ValueError(f"{number} does not fit type f32")
    return number
