"""Compare two models by their headers alone: metadata, and tensors' shapes and types. Nothing else is fetched.

    python diff.py hf://org/Model-GGUF/Q4_K_M hf://org/Model-GGUF/Q8_0

Exits with 1 where they differ, as diff does.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import ggufslice as gs

if TYPE_CHECKING:
    from collections.abc import Iterator


def short(value: object, limit: int = 60) -> str:
    """Return a value in one line."""
    text = f"[{len(value)} elements]" if isinstance(value, list) and len(value) > 8 else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def differences(a: gs.GGUF, b: gs.GGUF) -> Iterator[str]:
    """Yield a line for each difference: ``-`` only in the first, ``+`` only in the second, ``~`` in both."""
    for key in dict.fromkeys([*a.metadata, *b.metadata]):
        if key not in b.metadata:
            yield f"- {key} = {short(a.metadata[key])}"
        elif key not in a.metadata:
            yield f"+ {key} = {short(b.metadata[key])}"
        elif a.metadata.raw(key) != b.metadata.raw(key):
            yield f"~ {key} = {short(a.metadata[key])} -> {short(b.metadata[key])}"
    for name in dict.fromkeys([*a, *b]):
        if name not in b:
            yield f"- {name} {a[name].ne} {a[name].tensor_type}"
        elif name not in a:
            yield f"+ {name} {b[name].ne} {b[name].tensor_type}"
        elif (a[name].ne, a[name].tensor_type) != (b[name].ne, b[name].tensor_type):
            yield f"~ {name} {a[name].ne} {a[name].tensor_type} -> {b[name].ne} {b[name].tensor_type}"


def main() -> int:
    """Print the differences; return how diff would exit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("first")
    parser.add_argument("second")
    args = parser.parse_args()
    lines = list(differences(gs.open(args.first), gs.open(args.second)))
    print("\n".join(lines) if lines else "no difference in the headers")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
