"""Writing: what ends under the final name, what doesn't, and what it cost."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import ggufslice as gs
from _writing import QUICK, check_accounts, leftovers, names, tensors_of
from ggufslice.io.journal import Claim, Journal, merged
from ggufslice.io.options import TransferOptions
from ggufslice.io.plan import Plan, make_plan
from ggufslice.io.positional import pwrite
from ggufslice.spans import Literal, Remap, Span
from ggufslice.testing import TensorSpec, Typed, build_gguf, split_gguf, synthetic, write_shards, write_sparse
from ggufslice.view import GGUF

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Serve
    from ggufslice.testing import RangeServer

METADATA, TENSORS = synthetic(layers=3, experts=8, ffn=128, expert_ffn=64)
FILE = build_gguf(METADATA, TENSORS)
DATA = {str(tensor.name): tensor.tobytes() for tensor in TENSORS}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "model.gguf"
    path.write_bytes(FILE)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "out.gguf"


def experts(view: GGUF, kept: list[int]) -> GGUF:
    """Keep these experts: spans all over the file."""
    return view.pipe(gs.select_experts(kept))


def expected(kept: list[int]) -> dict[str, bytes]:
    """Return what `experts` should write, from the model's own arrays."""
    found: dict[str, bytes] = {}
    for name, data in DATA.items():
        routed = "_exps" in name or "ffn_gate_inp" in name
        slabs = np.frombuffer(data, np.uint8).reshape(8, -1) if routed else None
        found[name] = data if slabs is None else slabs[kept].tobytes()
    return found


# --- the four kinds of sources -------------------------------------------------------------------------------------------


def test_a_local_copy_is_the_same_file(model: Path, out: Path) -> None:
    receipt = gs.open(model).write(out)
    assert out.read_bytes() == FILE
    transfer = check_accounts(receipt)
    assert transfer.payload == sum(map(len, DATA.values()))
    assert names(out.parent) == ["out.gguf"]


def test_a_copy_over_http_is_the_same_file(serve: Serve, out: Path) -> None:
    server = serve({"m.gguf": FILE})
    receipt = gs.open(server.url("m.gguf"), options=QUICK).write(out)
    assert out.read_bytes() == FILE
    transfer = check_accounts(receipt)
    assert transfer.received == server.bytes_sent
    assert transfer.requests == len(server.requests)
    assert transfer.wasted == transfer.retries == 0
    assert names(out.parent) == ["out.gguf"]


def test_a_copy_from_another_backend_is_the_same_file(out: Path) -> None:
    files: Any = MemoryFileSystem
    files().pipe_file("/writing/m.gguf", FILE)
    receipt = gs.open("memory://writing/m.gguf", options=QUICK).write(out)
    assert out.read_bytes() == FILE
    check_accounts(receipt)


@pytest.mark.parametrize("kept", [[3, 4], [5, 2], [0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 0]], ids=str)
@pytest.mark.parametrize("local", [True, False], ids=["local", "http"])
def test_scattered_experts_are_those_of_the_source(
    serve: Serve, model: Path, out: Path, kept: list[int], *, local: bool
) -> None:
    server = serve(model.parent)
    view = gs.open(model if local else server.url("model.gguf"), options=attrs.evolve(QUICK, max_gap=0))
    receipt = experts(view, kept).write(out)
    assert tensors_of(out) == expected(kept)
    transfer = check_accounts(receipt)
    assert transfer.payload == sum(map(len, expected(kept).values()))
    assert transfer.gap == 0


def test_shards_of_a_set_become_one_file(serve: Serve, out: Path) -> None:
    shards = [f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    server = serve(dict(zip(shards, split_gguf(METADATA, TENSORS, 3), strict=True)))
    receipt = gs.open(server.url(shards[1]), options=QUICK).write(out)
    assert out.read_bytes() == FILE
    assert check_accounts(receipt).received == server.bytes_sent
    assert len(receipt.transfer.sources if receipt.transfer else ()) == 3


def test_gaps_are_thrown_away_and_counted(serve: Serve, out: Path) -> None:
    server = serve({"m.gguf": FILE})
    view = gs.open(server.url("m.gguf"), options=attrs.evolve(QUICK, split_size=1 << 20, min_split=1 << 20))
    receipt = experts(view, [0, 7]).write(out)
    assert tensors_of(out) == expected([0, 7])
    transfer = check_accounts(receipt)
    assert transfer.gap > 0
    assert transfer.received == server.bytes_sent
    assert transfer.requests == len(server.requests) == 2


def test_the_same_bytes_may_go_to_two_places_and_are_fetched_once(serve: Serve, out: Path) -> None:
    server = serve({"m.gguf": FILE})
    view = gs.open(server.url("m.gguf"), options=attrs.evolve(QUICK, max_gap=0))
    twin = attrs.evolve(view["output.weight"], name="twin.weight")
    receipt = GGUF(view.metadata, [view["output.weight"], twin]).write(out)
    assert tensors_of(out) == {"output.weight": DATA["output.weight"], "twin.weight": DATA["output.weight"]}
    assert check_accounts(receipt).payload == len(DATA["output.weight"])


def test_literals_and_tables_of_ids_are_written_too(serve: Serve, out: Path) -> None:
    table = np.array([[2, 0], [1, 2]], "<i4")
    file = build_gguf(
        {"general.architecture": "zzz"}, [TensorSpec("ids", (2, 2), 26, data=table.tobytes()), TensorSpec("w", (4,), 0)]
    )
    server = serve({"m.gguf": file})
    for source in (server.url("m.gguf"), out.with_name("m.gguf")):
        out.with_name("m.gguf").write_bytes(file)
        view = gs.open(source)
        ids, w = view["ids"], view["w"]
        (span,) = ids.pieces
        assert isinstance(span, Span)
        remapped = attrs.evolve(ids, pieces=(Remap(span, (7, 8, 9)),))
        stated = attrs.evolve(w, pieces=(Literal(b"0123456789abcdef"),))
        receipt = GGUF(view.metadata, [remapped, stated]).write(out, overwrite=True)
        assert tensors_of(out) == {"ids": np.array([9, 7, 8, 9], "<i4").tobytes(), "w": b"0123456789abcdef"}
        transfer = check_accounts(receipt)
        assert transfer.payload == 16


def test_a_table_that_names_an_expert_that_there_is_not_is_an_error(model: Path, out: Path) -> None:
    view = gs.open(model)
    tensor = view["output.weight"]
    (span,) = tensor.pieces
    assert isinstance(span, Span)
    broken = attrs.evolve(tensor, pieces=(Remap(span, (0,)),))
    with pytest.raises(gs.FormatError, match=r"table of expert ids at byte \d+ names expert \d+, but there are 1"):
        GGUF(view.metadata, [broken]).write(out)
    assert not out.exists()


@pytest.mark.parametrize("jobs", [1, 2, 16])
def test_any_number_of_jobs_gives_the_same_file(serve: Serve, out: Path, jobs: int) -> None:
    server = serve({"m.gguf": FILE})
    gs.open(server.url("m.gguf"), options=QUICK).write(out, jobs=jobs)
    assert out.read_bytes() == FILE


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_job_is_refused(model: Path, out: Path, jobs: int) -> None:
    with pytest.raises(ValueError, match=f"jobs is {jobs}"):
        gs.open(model).write(out, jobs=jobs)


def test_a_budget_smaller_than_a_request_lets_one_through_at_a_time(serve: Serve, out: Path) -> None:
    server = serve({"m.gguf": FILE})
    gs.open(server.url("m.gguf"), options=attrs.evolve(QUICK, in_flight=1, min_split=1 << 30)).write(out)
    assert out.read_bytes() == FILE


def test_nothing_to_fetch_is_fine(out: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(build_gguf({"general.architecture": "zzz"}, []))
    gs.open(empty).write(out)
    assert out.read_bytes() == empty.read_bytes()


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("version", [2, 3])
def test_version_byte_order_and_alignment_stay(tmp_path: Path, out: Path, byteorder: str, version: int) -> None:
    source = tmp_path / "m.gguf"
    tensors = [TensorSpec(f"t{i}", (5 + i,), 0) for i in range(3)]
    metadata = {"general.architecture": "zzz", "general.alignment": Typed(128, "u32")}
    source.write_bytes(build_gguf(metadata, tensors, version=version, byteorder=byteorder))  # type: ignore[arg-type]
    gs.open(source).write(out)
    assert out.read_bytes() == source.read_bytes()


# --- copying between local files -----------------------------------------------------------------------------------------


def no_kernel_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "copy_file_range")


def refused(code: int) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        def copy(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "copy_file_range", copy)

    return patch


def short_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.copy_file_range

    def copy(src: int, dst: int, count: int, offset_src: int, offset_dst: int) -> int:
        return real(src, dst, min(count, 1000), offset_src, offset_dst)

    monkeypatch.setattr(os, "copy_file_range", copy)


def nothing_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)


@pytest.mark.parametrize(
    "patch",
    [no_kernel_copy, short_counts, nothing_copied]
    + [refused(code) for code in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM)],
)
def test_copying_works_whatever_the_kernel_can(
    monkeypatch: pytest.MonkeyPatch, model: Path, out: Path, patch: Callable[[pytest.MonkeyPatch], None]
) -> None:
    patch(monkeypatch)
    check_accounts(gs.open(model).write(out))
    assert out.read_bytes() == FILE


def test_a_full_disk_in_the_kernels_copy_is_an_output_error(monkeypatch: pytest.MonkeyPatch, model: Path, out: Path) -> None:
    refused(errno.ENOSPC)(monkeypatch)
    with pytest.raises(gs.OutputError, match="No space left on device; make room and write again"):
        gs.open(model).write(out)
    monkeypatch.undo()
    gs.open(model).write(out)
    assert out.read_bytes() == FILE


# --- where it may be written ---------------------------------------------------------------------------------------------


def test_a_file_that_is_there_stays_unless_told(model: Path, out: Path) -> None:
    out.write_bytes(b"precious")
    with pytest.raises(gs.OutputError, match=r"out\.gguf exists; choose another path or pass overwrite=True"):
        gs.open(model).write(out)
    assert out.read_bytes() == b"precious"
    gs.open(model).write(out, overwrite=True)
    assert out.read_bytes() == FILE


@pytest.mark.parametrize("kind", ["the path", "another spelling", "a symlink", "a hard link", "the partial file"])
def test_an_input_is_never_written(model: Path, kind: str) -> None:
    target = model.with_name("link.gguf")
    if kind == "the path":
        target = model
    elif kind == "another spelling":
        target = model.parent / ".." / "in" / model.name
    elif kind == "a symlink":
        target.symlink_to(model)
    elif kind == "a hard link":
        target.hardlink_to(model)
    else:
        target.with_name("link.gguf.part").hardlink_to(model)
    with pytest.raises(gs.OutputError, match="is an input"):
        gs.open(model).write(target, overwrite=True)
    assert model.read_bytes() == FILE


def test_a_shard_that_nothing_is_taken_of_is_an_input_too(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, "m", METADATA, TENSORS, 3)
    view = gs.open(paths[0])
    some = view.all_tensors[:2]
    with pytest.raises(gs.OutputError, match="is an input"):
        view.evolve(tensors=some, fragment=True).write(paths[2].with_name("m.gguf"), overwrite=True, max_shard_size=1)


def test_a_name_that_claims_to_be_one_shard_of_several_is_refused(model: Path, out: Path) -> None:
    view = gs.open(model)
    with pytest.raises(
        gs.OutputError, match=r"named like one shard of a set, but this is a single file.*write to .*x\.gguf"
    ):
        view.write(out.with_name("x-00001-of-00003.gguf"))
    with pytest.raises(gs.OutputError, match=r"this is a result of \d+ shards.*the numbers are added"):
        view.write(out.with_name("x-00001-of-00001.gguf"), max_shard_size=100_000)
    view.write(out.with_name("x-00001-of-00001.gguf"))
    assert names(out.parent) == ["x-00001-of-00001.gguf"]


def test_a_missing_folder_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(gs.OutputError, match=r"there is no folder .*nowhere; make it first"):
        gs.open(model).write(tmp_path / "nowhere" / "out.gguf")


def test_a_folder_is_not_a_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(gs.OutputError, match="is a folder; name a file in it"):
        gs.open(model).write(tmp_path / "folder.gguf", overwrite=True)
    with pytest.raises(gs.OutputError, match="is a folder; name a file in it"):
        gs.open(model).write("")


def test_more_than_the_disk_has_is_refused_before_anything_is_fetched(serve: Serve, tmp_path: Path, out: Path) -> None:
    huge = write_sparse(tmp_path / "huge.gguf", {"general.architecture": "zzz"}, [TensorSpec("t", (1 << 41,), 0)])
    server = serve({"m.gguf": huge})
    view = gs.open(server.url("m.gguf"))
    before = len(server.requests)
    with pytest.raises(gs.OutputError, match=r"has .* free, but 8\.80 TB more are needed for out\.gguf"):
        view.write(out)
    assert len(server.requests) == before
    assert leftovers(out.parent) == []


# --- shards --------------------------------------------------------------------------------------------------------------


def same(a: GGUF, b: GGUF) -> bool:
    """Tell whether two views are the same model, wherever its bytes are."""
    return a.metadata.records == b.metadata.records and [(t.name, t.ne, t.tensor_type, t.read()) for t in a.all_tensors] == [
        (t.name, t.ne, t.tensor_type, t.read()) for t in b.all_tensors
    ]


def test_shards_are_the_same_model(model: Path, out: Path) -> None:
    view = gs.open(model)
    receipt = view.write(out, max_shard_size=100_000)
    found = names(out.parent)
    count = len(found)
    assert count > 3
    assert found == [f"out-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    assert receipt.file_bytes == sum(path.stat().st_size for path in out.parent.iterdir())
    check_accounts(receipt)
    for name in (found[0], found[-1]):
        assert same(gs.open(out.with_name(name)), view)
    again = out.with_name("again.gguf")
    gs.open(out.with_name(found[0])).write(again)
    assert again.read_bytes() == FILE


def test_shards_replace_a_set_of_another_count_whole(model: Path, out: Path) -> None:
    view = gs.open(model)
    view.write(out, max_shard_size=100_000)
    before = set(names(out.parent))
    out.with_name("other-00001-of-00009.gguf").write_bytes(b"another model's")
    with pytest.raises(gs.OutputError, match="exists; choose another path or pass overwrite=True"):
        view.write(out, max_shard_size=200_000)
    assert set(names(out.parent)) == before | {"other-00001-of-00009.gguf"}
    view.write(out, max_shard_size=200_000, overwrite=True)
    after = set(names(out.parent)) - {"other-00001-of-00009.gguf"}
    assert 1 < len(after) < len(before)
    assert not after & before
    assert same(gs.open(out.with_name(min(after))), view)


@pytest.mark.llama
@pytest.mark.models
def test_llama_cpp_loads_shards(llama: Path, tinymoe: Path, out: Path) -> None:
    gs.open(tinymoe).write(out, max_shard_size=20_000_000)
    first = min(out.parent.iterdir())
    merged = out.with_name("merged.gguf")
    subprocess.run([llama / "llama-gguf-split", "--merge", first, merged], check=True, capture_output=True)
    assert tensors_of(merged) == tensors_of(*sorted(tinymoe.parent.glob("*-of-00004.gguf")))
    done = subprocess.run(
        [llama / "llama-bench", "-m", first, "-p", "8", "-n", "0", "-r", "1", "-t", "2", "-ngl", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pp8" in done.stdout


# --- gone on with --------------------------------------------------------------------------------------------------------


class Watcher:
    """Keeps what it is told, and does something when bytes have moved."""

    def __init__(self, act: Callable[[], object] | None = None) -> None:
        self.total = self.resumed = self.moved = 0
        self.notes: list[str] = []
        self.calls: Counter[str] = Counter()
        self._act = act

    def started(self, plan: Plan, resumed: int) -> None:
        self.calls["started"] += 1
        self.total, self.resumed = plan.tensor_bytes, resumed

    def advanced(self, n_bytes: int) -> None:
        self.moved += n_bytes
        if self._act:
            self._act()

    def noted(self, text: str) -> None:
        self.notes.append(text)

    def finished(self) -> None:
        self.calls["finished"] += 1


def test_progress_adds_up(serve: Serve, out: Path) -> None:
    server = serve({"m.gguf": FILE})
    watcher = Watcher()
    gs.open(server.url("m.gguf"), options=QUICK).write(out, progress=watcher)
    assert watcher.moved == watcher.total == sum(map(len, DATA.values()))
    assert watcher.resumed == 0
    assert watcher.calls == {"started": 1, "finished": 1}


def broken_off(
    serve: Serve, out: Path, fault: str = "", *, checksums: bool = False
) -> tuple[RangeServer, str, TransferOptions]:
    """Break a write off: the sixth request is refused for good, and those after it are answered well."""
    server = serve({"m.gguf": FILE})
    url = server.url(f"~status:code=404,after=5,times=1/{fault}m.gguf")
    chosen = attrs.evolve(QUICK, header_first=1 << 14, checksums=checksums)
    with pytest.raises(gs.SourceError, match="there is no such file"):
        gs.open(url, options=chosen).write(out, jobs=1)
    assert leftovers(out.parent) == ["out.gguf.part", "out.gguf.part.journal"]
    assert not out.exists()
    return server, url, chosen


def test_a_resume_asks_only_for_what_is_missing(serve: Serve, out: Path) -> None:
    server, url, options = broken_off(serve, out)
    view = gs.open(url, options=options)
    before = server.bytes_sent
    watcher = Watcher()
    receipt = view.write(out, progress=watcher)
    assert out.read_bytes() == FILE
    assert names(out.parent) == ["out.gguf"]
    transfer = check_accounts(receipt)
    assert transfer.resumed == watcher.resumed > 4 * QUICK.min_split
    assert transfer.payload == sum(map(len, DATA.values())) - transfer.resumed
    assert server.bytes_sent - before == transfer.payload + transfer.gap
    assert watcher.moved + watcher.resumed == watcher.total


@pytest.mark.parametrize("local", [False, True], ids=["http", "local"])
def test_nothing_is_recorded_before_it_is_on_the_disk(
    serve: Serve, model: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *, local: bool
) -> None:
    """A process that is killed can't show this: the system still writes what is in its cache."""
    landed: set[tuple[int, int]] = set()  # what the system was told
    folders: list[bool] = []  # whether the result had its name when its folder was synced
    synced: set[tuple[int, int]] = set()  # what of that is on the disk
    recorded = 0
    append = Journal.append

    def writing(fd: int, data: bytes, offset: int) -> int:
        written = pwrite(fd, data, offset)
        landed.add((offset, offset + written))
        return written

    def syncing(sync: Callable[[int], None], fd: int) -> None:
        before = set(landed)
        sync(fd)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            folders.append(out.exists())
        else:
            synced.update(before)

    def appending(journal: Journal, claims: list[Claim], *, complete: bool = False) -> None:
        nonlocal recorded
        held = merged(Claim(*interval) for interval in synced)
        for claim in claims:
            assert any(start <= claim.start and claim.stop <= stop for start, stop in held), claim
            recorded += claim.stop - claim.start
        assert landed <= synced or not complete
        append(journal, claims, complete=complete)

    monkeypatch.setattr("ggufslice.io.sink.pwrite", writing)
    monkeypatch.setattr(os, "fdatasync", partial(syncing, getattr(os, "fdatasync", os.fsync)), raising=False)
    monkeypatch.setattr(os, "fsync", partial(syncing, os.fsync))
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    monkeypatch.setattr(Journal, "append", appending)
    monkeypatch.setattr("ggufslice.io.write._SAVE_SECONDS", 0.0)
    monkeypatch.setattr("ggufslice.io.engine._TICK", 0.001)
    source = model if local else serve({"m.gguf": FILE}).url("~rate:bytes_per_s=2000000/m.gguf")
    gs.open(source, options=QUICK).write(out)
    assert recorded >= sum(map(len, DATA.values()))
    assert folders == [True]


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        (lambda head: bytes(len(head)), "does not read back as a GGUF"),
        (lambda head: head.replace(b"Synthetic", b"synthetic"), "does not read back as it was planned"),
        (lambda head: head.replace(b"output_norm", b"output_form"), "does not read back as it was planned"),
    ],
    ids=["all", "a record", "a tensor's name"],
)
def test_a_disk_that_lost_the_header_is_noticed(
    lost: Callable[[bytes], bytes], says: str, model: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writing(fd: int, data: bytes, offset: int) -> int:
        return pwrite(fd, data if offset else lost(data), offset)

    monkeypatch.setattr("ggufslice.io.sink.pwrite", writing)
    with pytest.raises(gs.OutputError, match=says):
        gs.open(model).write(out)
    assert not out.exists()


def test_a_partial_file_is_no_gguf(serve: Serve, out: Path) -> None:
    broken_off(serve, out)
    part = out.with_name("out.gguf.part")
    assert part.stat().st_size == len(FILE)
    with pytest.raises(gs.FormatError, match="not a GGUF"):
        gs.open(part)


def test_resume_false_starts_afresh(serve: Serve, out: Path) -> None:
    _, url, options = broken_off(serve, out)
    receipt = gs.open(url, options=options).write(out, resume=False)
    assert out.read_bytes() == FILE
    assert check_accounts(receipt).resumed == 0


def test_another_cut_does_not_go_on_with_it(serve: Serve, out: Path) -> None:
    _, url, options = broken_off(serve, out)
    other = experts(gs.open(url, options=options), [1, 2])
    with pytest.raises(gs.OutputError, match=r"holds part of another cut.*resume=False \(--no-resume\)"):
        other.write(out)
    assert leftovers(out.parent) == ["out.gguf.part", "out.gguf.part.journal"]
    other.write(out, resume=False)
    assert tensors_of(out) == expected([1, 2])


def test_a_source_that_changed_in_between_is_refused(serve: Serve, out: Path) -> None:
    _, url, options = broken_off(serve, out, "~new-etag:after=5/")
    view = gs.open(url, options=options)
    with pytest.raises(gs.SourceChangedError, match=r"has changed since .*out\.gguf was begun: it was .*etag.*now it is"):
        view.write(out)
    assert not out.exists()
    view.write(out, resume=False)
    assert out.read_bytes() == FILE


def test_a_source_that_changes_on_the_way_is_noticed(serve: Serve, out: Path) -> None:
    server = serve({"m.gguf": FILE})
    view = gs.open(server.url("~swap:after=4/m.gguf"), options=QUICK)
    with pytest.raises(gs.SourceChangedError):
        view.write(out)
    assert not out.exists()


def test_a_local_source_that_changes_on_the_way_is_noticed(model: Path, out: Path) -> None:
    class Meddler(Watcher):
        def started(self, plan: Plan, resumed: int) -> None:
            super().started(plan, resumed)
            model.write_bytes(FILE[:-1] + b"x")

    view = gs.open(model)
    with pytest.raises(gs.SourceChangedError, match="open it again"):
        view.write(out, progress=Meddler())
    assert not out.exists()
    with pytest.raises(gs.SourceChangedError, match="has changed since"):
        gs.open(model).write(out)


def test_a_local_source_that_changes_behind_the_copy_is_noticed(
    model: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writing(fd: int, data: bytes, offset: int) -> int:
        os.utime(model, ns=(0, 0))  # after it was opened, and perhaps after it was read
        return pwrite(fd, data, offset)

    monkeypatch.setattr("ggufslice.io.sink.pwrite", writing)
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    with pytest.raises(gs.SourceChangedError, match=r"model\.gguf"):
        gs.open(model).write(out, jobs=1)
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [(FILE[:-500], rf"has {len(FILE) - 500} bytes.* had {len(FILE)} bytes"), (FILE[::-1], "created .* had .* created")],
    ids=["shorter", "as long"],
)
def test_a_file_of_a_backend_that_changes_after_a_look_at_it_is_noticed(content: bytes, says: str, out: Path) -> None:
    memory: Any = MemoryFileSystem
    files = memory()
    files.pipe_file("/changing/m.gguf", FILE)
    view = gs.open("memory://changing/m.gguf", options=QUICK)
    view["output_norm.weight"].numpy()
    files.pipe_file("/changing/m.gguf", content)
    with pytest.raises(gs.SourceChangedError, match=says):
        view.write(out)
    assert not out.exists()


def test_without_anything_that_identifies_the_source_a_resume_starts_afresh(serve: Serve, out: Path) -> None:
    _, url, options = broken_off(serve, out, "~no-etag:modified=no/")
    watcher = Watcher()
    receipt = gs.open(url, options=options).write(out, progress=watcher)
    assert out.read_bytes() == FILE
    assert check_accounts(receipt).resumed == 0
    assert watcher.notes == [f"starting afresh: {url} has nothing that tells whether it is still the same file"]


@pytest.mark.parametrize("damage", ["torn", "empty", "foreign", "gone", "the part is gone", "the part has another size"])
def test_a_journal_that_can_not_be_trusted_starts_afresh(serve: Serve, out: Path, damage: str) -> None:
    _, url, options = broken_off(serve, out)
    part, journal = out.with_name("out.gguf.part"), out.with_name("out.gguf.part.journal")
    if damage == "torn":
        journal.write_bytes(journal.read_bytes()[:40])
    elif damage == "empty":
        journal.write_bytes(b"")
    elif damage == "foreign":
        journal.write_bytes(b'{"done": [[0, 1000000]]}\n')
    elif damage == "gone":
        journal.unlink()
    elif damage == "the part is gone":
        part.unlink()
    else:
        os.truncate(part, len(FILE) - 1)
    receipt = gs.open(url, options=options).write(out)
    assert out.read_bytes() == FILE
    assert check_accounts(receipt).resumed == 0


def test_what_the_disk_lost_is_fetched_again_where_there_are_checksums(serve: Serve, out: Path) -> None:
    _, url, options = broken_off(serve, out, checksums=True)
    part = out.with_name("out.gguf.part")
    with part.open("r+b") as file:
        file.seek(FILE.index(DATA["blk.0.ffn_gate_exps.weight"]))
        file.write(bytes(1000))
    watcher = Watcher()
    receipt = gs.open(url, options=options).write(out, progress=watcher)
    assert out.read_bytes() == FILE
    assert watcher.notes == ["the disk has lost some of what was written: it is fetched again"]
    check_accounts(receipt)


def test_checksums_do_not_hinder_a_local_copy(model: Path, out: Path) -> None:
    view = gs.open(model, options=TransferOptions(checksums=True))
    check_accounts(view.write(out))
    assert out.read_bytes() == FILE


def test_an_interrupt_leaves_what_can_be_gone_on_with(serve: Serve, out: Path) -> None:
    server = serve({"m.gguf": FILE})
    url = server.url("~rate:bytes_per_s=700000/m.gguf")
    options = attrs.evolve(QUICK, header_first=1 << 14)
    interrupt = partial(signal.pthread_kill, threading.main_thread().ident or 0, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        gs.open(url, options=options).write(out, jobs=1, progress=Watcher(interrupt))
    assert leftovers(out.parent) == ["out.gguf.part", "out.gguf.part.journal"]
    receipt = gs.open(url, options=options).write(out)
    assert out.read_bytes() == FILE
    assert check_accounts(receipt).resumed > 0


def test_an_error_of_the_watcher_ends_the_write(serve: Serve, out: Path) -> None:
    server = serve({"m.gguf": FILE})
    view = gs.open(server.url("~rate:bytes_per_s=700000,after=1/m.gguf"))
    with pytest.raises(ZeroDivisionError):
        view.write(out, progress=Watcher(lambda: 1 // 0))
    assert not out.exists()


def test_two_writers_of_one_output_do_not_mix(serve: Serve, out: Path) -> None:
    class Second(Watcher):
        def started(self, plan: Plan, resumed: int) -> None:
            super().started(plan, resumed)
            with pytest.raises(gs.OutputError, match="another process writes this output"):
                view.write(out)

    server = serve({"m.gguf": FILE})
    view = gs.open(server.url("m.gguf"), options=QUICK)
    view.write(out, progress=Second())
    assert out.read_bytes() == FILE


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_a_write_that_only_lacked_the_renames_is_finished_without_fetching(serve: Serve, out: Path, renamed: int) -> None:
    server = serve({"m.gguf": FILE})
    view = gs.open(server.url("m.gguf"), options=QUICK)
    count = len(make_plan(view, max_shard_size=200_000).files)
    real = Path.replace
    done: list[Path] = []

    def replace(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            if len(done) == renamed:
                raise KeyboardInterrupt
            done.append(target)
        return real(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            view.write(out, max_shard_size=200_000)
    first = out.with_name(f"out-00001-of-{count:05d}.gguf")
    assert not first.exists()
    sent = server.bytes_sent
    view.write(out, max_shard_size=200_000)
    assert server.bytes_sent == sent
    assert leftovers(out.parent) == []
    assert same(gs.open(first), view)


def write_and_leave_the_journal(view: gs.GGUF, out: Path) -> None:
    """Write as a process does that ends between the rename and the removal of the journal."""
    real = Path.unlink
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, **k: None if self.suffix == ".journal" else real(self, **k))
        view.write(out)


def test_a_finished_write_whose_file_was_deleted_is_made_again(model: Path, out: Path) -> None:
    view = gs.open(model)
    write_and_leave_the_journal(view, out)
    assert leftovers(out.parent) == ["out.gguf.part.journal"]
    out.unlink()
    view.write(out)
    assert out.read_bytes() == FILE
    assert leftovers(out.parent) == []


def test_a_journal_that_outlived_its_result_does_not_hinder_another_one(model: Path, out: Path) -> None:
    view = gs.open(model)
    write_and_leave_the_journal(view, out)
    other = view.pipe(gs.set_metadata({"general.name": "another"}))
    with pytest.raises(gs.OutputError, match="exists"):
        other.write(out)
    other.write(out, overwrite=True)
    assert gs.open(out).metadata["general.name"] == "another"
    assert leftovers(out.parent) == []
