"""What the transfer benchmarks share: a model of real bytes, a server, and timed programs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ggufslice.testing import TensorSpec, write_sparse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PORT = 18732
EXPERTS = 64
_NO_REPORTS = 11  # an order of pages that no machine has

OURS = """
import json, resource, sys, time
import ggufslice as gs
# Modules are loaded once, whatever is cut.
import ggufslice.ops, ggufslice.io.open, ggufslice.io.write, ggufslice.io.http, gguf
def peak():  # not getrusage, which starts from the parent's
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10
source, out, jobs, kept = sys.argv[1:]
idle = peak()
start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
receipt = gs.open(source).pipe(gs.select_experts(json.loads(kept))).write(out, jobs=int(jobs))
after = resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(json.dumps([time.perf_counter() - start, cpu, receipt.transfer.received, receipt.transfer.requests,
                  peak() - idle]))
"""


def make_model(path: Path, *, blocks: int, slab: int) -> None:
    """Write a mixture of 64 experts whose slabs have so many bytes, filled with data that is no hole."""
    rows = slab // (256 * 4)
    tensors = [TensorSpec("token_embd.weight", (256, 32), 0)]
    for i in range(blocks):
        tensors += [
            TensorSpec(f"blk.{i}.ffn_{part}_exps.weight", (256, rows, EXPERTS), 0) for part in ("gate", "up", "down")
        ]
        tensors.append(TensorSpec(f"blk.{i}.ffn_gate_inp.weight", (256, EXPERTS), 0))
    metadata = {"general.architecture": "bench", "bench.block_count": blocks, "bench.expert_count": EXPERTS}
    write_sparse(path, {**metadata, "bench.expert_used_count": 2}, tensors)
    block = np.random.default_rng(1).bytes(16 << 20)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(1 << 16)  # behind the header
        while (left := size - file.tell()) > 0:
            file.write(block[:left])


@contextmanager
def nginx(root: Path, folder: Path, extra: str = "") -> Iterator[str]:
    """Serve a folder; yield its URL."""
    config = folder / "nginx.conf"
    user = "" if os.geteuid() else "user root; "  # who may read a folder that is nobody else's
    config.write_text(
        f"{user}worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off;\n"
        "events { worker_connections 512; }\n"
        "http { sendfile on; keepalive_requests 1000000; log_format bytes '$request_method $status $body_bytes_sent';\n"
        f"access_log {folder}/access.log bytes;\n"
        f"server {{ listen 127.0.0.1:{PORT}; root {root}; {extra} }} }}\n"
    )
    (folder / "error.log").touch()
    server = subprocess.Popen(["nginx", "-c", config, "-e", folder / "error.log"])
    try:
        time.sleep(0.5)
        yield f"http://127.0.0.1:{PORT}"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def paced(root: Path) -> Iterator[str]:
    """Serve a folder at 30 MB/s a connection; yield its URL."""
    command = [sys.executable, "-m", "ggufslice.testing.server", root, "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(2)
        yield f"http://127.0.0.1:{PORT}/~rate:bytes_per_s=30000000"
    finally:
        server.terminate()
        server.wait()


def ours(source: str | Path, out: Path, jobs: int, kept: Sequence[int]) -> list[float]:
    """Cut in a process of its own; return seconds, CPU seconds, bytes, requests, growth of memory in bytes."""
    out.unlink(missing_ok=True)
    command = [sys.executable, "-c", OURS, source, out, str(jobs), json.dumps(list(kept))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def peer(out: Path, *command: Any) -> list[float]:
    """Run a program that writes `out`; return seconds and CPU seconds."""
    out.unlink(missing_ok=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return [time.perf_counter() - start, cpu]


def fill(path: Path, size: int) -> None:
    """Write a file of so many bytes, none of them a hole."""
    block = np.random.default_rng(2).bytes(16 << 20)
    with path.open("wb") as file:
        while (left := size - file.tell()) > 0:
            file.write(block[:left])


def report(name: str, ours: float, theirs: float, peer_name: str, reach: float, note: str = "") -> None:
    """Print one comparison."""
    print(
        f"{name:44s} ours {ours:7.3f} s   {peer_name} {theirs:7.3f} s   ratio {ours / theirs:5.2f}   (reach {reach}) {note}"
    )


def workspace() -> Path:
    """Return where files of gigabytes go: memory, where there is a file system in it.

    Says so when this is a virtual machine that gives memory back to its host as soon as it is free: then a page that is used
    anew costs a fault of the host, and the same program takes between one and three times as long.
    """
    order = Path("/sys/module/page_reporting/parameters/page_reporting_order")
    if order.exists() and int(order.read_text()) < _NO_REPORTS:
        print(f"free memory goes back to the host, which spoils figures; while measuring: echo {_NO_REPORTS} > {order}")
    return Path(os.environ.get("BENCH_DIR", "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"))  # noqa: S108
