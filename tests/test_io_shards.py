"""Sets of shards: names, completeness, headers that don't fit together."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import ggufslice as gs
from ggufslice.io.shards import ShardName, check_name, choose_set
from ggufslice.testing import TensorSpec, Typed, build_gguf, split_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

METADATA, TENSORS = synthetic(layers=2, experts=4)
NAMES = [str(tensor.name) for tensor in TENSORS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model in three shards."""
    for i, data in enumerate(split_gguf(METADATA, TENSORS, 3), 1):
        (tmp_path / f"m-{i:05d}-of-00003.gguf").write_bytes(data)
    return tmp_path


def shard(no: int, count: int, tensors: Sequence[str], *, total: int | None = None, **more: object) -> bytes:
    """Pack a shard with small tensors of these names."""
    metadata: dict[str, object] = {
        "split.no": Typed(no, "u16"),
        "split.count": Typed(count, "u16"),
        "split.tensors.count": Typed(total, "i32"),
        "general.architecture": "llama",
        **more,
    }
    kept = {
        key: value for key, value in metadata.items() if value is not None and getattr(value, "value", value) is not None
    }
    return build_gguf(kept, [TensorSpec(name, (4,), 0) for name in tensors])


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


# Opening sets


@pytest.mark.parametrize("name", ["", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"])
def test_any_shard_and_the_folder_open_the_whole_set(folder: Path, name: str) -> None:
    view = gs.open(folder / name)

    assert list(view) == NAMES
    assert [view[str(t.name)].read() for t in TENSORS] == [t.tobytes() for t in TENSORS]
    assert [s.source.url for s in view.shards] == [str(folder / f"m-0000{i}-of-00003.gguf") for i in (1, 2, 3)]
    assert sum(s.n_tensors for s in view.shards) == len(TENSORS)


def test_metadata_is_that_of_the_first_shard_without_the_bookkeeping(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = tmp_path_factory.mktemp("whole") / "m.gguf"
    whole.write_bytes(build_gguf(METADATA, TENSORS))

    view = gs.open(folder)
    assert view.metadata.records == gs.open(whole).metadata.records
    assert (view.n_params, view.tensor_bytes) == (gs.open(whole).n_params, gs.open(whole).tensor_bytes)


def test_a_first_shard_without_tensors(tmp_path: Path) -> None:
    files = {"m-00001-of-00002.gguf": shard(0, 2, [], total=1), "m-00002-of-00002.gguf": shard(1, 2, ["a"], total=1)}
    assert list(gs.open(write(tmp_path, files))) == ["a"]


def test_a_single_file_keeps_its_records(tmp_path: Path) -> None:
    # A model that was made from shards by a tool that left their keys: it is whole, since it has all tensors.
    files = {"m.gguf": shard(0, 3, ["a", "b"], total=2)}
    view = gs.open(write(tmp_path, files))
    assert list(view) == ["a", "b"]
    assert view.metadata["split.count"] == 3


def test_one_shard_of_one(tmp_path: Path) -> None:
    view = gs.open(write(tmp_path, {"m-00001-of-00001.gguf": shard(0, 1, ["a"], total=1)}))
    assert list(view) == ["a"]


def test_digits_of_another_width(tmp_path: Path) -> None:
    files = {f"m-{i:03d}-of-002.gguf": shard(i - 1, 2, [f"t{i}"], total=2) for i in (1, 2)}
    assert list(gs.open(write(tmp_path, files) / "m-002-of-002.gguf")) == ["t1", "t2"]


def test_names_that_end_in_the_numbers(tmp_path: Path) -> None:
    files = {f"m.gguf-{i:05d}-of-00002": shard(i - 1, 2, [f"t{i}"], total=2) for i in (1, 2)}
    assert list(gs.open(write(tmp_path, files))) == ["t1", "t2"]
    assert list(gs.open(tmp_path / "m.gguf-00002-of-00002")) == ["t1", "t2"]


# Sets that aren't whole


def test_a_missing_shard(folder: Path) -> None:
    (folder / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(gs.FormatError, match="number 2 is missing"):
        gs.open(folder)
    with pytest.raises(gs.SourceError, match=r"aren't beside it: m-00002-of-00003\.gguf"):
        gs.open(folder / "m-00001-of-00003.gguf")


def test_a_shard_that_is_there_twice(folder: Path) -> None:
    shutil.copy(folder / "m-00002-of-00003.gguf", folder / "m-2-of-3.gguf")
    with pytest.raises(gs.FormatError, match=r"m-00002-of-00003\.gguf and m-2-of-3\.gguf is there twice"):
        gs.open(folder)


def test_shards_that_are_numbered_in_different_ways(folder: Path) -> None:
    (folder / "m-00002-of-00003.gguf").rename(folder / "m-2-of-3.gguf")
    with pytest.raises(gs.FormatError, match="numbered in different ways"):
        gs.open(folder)


def test_a_folder_with_several_models_lists_them(folder: Path) -> None:
    write(folder, {"other.gguf": b"", "n-00001-of-00002.gguf": b"", "notes.txt": b""})
    with pytest.raises(gs.FormatError, match="3 models") as failure:
        gs.open(folder)
    for name in ("m-00001-of-00003.gguf (and 2 more shards)", "n-00001-of-00002.gguf", "other.gguf"):
        assert name in str(failure.value)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    write(tmp_path, {"notes.txt": b""})
    with pytest.raises(gs.FormatError, match="no GGUF file"):
        gs.open(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("m.gguf.part1of2", "m.Q4.gguf.part-01", "m.gguf-split-a", "m.gguf-split-aa", "m.gguf.split.ab", "m.gguf.001"),
        "m.gguf-part-a",
    ],
)
def test_raw_pieces_of_a_file_are_refused_with_advice(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: build_gguf(METADATA, TENSORS)[:1000]})
    for source in (tmp_path, tmp_path / name):
        with pytest.raises(gs.FormatError, match="join the pieces"):
            gs.open(source)


@pytest.mark.parametrize(
    "name", ["m.gguf", "part1of2.gguf", "m-split-a.gguf", "m.gguf-00001-of-00002", "m-00001-of-00002.gguf"]
)
def test_names_that_are_no_raw_pieces(name: str) -> None:
    check_name(name)


# Headers that don't fit together


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (shard(0, 2, ["b"], total=2), r"2-of-00002.*split\.no, which counts from 0, is 0, not 1"),
        (shard(2, 2, ["b"], total=2), "is 2, not 1"),
        (shard(1, 3, ["b"], total=2), r"split\.count is 3"),
        (shard(1, 2, ["b"], total=2, **{"split.count": None}), r"split\.count is missing"),
        (shard(1, 2, ["b"], total=2, **{"split.no": None}), r"is missing, not 1"),
        (shard(1, 2, ["b"], total=3), r"3 tensors \(split\.tensors\.count\), but its 2 shards have 2"),
        (shard(1, 2, ["b", "c"], total=2), "2 tensors .* have 3"),
        (shard(1, 2, ["a"], total=2), "tensor 'a' is in two shards: .*1-of-00002.gguf and .*2-of-00002.gguf"),
        (shard(1, 2, ["b"], total=2, **{"general.architecture": "gemma"}), r"general\.architecture is 'gemma' and 'llama'"),
        (shard(1, 2, ["b"], total=2, **{"split.no": "1"}), r"split\.no is '1', not a whole number"),
        (
            build_gguf(
                {"split.no": Typed(1, "u16"), "split.count": Typed(2, "u16")}, [TensorSpec("b", (4,))], byteorder="big"
            ),
            "byte order",
        ),
        (b"GGML" + bytes(100), "not a GGUF"),
        (b"", "2-of-00002.gguf: not a GGUF: it is empty"),
    ],
)
def test_one_clear_error(tmp_path: Path, second: bytes, says: str) -> None:
    write(tmp_path, {"m-00001-of-00002.gguf": shard(0, 2, ["a"], total=2), "m-00002-of-00002.gguf": second})
    with pytest.raises(gs.FormatError, match=says):
        gs.open(tmp_path)


def test_later_shards_needn_t_repeat_anything(tmp_path: Path) -> None:
    second = shard(1, 2, ["b"], **{"general.architecture": None})
    write(tmp_path, {"m-00001-of-00002.gguf": shard(0, 2, ["a"], total=2), "m-00002-of-00002.gguf": second})
    assert gs.open(tmp_path).architecture == "llama"


def test_a_shard_without_the_name_of_one(tmp_path: Path) -> None:
    write(tmp_path, {"m.gguf": shard(1, 3, ["b"], total=7)})
    with pytest.raises(gs.FormatError, match=r"shard 2 of 3, but its name does not: .*model-00001-of-00003\.gguf"):
        gs.open(tmp_path)


# Names


def test_siblings_have_the_digits_of_the_name() -> None:
    for name, siblings in {
        "m-00002-of-00003.gguf": ("m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"),
        "m-2-of-3.GGUF": ("m-1-of-3.GGUF", "m-2-of-3.GGUF", "m-3-of-3.GGUF"),
        "a-01-of-02.gguf-1-of-2.gguf": ("a-01-of-02.gguf-1-of-2.gguf", "a-01-of-02.gguf-2-of-2.gguf"),
    }.items():
        parsed = ShardName.parse(name)
        assert parsed is not None
        assert parsed.siblings() == siblings
    unpadded = ShardName.parse("m-9-of-10.gguf")
    assert unpadded is not None
    assert unpadded.siblings()[-2:] == ("m-9-of-10.gguf", "m-10-of-10.gguf")


@pytest.mark.parametrize(
    "name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-001-of-3.gguf", "m-00001-of-00000.gguf"]
)
def test_numbers_that_make_no_sense(name: str) -> None:
    parsed = ShardName.parse(name)
    assert parsed is not None
    with pytest.raises(gs.FormatError, match="numbered"):
        parsed.siblings()


@pytest.mark.parametrize("name", ["m.gguf", "m-of-3.gguf", "m-00001-of-.gguf", "m-1-of-2.gguf.tmp", "m_1_of_2.gguf"])
def test_other_names(name: str) -> None:
    assert ShardName.parse(name) is None


def test_shards_in_another_folder_are_another_set() -> None:
    names = ["Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf", "README.md"]
    assert choose_set(names, "here") == tuple(names[:2])
    with pytest.raises(gs.FormatError, match="2 models"):
        choose_set([*names, "Q8/m-00001-of-00002.gguf"], "here")
