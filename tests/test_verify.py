"""Verify: a cut is what it says, or the byte that isn't is named."""

from __future__ import annotations

import shutil
import struct
from typing import TYPE_CHECKING

import attrs
import pytest

import ggufslice as gs
from ggufslice import FormatError, SourceError, cli
from ggufslice.header import HeaderParser
from ggufslice.lockfile import Lock
from ggufslice.testing import RangeServer, TensorSpec, build_gguf, split_gguf, synthetic
from ggufslice.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ggufslice.header import Header
    from ggufslice.view import GGUF

OPS = (gs.select_experts([5, 0, 3]), gs.keep_layers([0, 2, 3]), gs.set_expert_used(1))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(build_gguf(*synthetic(layers=4, experts=8, used=2)))
    return path


@pytest.fixture
def cut(source: Path) -> Path:
    path = source.with_name("cut.gguf")
    with gs.open(source) as model:
        view = model.pipe(*OPS)
        view.write(path)
        Lock.of({}, view.plan().view, path).save(path.with_suffix(".lock"))
    return path


def header(path: Path) -> Header:
    parser = HeaderParser(path.name, size=path.stat().st_size)
    parser.feed(path.read_bytes())
    return parser.header


def place(path: Path, tensor: str) -> tuple[int, int]:
    """Return where a tensor starts in a file, and how many bytes it has."""
    parsed = header(path)
    (info,) = (t for t in parsed.tensors if t.name == tensor)
    return parsed.data_start + info.offset, info.n_bytes


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_sound_cut(cut: Path, source: Path) -> None:
    whole = sum(t.n_bytes for t in header(cut).tensors)

    full, part = verify(cut, source=source, full=True), verify(cut, source=source, sample=3, seed=1)

    assert full.ok
    assert part.ok
    assert (full.method, full.compared_bytes, full.total_bytes, full.seed) == ("full", whole, whole, None)
    assert part.method == "sample"
    assert 0 <= part.compared_bytes < whole
    assert verify(cut, source=source, sample=3, seed=1) == part, "a seed repeats the choice"
    assert "every tensor byte is the source's" in str(full)
    assert "leaves open" in str(part)
    assert "the other" in str(part)


def test_the_source_is_found_beside_the_cut_or_asked_for(cut: Path, source: Path) -> None:
    assert verify(cut, full=True).ok

    source.unlink()
    with pytest.raises(SourceError, match=r"was cut from a local file tiny\.gguf, which isn't beside it.*--source"):
        verify(cut)


def test_an_open_source_or_the_first_of_shards_behind_http(tmp_path: Path) -> None:
    shards = {f"m-{i:05d}-of-00003.gguf": d for i, d in enumerate(split_gguf(*synthetic(layers=4, experts=8, used=2), 3), 1)}
    with RangeServer(shards) as server:
        with gs.open(server.url("m-00001-of-00003.gguf")) as model:
            model.pipe(*OPS).write(tmp_path / "cut.gguf")
            assert verify(tmp_path / "cut.gguf", source=model, full=True).ok
        assert verify(tmp_path / "cut.gguf", full=True).ok, "the address is in the file"


def test_a_cut_that_is_not_local(cut: Path, source: Path) -> None:
    with RangeServer({"cut.gguf": cut.read_bytes()}) as server:
        url = server.url("cut.gguf")
        found = verify(f"{url}?token=s3cret", source=source, full=True)
        assert found.ok
        assert found.path == url
        assert cli.main(["verify", url, "--source", str(source)]) == 0
        with pytest.raises(SourceError, match=rf"{url} was cut from a local file tiny\.gguf: say where it is .*--source"):
            verify(url)
        with pytest.raises(SourceError, match="only a local file is compared with a lock"):
            verify(url, lock=cut.with_suffix(".lock"))


def test_a_cut_of_a_cut_against_its_parent_and_against_the_first_model(cut: Path, source: Path) -> None:
    again = cut.with_name("again.gguf")
    with gs.open(cut) as model:
        model.pipe(gs.keep_layers([1]), gs.select_experts([2, 0])).write(again)

    for against in (cut, source):
        assert verify(again, source=against, full=True).ok, against.name


def test_a_sharded_cut(source: Path, tmp_path: Path) -> None:
    with gs.open(source) as model:
        model.pipe(*OPS).write(tmp_path / "out.gguf", max_shard_size=60_000)
    first = min(tmp_path.glob("out-00001-of-*.gguf"))

    assert verify(first, source=source, full=True).ok
    last = max(tmp_path.glob("out-*.gguf"))
    flip(last, last.stat().st_size - 100)
    assert not verify(first, source=source, full=True).ok


@pytest.mark.parametrize("tensor", ["token_embd.weight", "blk.1.ffn_down_exps.weight", "blk.2.ffn_gate_inp.weight"])
def test_a_byte_flipped_in_a_tensor_of_the_cut_is_named(cut: Path, source: Path, tensor: str) -> None:
    start, n_bytes = place(cut, tensor)
    flip(cut, start + n_bytes // 2)

    found = verify(cut, source=source, full=True)

    (difference,) = found.differences
    assert (difference.what, difference.start) == (f"tensor {tensor}", start + n_bytes // 2)
    assert source.name in difference.detail
    assert not found.ok
    against_lock = verify(cut, lock=cut.with_suffix(".lock"))
    assert [d.what for d in against_lock.differences] == [f"tensor {tensor}"]


def test_a_byte_flipped_in_the_source_is_named(cut: Path, source: Path) -> None:
    start, n_bytes = place(source, "blk.2.ffn_up_exps.weight")
    slab = n_bytes // 8
    flip(source, start + 3 * slab + 5)  # expert 3 of block 2 is the third expert of block 1

    (difference,) = verify(cut, source=source, full=True).differences

    ours, n_ours = place(cut, "blk.1.ffn_up_exps.weight")
    assert (difference.what, difference.start) == ("tensor blk.1.ffn_up_exps.weight", ours + 2 * (n_ours // 3) + 5)
    assert f"byte {start + 3 * slab + 5} of " in difference.detail


def test_a_byte_that_was_not_kept_does_not_matter(cut: Path, source: Path) -> None:
    start, n_bytes = place(source, "blk.2.ffn_up_exps.weight")
    flip(source, start + 4 * (n_bytes // 8))

    assert verify(cut, source=source, full=True).ok


def test_a_byte_flipped_in_the_padding_is_named(tmp_path: Path) -> None:
    path, cut = tmp_path / "odd.gguf", tmp_path / "cut.gguf"
    specs = [TensorSpec("output_norm.weight", (5,), 0), TensorSpec("token_embd.weight", (8, 4), 0)]
    path.write_bytes(build_gguf({"general.architecture": "llama", "llama.block_count": 1}, specs))
    with gs.open(path) as model:
        model.pipe(gs.set_metadata({"general.name": "odd"})).write(cut)
    start, n_bytes = place(cut, "output_norm.weight")
    end = start + n_bytes
    flip(cut, end)

    (difference,) = verify(cut, source=path, full=True).differences

    assert (difference.what, difference.start) == ("padding behind output_norm.weight", end)


def test_a_changed_metadata_value_is_named(cut: Path, source: Path) -> None:
    data = cut.read_bytes()
    raw = next(r.raw for r in header(cut).records if r.key.endswith(".context_length"))
    flip(cut, data.index(raw) + len(raw) - 3)

    (difference,) = verify(cut, source=source).differences

    assert difference.what.endswith(".context_length")
    assert difference.what.startswith("metadata key ")
    assert "should be u32:512" in difference.detail


def test_a_changed_record_of_what_was_kept_is_named(cut: Path, source: Path) -> None:
    data = bytearray(cut.read_bytes())
    raw = next(r.raw for r in header(cut).records if r.key == "ggufslice.kept.layers")
    at = data.index(raw) + len(raw) - 4
    data[at : at + 4] = struct.pack("<I", 1)
    cut.write_bytes(data)

    (difference,) = verify(cut, source=source).differences

    assert difference.what == "metadata key ggufslice.kept.layers"


def test_a_changed_parent_is_named_where_it_is_the_one_compared_with(cut: Path, source: Path) -> None:
    data = cut.read_bytes()
    raw = next(r.raw for r in header(cut).records if r.key == "ggufslice.parent.validators")
    digit = raw.index(b'"size":') + 8
    flip(cut, data.index(raw) + digit)

    assert {d.what for d in verify(cut, source=source).differences} & {
        "the source",
        "metadata key ggufslice.parent.validators",
    }


def test_another_copy_of_the_source_will_do(cut: Path, source: Path) -> None:
    copy = source.with_name("renamed.gguf")
    shutil.copyfile(source, copy)

    assert verify(cut, source=copy, full=True).ok


def test_another_model_is_found_out(cut: Path, source: Path) -> None:
    source.write_bytes(build_gguf(*synthetic(layers=4, experts=8, used=2, vocab=300)))

    found = verify(cut, source=source)

    assert {"metadata key ggufslice.parent.validators", "tensor table"} <= {d.what for d in found.differences}
    assert found.compared_bytes == 0


def test_a_truncated_and_a_longer_file(cut: Path, source: Path) -> None:
    lock = cut.with_suffix(".lock")
    cut.write_bytes(cut.read_bytes() + b"more")
    assert verify(cut, lock=lock).differences[0].what == "the file"
    assert "padding behind" in verify(cut, source=source, full=True).differences[0].what

    cut.write_bytes(cut.read_bytes()[:-200])
    assert verify(cut, lock=lock).differences[0].what == "the file"
    with pytest.raises(FormatError, match="truncated"):
        verify(cut, source=source)


def test_against_a_lock_nothing_else_is_opened(cut: Path, source: Path) -> None:
    source.unlink()

    found = verify(cut, lock=cut.with_suffix(".lock"))

    assert found.ok
    assert (found.method, found.compared_bytes) == ("lock", cut.stat().st_size)
    assert found.proves == "every byte is as it was when the lock was made"
    assert "whether the lock was made of the source" in found.leaves_open


def test_a_byte_flipped_in_the_lock_is_noticed(cut: Path) -> None:
    lock = cut.with_suffix(".lock")
    at = lock.read_bytes().index(b'"sha256": "') + 15
    data = bytearray(lock.read_bytes())
    data[at] = ord("0") if data[at] != ord("0") else ord("1")
    lock.write_bytes(data)

    with pytest.raises(FormatError, match=r"cut\.lock was changed after it was written"):
        verify(cut, lock=lock)


def test_a_file_that_is_missing_beside_its_lock(cut: Path) -> None:
    lock = cut.with_suffix(".lock")
    cut.unlink()
    with pytest.raises(SourceError, match=r"cut\.gguf: No such file"):
        verify(cut, lock=lock)


def test_what_is_no_cut_is_refused(source: Path) -> None:
    with pytest.raises(FormatError, match=r"has no ggufslice\.recipe: it is not a cut that ggufslice wrote"):
        verify(source)


def test_a_file_with_other_types_than_were_cut_is_refused(cut: Path, source: Path) -> None:
    data = cut.read_bytes()
    parsed = header(cut)
    raw = next(r.raw for r in parsed.records if r.key == "ggufslice.parent.types")
    flip(cut, data.index(raw) + len(raw) - 4)

    with pytest.raises(FormatError, match=r"was quantized since and no byte of it is the source's; verify the cut"):
        verify(cut, source=source)


@attrs.frozen
class Foreign:
    """An operation of somebody else's."""

    def __call__(self, view: GGUF) -> GGUF:
        return view


@pytest.mark.parametrize("op", [Foreign(), lambda view: view])
def test_an_operation_that_can_not_be_repeated_is_refused(source: Path, op: Callable[[GGUF], GGUF]) -> None:
    with gs.open(source) as model:
        model.pipe(op, *OPS).write(source.with_name("cut.gguf"))

    with pytest.raises(FormatError, match=r"its operations can't be repeated: 'custom:.*' is not an operation of ggufslice"):
        verify(source.with_name("cut.gguf"), source=source)


def test_a_source_that_was_cut_in_another_way_is_refused(cut: Path, source: Path) -> None:
    with gs.open(source) as model:
        model.pipe(gs.select_experts(4)).write(source.with_name("other.gguf"))

    with pytest.raises(FormatError, match="its operations begin with others than the source's own"):
        verify(cut, source=source.with_name("other.gguf"))


def test_a_forced_cut_and_a_fragment(source: Path, tmp_path: Path) -> None:
    with gs.open(source) as model:
        model.pipe(gs.select_experts(1)).write(tmp_path / "forced.gguf", force=True)
        model.pipe(gs.drop_tensors("output_norm")).write(tmp_path / "fragment.gguf", force=True)

    assert verify(tmp_path / "forced.gguf", source=source, full=True).ok
    assert verify(tmp_path / "fragment.gguf", source=source, full=True).ok
