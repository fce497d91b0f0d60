"""Operations: values that turn a view into another, pure and without I/O.

========================================== ==============================================================
`select_experts`, `set_expert_used`        which routed experts stay, how many a token uses
`keep_layers`, `drop_layers`               which layers stay
`set_metadata`, `remove_metadata`          keys
`keep_tensors`, `drop_tensors`             by name; the result is a fragment
`rename_tensors`, `graft`                  other names; tensors of another file
========================================== ==============================================================

Each is a frozen attrs class: it can be printed, compared and stored, and checks its arguments when it is made. Any other
callable that takes a view and returns one works in `GGUF.pipe` too.
"""

from __future__ import annotations

from ggufslice.ops._base import Op
from ggufslice.ops._experts import select_experts, set_expert_used
from ggufslice.ops._graft import graft
from ggufslice.ops._layers import drop_layers, keep_layers
from ggufslice.ops._metadata import parse_assignment, remove_metadata, set_metadata
from ggufslice.ops._tensors import drop_tensors, keep_tensors, rename_tensors

__all__ = [
    "Op",
    "drop_layers",
    "drop_tensors",
    "graft",
    "keep_layers",
    "keep_tensors",
    "parse_assignment",
    "remove_metadata",
    "rename_tensors",
    "select_experts",
    "set_expert_used",
    "set_metadata",
]
