"""A cut over loopback HTTP, in memory from end to end: ours against curl, and against aria2c where connections are slow.

Needs nginx, curl and aria2c. The peers fetch one file of exactly as many bytes as we do. Connections are limited twice: by
nginx, which lets the first second of each reply pass at full speed and so favours short requests, and by our own server,
which paces every reply from its first byte.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _transfer import fill, make_model, nginx, ours, paced, peer, report, workspace

KEPT = range(0, 64, 2)  # every other expert: each slab is a range of its own


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=workspace()) as name:
        folder = Path(name)
        make_model(folder / "model.gguf", blocks=arguments.blocks, slab=4 << 20)
        out = folder / "out"
        size = int(ours(folder / "model.gguf", out, 4, KEPT)[2])
        fill(folder / "plain.bin", size)
        print(f"{size / 1e9:.2f} GB each")
        with nginx(folder, folder) as url:
            mine, theirs = [], []
            for _ in range(arguments.rounds):
                theirs.append(peer(out, "curl", "-sf", "-o", out, f"{url}/plain.bin"))
                mine.append(ours(f"{url}/model.gguf", out, 16, KEPT))
            report("loopback, full speed", min(mine)[0], min(theirs)[0], "curl", 1.05)
            for who, runs in (("ours", mine), ("curl", theirs)):
                print(f"{'':44s} {who} {min(run[1] for run in runs) / size * 1e9:.2f} CPU-s/GB")
            print(f"{'':44s} {mine[0][3]:.0f} requests, memory +{max(run[4] for run in mine) / 2**20:.0f} MiB")
        limited = (("nginx limit_rate", nginx(folder, folder, "limit_rate 30m;")), ("paced", paced(folder)))
        for limiter, server in limited:
            with server as url:
                mine, theirs = [], []
                for _ in range(arguments.rounds):
                    options = ("-x16", "-s16", "-k1M", "--file-allocation=falloc", "-q", "-d", folder, "-o", "out")
                    theirs.append(peer(out, "aria2c", *options, f"{url}/plain.bin"))
                    mine.append(ours(f"{url}/model.gguf", out, 16, KEPT))
                report(f"16 x 30 MB/s, {limiter}", min(mine)[0], min(theirs)[0], "aria2c", 0.95)


if __name__ == "__main__":
    main()
