"""A tensor that has not been read: shape, type and where its bytes are."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ggufslice.errors import UnsupportedCutError
from ggufslice.spans import Piece, join, n_bytes, take
from ggufslice.tensor_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Tensor", "decode"]


@attrs.frozen
class Tensor:
    """A tensor that has not been read: its shape, its type and where its bytes are.

    Parameters
    ----------
    name
        Tensor name.
    ne
        Elements along each axis in ne order: the fastest axis first, as in the file and in llama.cpp's logs.
    tensor_type
        Type of the elements.
    pieces
        The bytes, in order.
    byteorder
        ``"little"`` or ``"big"``: that of the file.
    """

    name: str
    ne: tuple[int, ...]
    tensor_type: TensorType = attrs.field(converter=TensorType)
    pieces: tuple[Piece, ...] = attrs.field(repr=False, converter=join)
    byteorder: str = attrs.field(default="little", repr=False)

    def __attrs_post_init__(self) -> None:
        expected = self.tensor_type.n_bytes(self.n_elements)
        if expected is not None and expected != self.n_bytes:
            raise ValueError(
                f"tensor {self.name!r} of ne {self.ne} and type {self.tensor_type} has {expected} bytes, not {self.n_bytes}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis in numpy order: `ne` reversed, the outermost axis first."""
        return self.ne[::-1]

    @property
    def n_elements(self) -> int:
        """Product of `ne`."""
        return math.prod(self.ne)

    @property
    def n_bytes(self) -> int:
        """Bytes stored, without the padding behind the tensor."""
        return n_bytes(self.pieces)

    def __getitem__(self, key: int | slice | Sequence[int] | np.ndarray[Any, Any]) -> Tensor:
        """Take along the outermost axis (numpy's axis 0, the last of `ne`), as numpy indexing does.

        Parameters
        ----------
        key
            An index (its axis goes), a slice or a list of indices (the axis stays). Negative numbers count from the end.

        Raises
        ------
        IndexError
            Out of range, or the tensor has no axis.
        UnsupportedCutError
            A tensor of an unknown type, or one whose outermost axis lies inside quantized blocks.
        """
        if isinstance(key, slice):
            return self._take(range(*key.indices(self._outer())))
        if isinstance(key, list | tuple | range | np.ndarray):
            if isinstance(key, np.ndarray) and (key.dtype == bool or key.ndim != 1):
                raise IndexError(
                    f"tensor {self.name!r} takes a flat list of whole numbers, not {key.dtype} of ndim {key.ndim}"
                )
            return self._take([self._index(i) for i in key])
        one = self._take([self._index(key)])
        return attrs.evolve(one, ne=one.ne[:-1])

    def _outer(self) -> int:
        if not self.ne:
            raise IndexError(f"tensor {self.name!r} is a scalar: it has no axis to take from")
        return self.ne[-1]

    def _index(self, i: Any) -> int:
        n = self._outer()
        if isinstance(i, bool | np.bool_):
            raise IndexError(f"tensor {self.name!r}: an index is a whole number, not the bool {i!r}")
        number = operator.index(i)
        if not -n <= number < n:
            raise IndexError(f"tensor {self.name!r}: index {number} is out of range for the outermost axis of {n}")
        return number % n

    def _take(self, indices: Sequence[int]) -> Tensor:
        n = self._outer()
        if not self.tensor_type.known:
            raise UnsupportedCutError(
                f"tensor {self.name!r} has the type {self.tensor_type}, whose layout is not known here: it can be copied "
                "whole, but not sliced"
            )
        if len(self.ne) == 1 and self.tensor_type.block_size > 1:
            raise UnsupportedCutError(
                f"tensor {self.name!r}: its only axis lies inside {self.tensor_type} blocks of {self.tensor_type.block_size}"
            )
        pieces = take(self.pieces, self.n_bytes // n if n else 0, indices)
        return attrs.evolve(self, ne=(*self.ne[:-1], len(indices)), pieces=pieces)

    def read(self) -> bytes:
        """Fetch the tensor's bytes, as they are stored.

        Raises
        ------
        SourceError
            A source can't be read.
        """
        from ggufslice.io.read import read_pieces  # noqa: PLC0415 - the front door to I/O

        return read_pieces(self.pieces)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Fetch and decode the tensor.

        Returns
        -------
        numpy.ndarray
            Of `shape` (numpy order). Quantized types are dequantized to float32; BF16 too.

        Raises
        ------
        SourceError
            A source can't be read.
        UnsupportedCutError
            gguf-py can't decode this type, or quantized data of a big-endian file.
        """
        return decode(self, self.read())


def decode(tensor: Tensor, data: bytes) -> np.ndarray[Any, Any]:
    """Decode stored bytes; see `Tensor.numpy`."""
    plain = {0: "f4", 1: "f2", 24: "i1", 25: "i2", 26: "i4", 27: "i8", 28: "f8"}.get(int(tensor.tensor_type))
    if plain:
        order = ">" if tensor.byteorder == "big" else "<"
        array = np.frombuffer(data, order + plain).reshape(tensor.shape)
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    if tensor.byteorder == "big":
        raise UnsupportedCutError(f"tensor {tensor.name!r}: {tensor.tensor_type} of a big-endian file can't be decoded")
    from gguf import GGMLQuantizationType, quants  # noqa: PLC0415 - slow to import

    try:
        rows = np.frombuffer(data, np.uint8).reshape((*tensor.shape[:-1], -1))
        return np.asarray(quants.dequantize(rows, GGMLQuantizationType(int(tensor.tensor_type)))).reshape(tensor.shape)
    except (NotImplementedError, ValueError) as error:
        raise UnsupportedCutError(
            f"tensor {tensor.name!r}: the installed gguf package can't decode {tensor.tensor_type} ({error}); read() gives "
            "the stored bytes"
        ) from None
