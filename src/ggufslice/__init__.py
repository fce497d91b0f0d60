"""Cut any GGUF down to the experts, layers and tensors that you name, by fetching exactly the bytes that survive.

>>> import ggufslice as gs
>>> model = gs.open("model-00001-of-00014.gguf")                      # doctest: +SKIP
>>> cut = model.pipe(gs.select_experts(16), gs.keep_layers(12))       # doctest: +SKIP
>>> print(cut.write("small.gguf"))                                    # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ggufslice.errors import (
    AuthError,
    BenchError,
    FormatError,
    GGUFSliceError,
    MetadataKeyError,
    MissingExtraError,
    OutputError,
    RangeNotSupportedError,
    SourceChangedError,
    SourceError,
    TensorNotFoundError,
    UnsupportedCutError,
)
from ggufslice.view import GGUF, Metadata, Tensor

if TYPE_CHECKING:
    from ggufslice.accounting import Transfer
    from ggufslice.imatrix import slice_imatrix
    from ggufslice.io.open import RemoteGGUF, open  # noqa: A004 - the name that users expect
    from ggufslice.io.options import TransferOptions
    from ggufslice.io.plan import Plan
    from ggufslice.io.progress import Progress
    from ggufslice.layer_selection import ends, evenly
    from ggufslice.ops import (
        drop_layers,
        drop_tensors,
        graft,
        keep_layers,
        keep_tensors,
        remove_metadata,
        rename_tensors,
        select_experts,
        set_expert_used,
        set_metadata,
    )
    from ggufslice.receipt import Receipt
    from ggufslice.selection import ExpertPlan

__version__ = "0.1.0"

# Names that bring more modules with them are imported when they are first asked for: `import ggufslice` stays cheap.
_LAZY: dict[str, str] = {
    "Plan": "ggufslice.io.plan",
    "Progress": "ggufslice.io.progress",
    "Receipt": "ggufslice.receipt",
    "RemoteGGUF": "ggufslice.io.open",
    "Transfer": "ggufslice.accounting",
    "TransferOptions": "ggufslice.io.options",
    "open": "ggufslice.io.open",
    "ExpertPlan": "ggufslice.selection",
    "drop_layers": "ggufslice.ops",
    "ends": "ggufslice.layer_selection",
    "evenly": "ggufslice.layer_selection",
    "drop_tensors": "ggufslice.ops",
    "graft": "ggufslice.ops",
    "keep_layers": "ggufslice.ops",
    "keep_tensors": "ggufslice.ops",
    "remove_metadata": "ggufslice.ops",
    "rename_tensors": "ggufslice.ops",
    "select_experts": "ggufslice.ops",
    "set_expert_used": "ggufslice.ops",
    "set_metadata": "ggufslice.ops",
    "slice_imatrix": "ggufslice.imatrix",
}

__all__ = [
    "GGUF",
    "AuthError",
    "BenchError",
    "ExpertPlan",
    "FormatError",
    "GGUFSliceError",
    "Metadata",
    "MetadataKeyError",
    "MissingExtraError",
    "OutputError",
    "Plan",
    "Progress",
    "RangeNotSupportedError",
    "Receipt",
    "RemoteGGUF",
    "SourceChangedError",
    "SourceError",
    "Tensor",
    "TensorNotFoundError",
    "Transfer",
    "TransferOptions",
    "UnsupportedCutError",
    "drop_layers",
    "drop_tensors",
    "ends",
    "evenly",
    "graft",
    "keep_layers",
    "keep_tensors",
    "open",
    "remove_metadata",
    "rename_tensors",
    "select_experts",
    "set_expert_used",
    "set_metadata",
    "slice_imatrix",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
