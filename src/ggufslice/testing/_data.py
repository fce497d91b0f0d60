"""Deterministic tensor bytes: the sizes of ggml's types and values that dequantize to finite numbers."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gguf import GGML_QUANT_SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence

ByteOrder = Literal["little", "big"]

_Q2_0 = 42

BLOCKS: dict[int, tuple[int, int]] = {
    **{int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()},
    _Q2_0: (64, 18),  # newer than the tables of released gguf-py; llama.cpp b11434, ggml/src/ggml-common.h
}
"""ggml type id to (elements, bytes) of a block."""

_FLOATS = {0: "f4", 1: "f2", 28: "f8"}
_INTS = {24: "i1", 25: "i2", 26: "i4", 27: "i8"}
_BF16 = 30

# Byte offsets of the half-precision scales in a block (ggml/src/ggml-common.h): random bits there could be NaN.
_SCALES: dict[int, tuple[int, ...]] = {
    2: (0,),  # Q4_0
    3: (0, 2),  # Q4_1
    6: (0,),  # Q5_0
    7: (0, 2),  # Q5_1
    8: (0,),  # Q8_0
    9: (0, 2),  # Q8_1
    10: (80, 82),  # Q2_K
    11: (108,),  # Q3_K
    12: (0, 2),  # Q4_K
    13: (0, 2),  # Q5_K
    14: (208,),  # Q6_K
    16: (0,),  # IQ2_XXS
    17: (0,),  # IQ2_XS
    18: (0,),  # IQ3_XXS
    19: (0,),  # IQ1_S
    20: (0,),  # IQ4_NL
    21: (0,),  # IQ3_S
    22: (0,),  # IQ2_S
    23: (0,),  # IQ4_XS
    34: (52,),  # TQ1_0
    35: (64,),  # TQ2_0
    41: (0,),  # Q1_0
    _Q2_0: (0,),
}
_Q8_K, _IQ1_M, _MXFP4, _NVFP4 = 15, 29, 39, 40


def size_of(tensor_type: int, ne: Sequence[int]) -> int:
    """Return the bytes of a tensor of a known type.

    Parameters
    ----------
    tensor_type
        The ggml type id.
    ne
        The dimensions, ne order (fastest first).

    Raises
    ------
    ValueError
        The type isn't known or the rows aren't whole blocks: only explicit data tells the size then.
    """
    if tensor_type not in BLOCKS:
        raise ValueError(f"type {tensor_type} is unknown here: give the tensor's bytes as data=")
    block, n_bytes = BLOCKS[tensor_type]
    row = ne[0] if ne else 1
    if row % block:
        raise ValueError(f"rows of {row} elements aren't whole blocks of {block} (type {tensor_type})")
    return math.prod(ne) // block * n_bytes


def random_bytes(tensor_type: int, n_bytes: int, seed: object, *, around: float, byteorder: ByteOrder) -> bytes:
    """Make pseudo-random tensor data: the same for the same `seed` everywhere, and finite when dequantized.

    Parameters
    ----------
    tensor_type
        A ggml type id of `BLOCKS`.
    n_bytes
        How many bytes, as `size_of` gives them.
    seed
        Anything with a stable `repr`.
    around
        What float tensors scatter around (norms live around 1); quantized ones scatter around 0.
    byteorder
        The order of the numbers in the data.
    """
    digest = hashlib.blake2b(repr(seed).encode(), digest_size=8).digest()
    # Raw generator output is the only stream that numpy promises never to change.
    words = np.random.PCG64(int.from_bytes(digest, "little")).random_raw(-(-n_bytes // 4) + 1)
    raw = np.asarray(words, dtype="<u8").view("<u4")
    mark = ">" if byteorder == "big" else "<"
    if tensor_type in _FLOATS or tensor_type == _BF16:
        count = n_bytes // BLOCKS[tensor_type][1]
        values = around + (raw[:count].astype("f8") / 2**32 - 0.5) / 5
        if tensor_type == _BF16:
            return (values.astype("<f4").view("<u4") >> 16).astype(mark + "u2").tobytes()
        return values.astype(mark + _FLOATS[tensor_type]).tobytes()
    data = raw.view("u1")[:n_bytes].copy()
    if tensor_type not in _INTS:
        _tame(tensor_type, data.reshape(-1, BLOCKS[tensor_type][1]), raw, mark)
    return data.tobytes()


def _tame(tensor_type: int, blocks: np.ndarray[Any, Any], raw: np.ndarray[Any, Any], mark: str) -> None:
    """Replace the random bits of the scales by small positive numbers."""
    scales = 0.001 + raw[: len(blocks)].astype("f8") / 2**32 / 250
    if tensor_type == _Q8_K:
        blocks[:, 0:4] = scales.astype(mark + "f4").view("u1").reshape(-1, 4)
    elif tensor_type == _IQ1_M:  # the scale's top four bits are the top ones of the block's last 16 bits
        high = 54 if mark == ">" else 55
        blocks[:, high] = blocks[:, high] & 0x0F | 0x10
    elif tensor_type == _MXFP4:  # one power of two: 2^-8 to 2^-5
        blocks[:, 0] = 119 + blocks[:, 0] % 4
    elif tensor_type == _NVFP4:  # four scales of 4 exponent and 3 mantissa bits
        blocks[:, 0:4] = 0x08 + blocks[:, 0:4] % 16
    else:
        half = scales.astype(mark + "f2").view("u1").reshape(-1, 2)
        for offset in _SCALES[tensor_type]:
            blocks[:, offset : offset + 2] = half
