"""SIGKILL at any moment: the same call then ends with the very file. And disks that are full or may not be written."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

import ggufslice as gs
from _writing import QUICK, check_accounts, leftovers
from ggufslice.io.allocation import in_memory
from ggufslice.io.journal import Journal, merged
from ggufslice.io.plan import Plan, make_plan
from ggufslice.io.progress import Silent
from ggufslice.testing import TensorSpec, build_gguf, synthetic, write_sparse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conftest import Serve

METADATA, TENSORS = synthetic(layers=2, experts=8, ffn=128, expert_ffn=64)
FILE = build_gguf(METADATA, TENSORS)
OPTIONS = attrs.evolve(QUICK, header_first=1 << 14)


def killed(source: str | Path, out: Path, moments: Sequence[int], shard_size: int = 0) -> list[tuple[int, int]]:
    """Write with a program that ends at these moments; return how each child ended, and how many results were there."""
    program = Path(__file__).with_name("_killed.py")
    done = subprocess.run(
        [sys.executable, program, source, out, str(shard_size), *map(str, moments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(int(a), int(b)) for a, b in (line.split() for line in done.stdout.splitlines())]


@pytest.mark.parametrize("local", [True, False], ids=["local", "http"])
def test_twenty_kills_and_then_the_very_file(serve: Serve, tmp_path: Path, *, local: bool) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "m.gguf").write_bytes(FILE)
    out = tmp_path / "out" / "out.gguf"
    server = serve(tmp_path / "in")
    source = tmp_path / "in" / "m.gguf" if local else server.url("m.gguf")
    rng = random.Random(7)
    ends = killed(source, out, [rng.randint(1, 25) for _ in range(20)])
    assert {end for end, _ in ends} <= {signal.SIGKILL, 0}
    assert len(ends) > 5
    # A result under its final name is complete, whether or not its writer lived to say so.
    for _, there in ends[:-1]:
        assert there == 0 or out.read_bytes() == FILE
    if not out.exists():
        check_accounts(gs.open(source, options=OPTIONS).write(out))
    assert out.read_bytes() == FILE


@pytest.mark.parametrize("shard_size", [0, 120_000], ids=["file", "shards"])
def test_a_kill_at_every_moment_of_one_write(serve: Serve, tmp_path: Path, shard_size: int) -> None:
    server = serve({"m.gguf": FILE})
    url = server.url("m.gguf")
    view = gs.open(url, options=OPTIONS)
    count = len(make_plan(view, max_shard_size=shard_size or None).files)
    moments = range(1, 400, 4)
    ends = killed(url, tmp_path / "{}" / "out.gguf", moments, shard_size)
    assert len(ends) > 5
    assert [end for end, _ in ends] == [signal.SIGKILL] * (len(ends) - 1) + [0]
    assert (ends[0][1], ends[-1][1]) == (0, count)
    for moment, (_, there) in zip(moments, ends, strict=False):
        folder = tmp_path / str(moment)
        first = folder / ("out.gguf" if count == 1 else f"out-00001-of-{count:05d}.gguf")
        # The first shard gets its name last: where it is, all are.
        assert first.exists() == (there == count)
        recorded = Journal(folder / "out.gguf.part.journal").load()
        if first.exists() and recorded is None:
            continue
        claimed = sum(stop - start for start, stop in merged(recorded.claims)) if recorded else 0
        receipt = view.write(folder / "out.gguf", max_shard_size=shard_size or None)
        assert leftovers(folder) == []
        transfer = check_accounts(receipt)
        # Only what was not recorded is fetched again.
        assert transfer.resumed in {claimed, sum(t.n_bytes for t in TENSORS)}
        assert transfer.payload == sum(t.n_bytes for t in TENSORS) - transfer.resumed
        gs.open(first).write(folder / "again.gguf")
        assert (folder / "again.gguf").read_bytes() == FILE


# --- disks that don't take it ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a disk of 1 MiB."""
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_without_room_is_refused_before_anything_is_fetched(serve: Serve, small_disk: Path) -> None:
    server = serve({"m.gguf": FILE})
    view = gs.open(server.url("m.gguf"), options=OPTIONS)
    (small_disk / "other").write_bytes(bytes(700_000))
    requests = len(server.requests)
    with pytest.raises(gs.OutputError, match=r"344\.06 kB free, but 494\.82 kB more are needed for out\.gguf"):
        view.write(small_disk / "out.gguf")
    assert len(server.requests) == requests
    (small_disk / "other").unlink()
    view.write(small_disk / "out.gguf")
    assert (small_disk / "out.gguf").read_bytes() == FILE


def test_a_disk_that_fills_up_on_the_way_keeps_what_is_there(serve: Serve, small_disk: Path) -> None:
    class Hog(Silent):
        def started(self, plan: Plan, resumed: int) -> None:  # noqa: ARG002 - as in `Progress`
            (small_disk / "other").write_bytes(bytes(700_000))

    server = serve({"m.gguf": FILE})
    view = gs.open(server.url("m.gguf"), options=OPTIONS)
    with pytest.raises(gs.OutputError, match="No space left on device; make room and write again"):
        view.write(small_disk / "out.gguf", jobs=1, progress=Hog())
    assert not (small_disk / "out.gguf").exists()
    (small_disk / "other").unlink()
    receipt = view.write(small_disk / "out.gguf")
    assert (small_disk / "out.gguf").read_bytes() == FILE
    assert check_accounts(receipt).resumed > 0


def test_memory_is_told_from_disks(tmp_path: Path, small_disk: Path) -> None:
    for folder in (small_disk, tmp_path, Path("/proc")):
        kind = subprocess.run(["stat", "-f", "-c", "%T", folder], check=True, capture_output=True, text=True).stdout.strip()
        assert in_memory(folder) == (kind == "tmpfs")
    assert in_memory(small_disk)


def test_blocks_are_asked_for_but_not_in_memory_while_receiving(
    serve: Serve, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def allocate(_fd: int, _start: int, size: int) -> bool:
        asked.append(size)
        return True

    monkeypatch.setattr("ggufslice.io.sink.allocate", allocate)
    server = serve({"m.gguf": FILE})
    (tmp_path / "m.gguf").write_bytes(FILE)
    for memory, source, expected in (
        (True, server.url("m.gguf"), []),
        (False, server.url("m.gguf"), [len(FILE)]),
        (True, tmp_path / "m.gguf", [len(FILE)]),
    ):
        monkeypatch.setattr("ggufslice.io.engine.in_memory", lambda _folder, memory=memory: memory)
        gs.open(source).write(small_disk / "out.gguf", overwrite=True)
        assert asked == expected
        asked.clear()


def test_a_disk_that_may_only_be_read_is_an_output_error(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(FILE)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(gs.OutputError, match="Read-only file system; choose a path that can be written to"):
        gs.open(tmp_path / "m.gguf").write(small_disk / "out.gguf")


def test_a_limit_on_file_sizes_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(FILE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(gs.OutputError, match="can't be written: File too large"):
            gs.open(tmp_path / "m.gguf").write(tmp_path / "out.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    gs.open(tmp_path / "m.gguf").write(tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == FILE


# --- memory ---------------------------------------------------------------------------------------------------------------

MEMORY = """
import sys
import ggufslice as gs
from ggufslice.io import write
def peak():  # not getrusage, which starts from the parent's
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10
idle = peak()
gs.open(sys.argv[1]).write(sys.argv[2], jobs=16)
print(peak() - idle)
"""


@pytest.mark.parametrize("local", [True, False], ids=["local", "http"])
def test_memory_does_not_depend_on_the_size(serve: Serve, tmp_path: Path, *, local: bool) -> None:
    tensors = [TensorSpec(f"t{i}", (1 << 26,), 0) for i in range(2)]
    source = write_sparse(tmp_path / "m.gguf", {"general.architecture": "zzz"}, tensors)
    server = serve(tmp_path)
    name = source if local else server.url("m.gguf")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, name, tmp_path / "out.gguf"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.gguf").stat().st_size > 1 << 29
    assert int(done.stdout) < 128 << 20
