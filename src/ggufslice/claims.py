"""Claims: metadata keys that describe the parent and stay in a cut file, set beside what was measured."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from ggufslice.units import count_text, parse_count, percent_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufslice.view import GGUF

__all__ = ["Claim", "claims_of"]

_IMATRIX = "quantize.imatrix."
_LABEL_TOLERANCE = 0.1  # a label rounds: 671B is said of 671.03 and of 684.53 billion
_GUESSED = 1024  # a flag: llama.cpp guessed the file type from the tensors

# general.file_type -> its name and the type that llama-quantize gives most tensors.
# llama.cpp b11434, include/llama.h:117 and src/llama-quant.cpp:883.
_FILE_TYPES: dict[int, tuple[str, str]] = {
    0: ("F32", "F32"),
    1: ("F16", "F16"),
    2: ("Q4_0", "Q4_0"),
    3: ("Q4_1", "Q4_1"),
    7: ("Q8_0", "Q8_0"),
    8: ("Q5_0", "Q5_0"),
    9: ("Q5_1", "Q5_1"),
    10: ("Q2_K", "Q2_K"),
    11: ("Q3_K_S", "Q3_K"),
    12: ("Q3_K_M", "Q3_K"),
    13: ("Q3_K_L", "Q3_K"),
    14: ("Q4_K_S", "Q4_K"),
    15: ("Q4_K_M", "Q4_K"),
    16: ("Q5_K_S", "Q5_K"),
    17: ("Q5_K_M", "Q5_K"),
    18: ("Q6_K", "Q6_K"),
    19: ("IQ2_XXS", "IQ2_XXS"),
    20: ("IQ2_XS", "IQ2_XS"),
    21: ("Q2_K_S", "Q2_K"),
    22: ("IQ3_XS", "IQ3_S"),
    23: ("IQ3_XXS", "IQ3_XXS"),
    24: ("IQ1_S", "IQ1_S"),
    25: ("IQ4_NL", "IQ4_NL"),
    26: ("IQ3_S", "IQ3_S"),
    27: ("IQ3_M", "IQ3_S"),
    28: ("IQ2_S", "IQ2_XS"),
    29: ("IQ2_M", "IQ2_S"),
    30: ("IQ4_XS", "IQ4_XS"),
    31: ("IQ1_M", "IQ1_M"),
    32: ("BF16", "BF16"),
    36: ("TQ1_0", "TQ1_0"),
    37: ("TQ2_0", "TQ2_0"),
    38: ("MXFP4_MOE", "MXFP4"),
    39: ("NVFP4", "NVFP4"),
    40: ("Q1_0", "Q1_0"),
    41: ("Q2_0", "Q2_0"),
}


@attrs.frozen
class Claim:
    """A metadata key that describes the parent, beside what was measured.

    Parameters
    ----------
    key
        The key.
    claimed
        What it says.
    measured
        What the tensors say.
    holds
        Whether both agree; None where that can't be told.
    """

    key: str
    claimed: str
    measured: str
    holds: bool | None


def claims_of(view: GGUF, *, kept: str | None = None) -> tuple[Claim, ...]:
    """Return the claims of a view.

    Parameters
    ----------
    view
        The view.
    kept
        For a cut, what was kept of the model that ``general.name`` names.
    """
    return tuple(_claims(view, kept))


def _claims(view: GGUF, kept: str | None) -> Iterator[Claim]:
    metadata = view.metadata
    if kept and "general.name" in metadata:
        yield Claim("general.name", str(metadata["general.name"]), kept, None)
    if "general.size_label" in metadata:
        label = str(metadata["general.size_label"])
        experts = f", {view.expert_count} experts" if "x" in label else ""
        measured = f"{count_text(view.n_params)} parameters{experts}"
        yield Claim("general.size_label", label, measured, _label_holds(label, view))
    if "general.file_type" in metadata:
        yield _file_type(metadata["general.file_type"], view)
    for key in (k for k in metadata if k.startswith(_IMATRIX)):
        yield Claim(key, str(metadata[key]), "made for the parent's tensors", None)


def _file_type(number: object, view: GGUF) -> Claim:
    """Compare ``general.file_type`` with the type that holds the most bytes, not with that of the most tensors."""
    n_bytes: Counter[str] = Counter()
    for tensor in view.all_tensors:
        n_bytes[tensor.tensor_type.name] += tensor.n_bytes
    (top, most), *_ = n_bytes.most_common(1) or [("no type", 0)]
    measured = f"{top} holds {percent_text(most / (view.tensor_bytes or 1))} of the bytes"
    name, expected = _FILE_TYPES.get(number & ~_GUESSED if isinstance(number, int) else -1, (str(number), None))
    return Claim("general.file_type", name, measured, None if expected is None else top == expected)


def _label_holds(label: str, view: GGUF) -> bool | None:
    """Compare a label such as ``671B``, ``235B-A22B`` or ``8x7B`` with what is there."""
    if match := re.match(r"(\d+)x", label):
        return int(match[1]) == view.expert_count
    match = re.match(r"\d+(\.\d+)?[KMBT]", label)
    claimed = parse_count(match[0]) if match and float(match[0][:-1]) else None
    return None if claimed is None else abs(view.n_params - claimed) <= _LABEL_TOLERANCE * claimed
