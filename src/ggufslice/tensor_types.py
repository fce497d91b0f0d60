"""Tensor types: ids, names and block sizes, of gguf-py's table and of the few that are newer than it."""

from __future__ import annotations

from functools import cache

__all__ = ["TensorType"]

# id -> name, elements in a block, bytes of a block. llama.cpp b11434, ggml/include/ggml.h and ggml/src/ggml-common.h.
_NEWER: dict[int, tuple[str, int, int]] = {
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}


@cache
def _table() -> dict[int, tuple[str, int, int]]:
    from gguf.constants import GGML_QUANT_SIZES  # noqa: PLC0415 - gguf-py takes a while to import

    return _NEWER | {int(t): (t.name, *size) for t, size in GGML_QUANT_SIZES.items()}


class TensorType(int):
    """The type of a tensor's elements: the integer id of the file, with what is known of it.

    Equal to the member of `gguf.GGMLQuantizationType` with the same id. An id that no table knows is a valid value: such a
    tensor can be copied whole, but not sliced or decoded.
    """

    __slots__ = ()

    @property
    def known(self) -> bool:
        """Whether the size of a block is known."""
        return int(self) in _table()

    @property
    def name(self) -> str:
        """The name that llama.cpp gives it, such as ``Q4_K``, or ``UNKNOWN(153)``."""
        row = _table().get(int(self))
        return row[0] if row else f"UNKNOWN({int(self)})"

    @property
    def block_size(self) -> int:
        """Elements in a block; 1 for a type that isn't known."""
        row = _table().get(int(self))
        return row[1] if row else 1

    def n_bytes(self, n_elements: int) -> int | None:
        """Return the bytes of `n_elements` in whole blocks, or None where the type isn't known."""
        row = _table().get(int(self))
        return n_elements // row[1] * row[2] if row else None

    @classmethod
    def parse(cls, name: str) -> TensorType:
        """Return the type of that name, such as ``"q8_0"``.

        Raises
        ------
        ValueError
            No such name.
        """
        for number, row in _table().items():
            if row[0] == name.upper():
                return cls(number)
        raise ValueError(f"no tensor type is called {name!r}")

    # Spelled out for type checkers, which take two kinds of int for values that are never equal.
    def __eq__(self, other: object) -> bool:
        return int(self) == other

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__
