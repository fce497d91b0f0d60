"""A cut of scattered experts from a local file: ours against `cp` of a file of as many bytes, synced, since ours is.

In memory and, with BENCH_DISK, in a folder on a disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from _transfer import fill, make_model, ours, peer, report, workspace

KEPT = range(0, 64, 2)


def compare(where: Path, blocks: int, rounds: int) -> None:
    """Measure in a folder and print."""
    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = Path(name)
        make_model(folder / "model.gguf", blocks=blocks, slab=2 << 20)
        size = int(ours(folder / "model.gguf", folder / "out", 4, KEPT)[2])
        fill(folder / "plain.bin", size)
        mine, theirs = [], []
        for _ in range(rounds):
            copy = f"cp --sparse=never {folder}/plain.bin {folder}/out && sync -d {folder}/out"
            theirs.append(peer(folder / "out", "sh", "-c", copy))
            mine.append(ours(folder / "model.gguf", folder / "out", 4, KEPT))
        report(f"{size / 1e9:.2f} GB in {where}", min(mine)[0], min(theirs)[0], "cp + sync", 1.0)
        for who, runs in (("ours", mine), ("cp", theirs)):
            print(f"{'':44s} {who} {min(run[1] for run in runs) / size * 1e9:.2f} CPU-s/GB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    compare(workspace(), arguments.blocks, arguments.rounds)
    if disk := os.environ.get("BENCH_DISK"):
        compare(Path(disk), arguments.blocks, arguments.rounds)


if __name__ == "__main__":
    main()
