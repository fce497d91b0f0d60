"""The bytes that a view stands for, and the same done with numpy on whole tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggufslice.spans import Literal, Remap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufslice.tensor import Tensor


def content(tensor: Tensor, *files: bytes) -> bytes:
    """Return what a tensor's pieces stand for; of several files the etag of the source tells which."""
    parts = []
    for piece in tensor.pieces:
        if isinstance(piece, Literal):
            parts.append(piece.data)
            continue
        span = piece.span if isinstance(piece, Remap) else piece
        number = int(dict(span.source.validators)["etag"].strip('"'))
        data = files[number - 1][span.start : span.stop]
        if isinstance(piece, Remap):
            old = np.frombuffer(data, "<i4")
            data = np.array([piece.ids[i] for i in old], "<i4").tobytes()
        parts.append(data)
    return b"".join(parts)


def taken(data: bytes, count: int, ids: Sequence[int]) -> bytes:
    """Take slabs of `count` along the outermost axis, as numpy does."""
    return np.frombuffer(data, np.uint8).reshape(count, -1)[list(ids)].tobytes()
