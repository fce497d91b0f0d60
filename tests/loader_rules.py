"""What llama.cpp would read from a model's metadata, written from its description and not from the code that cuts.

`architectures.json` says for each architecture what depends on a layer's number: which layers have a sliding window, are
recurrent, dense, without rope. `facts` reads a model so, layer by layer, and `faults` says what its loader would reject.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ggufslice.view import GGUF

Entry = dict[str, Any]
Facts = list[dict[str, Any]]

EXACT = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_feed_forward_length",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "attention.recurrent_layers",
)
"""Arrays that must be as long as the model has blocks."""

TRUNK = ("attention.indexer.types", "xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")
"""Arrays that must be as long as its trunk."""

ZERO_KV_IS_RECURRENT = re.compile(r"head_count_kv\[i\]==0")
SWITCHED_OFF = re.compile(r"write 0|switches SWA off|if sliding_window>0")


def own(view: GGUF) -> dict[str, Any]:
    """Return an architecture's keys without its name, and those that have none."""
    prefix = f"{view.architecture}."
    return {key.removeprefix(prefix): value for key, value in view.metadata.items()}


def window_on(entry: Entry, keys: Mapping[str, Any]) -> bool:
    """Whether the loader reads the pattern of windows at all."""
    text = " ".join([entry["swa_pattern"]["mode"], *entry["notes"], *entry["required_layer_kinds"]])
    if "n_layer()==64" in entry["swa_pattern"]["mode"]:
        return bool(keys["block_count"] == 64)
    if "switches SWA off" in text:
        return keys.get("attention.sliding_window") != 0
    return not SWITCHED_OFF.search(text) or keys.get("attention.sliding_window", 0) > 0


def windows(entry: Entry, keys: Mapping[str, Any]) -> list[bool]:
    """Return which layers have a window."""
    n, told = keys["block_count"], entry["swa_pattern"]
    if not window_on(entry, keys):
        return [False] * n
    pattern = keys.get("attention.sliding_window_pattern", told["default_period"])
    if isinstance(pattern, list):
        return [bool(value) for value in (pattern + [0] * n)[:n]]
    trunk = n - keys.get("nextn_predict_layers", 0)
    full = 0 if told["dense_first"] else pattern - 1
    return [i % pattern != full and i < trunk for i in range(n)]


def recurrences(entry: Entry, keys: Mapping[str, Any]) -> list[bool]:
    """Return which layers are recurrent."""
    n = keys["block_count"]
    trunk = n - keys.get("nextn_predict_layers", 0)
    if "recurrent_pattern" in entry:
        told = keys.get("attention.recurrent_layers")
        interval = keys.get("full_attention_interval", entry["recurrent_pattern"]["default_interval"])
        return [bool(told[i]) if told else (i + 1) % interval != 0 and i < trunk for i in range(n)]
    heads = keys.get("attention.head_count_kv")
    return [isinstance(heads, list) and heads[i] == 0 and i < trunk for i in range(n)]


def is_hybrid(entry: Entry) -> bool:
    """Whether there are attention and recurrent layers."""
    return "recurrent_pattern" in entry or any(ZERO_KV_IS_RECURRENT.search(note) for note in entry["notes"])


def facts(entry: Entry, view: GGUF) -> Facts:
    """Return what the loader derives of each layer."""
    keys = own(view)
    n = keys["block_count"]
    layers: Facts = [{"mtp": i >= n - keys.get("nextn_predict_layers", 0)} for i in range(n)]

    def add(name: str, values: Sequence[object]) -> None:
        for layer, value in zip(layers, values, strict=True):
            layer[name] = value

    if "swa_pattern" in entry:
        add("window", windows(entry, keys))
    if is_hybrid(entry):
        add("recurrent", recurrences(entry, keys))
    if "dense_lead_rule" in entry:
        add("dense", [i < keys.get("leading_dense_block_count", 0) for i in range(n)])
    for rule in entry.get("index_bound_types", ()):
        step = rule["mod"] if isinstance(rule["mod"], int) else keys[rule["metadata_step"]]
        residue = rule["residue"] if isinstance(rule["residue"], int) else step - 1
        add(rule["what"], [i % step == residue for i in range(n)])
    for key in entry["per_layer_array_keys"]:
        value = keys.get(key.removeprefix(f"{view.architecture}."))
        if isinstance(value, list) and not key.endswith(("pattern", "recurrent_layers")):
            add(key, [value[i] if i < len(value) else None for i in range(n)])
    return layers


def faults(entry: Entry, view: GGUF) -> list[str]:
    """Return what the loader would reject, or crash on."""
    keys, layers = own(view), facts(entry, view)
    n = keys["block_count"]
    trunk = [layer for layer in layers if not layer["mtp"]]
    out = [key for key in EXACT if isinstance(keys.get(key), list) and len(keys[key]) != n]
    out += [key for key in TRUNK if isinstance(keys.get(key), list) and len(keys[key]) != len(trunk)]
    numbers = {int(match[1]) for name in view if (match := re.match(r"blk\.(\d+)\.", name))}
    out += [f"tensors of layers {sorted(numbers)}"] if numbers != set(range(n)) else []
    needs = " ".join(entry["required_layer_kinds"])
    if "swa_pattern" in entry and window_on(entry, keys):
        out += ["no window"] if not any(layer["window"] for layer in trunk) else []
        out += ["only windows"] if "full layer" in needs and all(layer["window"] for layer in trunk) else []
    if is_hybrid(entry) and len({layer["recurrent"] for layer in trunk}) < 2:
        out.append("only one kind")
    if "sparse" in needs and all(layer["dense"] for layer in trunk):
        out.append("no sparse layer")
    return out
