"""Open a file with a vocabulary of 262,144 tokens: ours against gguf-py's `GGUFReader`, in one run."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gguf import GGUFReader

import ggufslice as gs
from ggufslice.testing import TensorSpec, Typed, build_gguf

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 262_144
REACH = 100.0


def make(path: Path) -> None:
    """Write a file with the tokenizer of a large model and hardly any weights."""
    tokens = [f"token{i}" for i in range(TOKENS)]
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": Typed([0.0] * TOKENS, "arr", "f32"),
        "tokenizer.ggml.token_type": Typed([1] * TOKENS, "arr", "i32"),
        "tokenizer.ggml.merges": [f"{a} {a}" for a in tokens],
    }
    path.write_bytes(build_gguf(metadata, [TensorSpec("token_embd.weight", (32, 8), 0)]))


def best(action: Callable[[], object], rounds: int) -> float:
    """Return the shortest of several runs, in seconds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large-vocabulary.gguf"
        make(path)
        gs.open(path).close()  # imports and the event loop, once
        ours = best(lambda: gs.open(path).close(), 5)
        theirs = best(lambda: GGUFReader(path), 2)
    print(f"file with {TOKENS:,} tokens and as many merges: {path.name}")
    print(f"gguf.GGUFReader  {theirs * 1000:10.1f} ms")
    print(f"ggufslice.open   {ours * 1000:10.1f} ms")
    print(f"ratio            {theirs / ours:10.0f} x   (to reach: {REACH:.0f} x)")


if __name__ == "__main__":
    main()
