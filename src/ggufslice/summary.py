"""A model in a few lines: what `repr` of a view and ``ggufslice inspect`` show."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from ggufslice import layer_table
from ggufslice.provenance import Origin, source_refs
from ggufslice.units import bytes_text, count_text, counted, numbers_text, percent_text

if TYPE_CHECKING:
    from ggufslice.view import GGUF

__all__ = ["facts", "summary"]

_SHOWN_TYPES = 5


def summary(view: GGUF) -> str:
    """Return what a model is, in at most ten lines.

    Parameters
    ----------
    view
        The model, as opened or cut. Nothing is read.
    """
    lines = facts(view)
    width = max(map(len, lines))
    return "\n".join(f"{label:<{width}}  {value}" for label, value in lines.items())


def facts(view: GGUF) -> dict[str, str]:
    """Return the lines of `summary`, label and text."""
    refs, origin = source_refs(view), Origin.of(view)
    others = f" and {len(refs) - 1} more" if len(refs) > 1 else ""
    lines = {
        "model": str(view.metadata.get("general.name", "without a name")),
        "source": f"{refs[0].display}{others}" if refs else None,
        "architecture": view.architecture or "not stated",
        "layers": _layers(view, origin),
        "experts": _experts(view, origin),
        "parameters": count_text(view.n_params),
        "size": f"{bytes_text(view.tensor_bytes)} in {counted(len(view), 'tensor')}",
        "bits/param": f"{8 * view.tensor_bytes / view.n_params:.3f}" if view.n_params else None,
        "types": _types(view),
        "licence": ", ".join(str(v) for k, v in view.metadata.items() if k.startswith("general.license")) or None,
    }
    return {label: value for label, value in lines.items() if value is not None}


def plain(view: GGUF) -> dict[str, Any]:
    """Return a model as JSON-able values: layers, metadata, long arrays by length, and tensors in file order."""
    origin = Origin.of(view)
    return {
        "sources": [{"url": ref.display, "bytes": ref.size, **dict(ref.validators)} for ref in source_refs(view)],
        "architecture": view.architecture,
        "block_count": view.block_count,
        "kept_layers": origin.kept_layers if origin else None,
        "source_block_count": origin.source.block_count if origin else None,
        "expert_count": view.expert_count,
        "expert_used_count": view.expert_used_count,
        "n_params": view.n_params,
        "tensor_bytes": view.tensor_bytes,
        "layers": layer_table.plain(view),
        "metadata": {key: {"type": view.metadata.type(key), "value": _short(view.metadata[key])} for key in view.metadata},
        "tensors": [
            {"name": t.name, "ne": t.ne, "type": t.tensor_type.name, "n_params": t.n_elements, "n_bytes": t.n_bytes}
            for t in view.all_tensors
        ],
    }


def _short(value: Any, limit: int = 1024) -> Any:
    if isinstance(value, list):
        return {"length": len(value)} if len(value) > limit else [_short(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _layers(view: GGUF, origin: Origin | None) -> str:
    mtp = f", {view.nextn_count} of them for multi-token prediction" if view.nextn_count else ""
    if origin is None or origin.kept_layers is None:
        return f"{view.block_count}{mtp}"
    of = f" of {origin.source.block_count}" if origin.source.block_count else ""
    return f"{view.block_count}: {numbers_text(origin.kept_layers)}{of}{mtp}"


def _experts(view: GGUF, origin: Origin | None) -> str | None:
    if not view.expert_count:
        return None
    of = f" of {origin.source.expert_count}" if origin and origin.source.expert_count else ""
    used: object = view.expert_used_count
    if isinstance(used, list):
        low, high = min(used, default=0), max(used, default=0)
        used = f"{low} to {high}" if low < high else high
    return f"{view.expert_count}{of} in a layer, {used} used a token"


def _types(view: GGUF) -> str | None:
    """Return the types that hold the most bytes, with their parts."""
    n_bytes: Counter[str] = Counter()
    for tensor in view.all_tensors:
        n_bytes[tensor.tensor_type.name] += tensor.n_bytes
    total = view.tensor_bytes or 1
    shown = [f"{name} {percent_text(n / total)}" for name, n in n_bytes.most_common(_SHOWN_TYPES)]
    more = [f"{len(n_bytes) - _SHOWN_TYPES} more"] if len(n_bytes) > _SHOWN_TYPES else []
    return ", ".join(shown + more) or None
