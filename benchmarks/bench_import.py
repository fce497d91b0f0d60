"""What `import ggufslice` costs: against an empty interpreter and against numpy alone, which it needs."""

from __future__ import annotations

import subprocess
import sys
import time

ROUNDS = 15


def seconds(code: str) -> float:
    """Return the shortest time of a new interpreter that runs `code`."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Measure and print."""
    empty = seconds("pass")
    for what in ("numpy", "ggufslice", "ggufslice, numpy; ggufslice.open", "gguf"):
        print(f"import {what:34s} {(seconds(f'import {what}') - empty) * 1000:7.0f} ms above an empty interpreter")


if __name__ == "__main__":
    main()
