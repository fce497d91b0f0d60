"""Memory above an idle import: a cut of 1 GB over HTTP with 16 jobs, and plans of Kimi-K3's shape (sparse shards)."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

from _transfer import nginx, workspace

from ggufslice.testing import TensorSpec, kimi_k3, write_shards, write_sparse

REACH = 128

PROGRAM = """
import json, sys
import ggufslice as gs
def peak():  # not getrusage, which starts from the parent's
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10
idle = peak()
source, kept, out = sys.argv[1:]
cut = gs.open(source)
if kept != "all":
    cut = cut.pipe(gs.select_experts(json.loads(kept)))
if out:
    cut.write(out, jobs=16)
else:
    str(cut.plan())
print(peak() - idle)
"""


def measure(what: str, source: str, kept: str, out: str = "") -> None:
    """Run the program and print what it says."""
    command = [sys.executable, "-c", PROGRAM, source, kept, out]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(f"{what:50s} +{int(done.stdout) / 2**20:4.0f} MiB   (reach {REACH})")


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=workspace()) as name:
        folder = Path(name)
        tensors = [TensorSpec(f"t{i}", (1 << 26,), 0) for i in range(4)]
        write_sparse(folder / "plain.gguf", {"general.architecture": "zzz"}, tensors)
        write_shards(folder, "k3", *kimi_k3(), 14, sparse=True)
        with nginx(folder, folder) as url:
            measure("write 1.07 GB over HTTP", f"{url}/plain.gguf", "all", str(folder / "out.gguf"))
        measure("write 1.07 GB from a local file", str(folder / "plain.gguf"), "all", str(folder / "out2.gguf"))
        first = str(folder / "k3-00001-of-00014.gguf")
        for count in (16, 640):
            kept = sorted(random.Random(1).sample(range(896), count))
            measure(f"plan {count} scattered experts in 92 layers", first, str(kept))


if __name__ == "__main__":
    main()
