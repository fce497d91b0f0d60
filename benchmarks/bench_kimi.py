"""Kimi-K3's shape at full scale, 594 GB in 14 sparse shards behind nginx: open and plan, then a cut written whole.

Needs nginx and room for the cut in BENCH_DISK (or the folder for temporary files). What nginx counted is compared with the
receipt.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path

from _transfer import nginx, workspace

import ggufslice as gs
import ggufslice.io.http
import ggufslice.io.write
from ggufslice.testing import kimi_k3, write_shards


def open_and_plan(url: str, kept: int | list[int], reach: float) -> None:
    """Open, cut, plan and print the time of all three."""
    start = time.perf_counter()
    with gs.open(url) as model:
        opened = time.perf_counter() - start
        plan = model.pipe(gs.select_experts(kept)).plan()
        text = str(plan)
        total = time.perf_counter() - start
        fetched = model.transfer.received
        headers = sum(shard.header_bytes for shard in model.shards)
    spans = sum(1 for _ in plan.copies())
    what = f"{kept if isinstance(kept, int) else len(kept)} experts in 92 layers"
    print(f"open and plan, {what:26s} {total:6.2f} s   (reach {reach:.0f} s; {opened:.2f} s of it opening)")
    print(f"    {spans:,} pieces, {plan.n_requests:,} requests; headers {headers:,} bytes, fetched {fetched:,}")
    assert "routed experts" in text


def main() -> None:
    """Measure and print."""
    disk = os.environ.get("BENCH_DISK")
    with tempfile.TemporaryDirectory(dir=workspace()) as name, tempfile.TemporaryDirectory(dir=disk) as target:
        folder = Path(name)
        metadata, tensors = kimi_k3()
        write_shards(folder, "k3", metadata, tensors, 14, sparse=True)
        scattered = sorted(random.Random(1).sample(range(896), 640))
        isolated = random.Random(1).sample(range(896), 640)
        with nginx(folder, folder) as url:
            first = f"{url}/k3-00001-of-00014.gguf"
            open_and_plan(first, 16, 1)
            open_and_plan(first, scattered, 3)
            open_and_plan(first, isolated, 3)
            log = folder / "access.log"
            log.write_text("")
            out = Path(target) / "k3-12l.gguf"
            with gs.open(first) as model:
                cut = model.pipe(gs.select_experts(16), gs.keep_layers(12))
                plan = cut.plan()
                receipt = cut.write(out)
            transfer = receipt.transfer
            assert transfer is not None
            time.sleep(1)
            served = sum(int(line.split()[2]) for line in log.read_text().splitlines())
            print(f"12 layers, 16 experts: {out.stat().st_size:,} bytes in {transfer.seconds:.1f} s")
            print(f"    nginx sent {served:,} bytes in {len(log.read_text().splitlines())} replies")
            print(f"    the receipt says {transfer.received:,} in {transfer.requests} (planned for data: {plan.n_requests})")
            parts = {k: getattr(transfer, k) for k in ("payload", "gap", "header", "wasted")}
            print("   ", ", ".join(f"{k} {n:,}" for k, n in parts.items()))
            assert served == transfer.received == transfer.payload + transfer.gap + transfer.header + transfer.wasted


if __name__ == "__main__":
    main()
