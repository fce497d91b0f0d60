"""A program that writes a model again and again, and ends itself by SIGKILL at given moments; for `test_io_kill`.

Arguments: the source, the result (``{}`` stands for the moment), the shard size or 0, the moments. A moment counts what
reaches the operating system: writes, syncs, renames, removals. A write at that moment gets half of its bytes out.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

import attrs

import ggufslice as gs
from _writing import QUICK
from ggufslice.io import engine, positional, sink, write


def die_at(moment: int) -> None:
    """Count calls of the operating system from now on, and end at one of them."""
    calls = count(1)

    def counted(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls) == moment:
                if real is positional.pwrite:
                    fd, data, offset = args
                    real(fd, data[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    of_os = [(os, name) for name in ("fsync", "fdatasync", "copy_file_range")]
    for owner, name in [(sink, "pwrite"), *of_os, (Path, "replace"), (Path, "unlink")]:
        setattr(owner, name, counted(getattr(owner, name)))


def main() -> None:
    """Fork a child for each moment: a process that has not begun to use threads can."""
    source, template, shard_size, *moments = sys.argv[1:]
    write._SAVE_SECONDS = 0.0
    engine._TICK = 0.002
    for moment in moments:
        out = Path(template.format(moment))
        out.parent.mkdir(exist_ok=True)
        child = os.fork()
        if not child:
            die_at(int(moment))
            view = gs.open(source, options=attrs.evolve(QUICK, header_first=1 << 14))
            view.write(out, jobs=3, max_shard_size=int(shard_size) or None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        # Another program may only see a result that is complete.
        there = [path for path in out.parent.iterdir() if path.suffix == ".gguf"]
        end = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
        sys.stdout.write(f"{end} {len(there)}\n")
        if os.WIFEXITED(status):
            break


if __name__ == "__main__":
    main()
