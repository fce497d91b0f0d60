"""What cutting experts costs in quality, by how they were chosen: perplexities of a trained mixture of experts, as a table.

Needs ``GGUFSLICE_SHARED`` (the model, its texts and importance matrices) and llama.cpp's programs (in
``GGUFSLICE_LLAMA_DIR`` or on PATH).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

import ggufslice as gs
from ggufslice.bench._perplexity import perplexity

CONTEXT = 256  # the model's own
CHUNKS = 24
RETRIES = 4
KEPT = (16, 8)
SEEDS = (0, 1)
TEXTS = {"mixed": "heldout.txt", "Austen": "domains/heldout-austen.txt", "Python docs": "domains/heldout-pydoc.txt"}
MATRICES = {
    "mixed": "tinymoe.imatrix.gguf",
    "Austen": "domains/tinymoe-austen.imatrix.gguf",
    "Python docs": "domains/tinymoe-pydoc.imatrix.gguf",
}


def plans(folder: Path, n: int) -> dict[str, list[gs.ExpertPlan]]:
    """Return ways to choose `n` experts; of several plans the mean is reported."""
    ways = {
        f"the first {n}": [gs.ExpertPlan.first(n)],
        f"{n} by chance (mean of {len(SEEDS)})": [gs.ExpertPlan.random(n, seed=seed) for seed in SEEDS],
    }
    for text, name in MATRICES.items():
        ways[f"most used on {text}"] = [gs.ExpertPlan.from_imatrix(folder / name, n)]
    by = "count*activation"
    ways["most used x activation on mixed"] = [gs.ExpertPlan.from_imatrix(folder / MATRICES["mixed"], n, by=by)]
    return ways


def measure(folder: Path, model: Path) -> list[float]:
    """Return the perplexity on each text."""
    return [perplexity_of(model, folder / name) for name in TEXTS.values()]


def perplexity_of(model: Path, text: Path) -> float:
    """Measure, and again where llama-perplexity ended before its log was written, as happens on a busy machine."""
    for _ in range(RETRIES):
        try:
            value = perplexity(model, text, ctx=CONTEXT, chunks=CHUNKS, ngl=0).value
        except gs.BenchError as error:
            print(f"again: {error!s:.100}", file=sys.stderr)
            continue
        return float("nan") if value is None else value
    raise SystemExit(f"no perplexity of {text} in {RETRIES} runs")


def row(kept: int | str, way: str, values: list[float]) -> str:
    """Write a row of the table."""
    return f"| {kept} | {way} | " + " | ".join(f"{value:.1f}" for value in values) + " |"


def main() -> None:
    """Cut, measure and print."""
    folder = Path(os.environ["GGUFSLICE_SHARED"]) / "models" / "tinymoe"
    model = gs.open(folder / "tinymoe-f16-00001-of-00004.gguf")
    print("| experts kept | chosen | " + " | ".join(f"perplexity on {text}" for text in TEXTS) + " |")
    print("|---|---|" + "---:|" * len(TEXTS))
    print(row(f"all {model.expert_count}", "", measure(folder, folder / "tinymoe-f16-00001-of-00004.gguf")), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "cut.gguf"
        for n in KEPT:
            for way, chosen in plans(folder, n).items():
                measured = []
                for plan in chosen:
                    model.pipe(gs.select_experts(plan)).write(path, overwrite=True)
                    measured.append(measure(folder, path))
                print(row(n, way, [statistics.mean(column) for column in zip(*measured, strict=True)]), flush=True)


if __name__ == "__main__":
    main()
