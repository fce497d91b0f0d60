"""What the strategies draw is what gguf-py's reader finds in the bytes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
from hypothesis import Phase, find, given, settings

from ggufslice.testing import strategies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ggufslice.testing import TensorSpec
    from ggufslice.testing.strategies import DrawnFile, DrawnShards


def _read(data: bytes) -> gguf.GGUFReader:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gguf"
        path.write_bytes(data)
        return gguf.GGUFReader(path)


def _same(readers: Sequence[gguf.GGUFReader], specs: Sequence[TensorSpec], byteorder: str) -> None:
    found = [tensor for reader in readers for tensor in reader.tensors]
    assert [tensor.name for tensor in found] == [spec.name for spec in specs]
    for tensor, spec in zip(found, specs, strict=True):
        assert tuple(tensor.shape) == spec.ne
        assert tensor.data.tobytes() == spec.tobytes("big" if byteorder == "big" else "little")


def _known(specs: Sequence[TensorSpec]) -> bool:
    """Whether gguf-py knows the types."""
    return all(spec.type != 42 for spec in specs)


@given(strategies.files(depth=1))
@settings(max_examples=60)
def test_gguf_py_finds_what_was_drawn(file: DrawnFile) -> None:
    assert file.data[:4] == b"GGUF"
    if not (_known(file.tensors) and file.tensors):
        return
    reader = _read(file.data)

    _same([reader], file.tensors, file.byteorder)
    assert [name for name in reader.fields if not name.startswith("GGUF.")] == list(file.metadata)
    assert reader.alignment == file.alignment
    ends = [tensor.data_offset + tensor.n_bytes for tensor in reader.tensors]
    assert (len(file.data) == -(-ends[-1] // file.alignment) * file.alignment) or not file.pad_last


@given(strategies.shard_sets(depth=1))
@settings(max_examples=30)
def test_shard_sets(model: DrawnShards) -> None:
    names = list(model.named("m"))
    assert names[0] == (f"m-00001-of-0000{len(names)}.gguf" if len(names) > 1 else "m.gguf")
    assert list(model.named().values()) == list(model.shards)
    if _known(model.tensors):
        readers = [_read(shard) for shard in model.shards]
        _same(readers, model.tensors, "little")
        assert len(readers[0].tensors) == 0 if model.no_tensor_first else len(readers[0].tensors) > 0


@given(strategies.expert_models())
@settings(max_examples=30)
def test_expert_models(model: DrawnShards) -> None:
    _same([_read(shard) for shard in model.shards], model.tensors, "little")
    count = model.metadata["qwen3moe.expert_count"]
    routed = [spec for spec in model.tensors if "_exps." in str(spec.name)]
    assert routed
    assert all(spec.ne[-1] == count for spec in routed)


def _is_rubbish(value: object) -> bool:
    return isinstance(value, bytes) and "\ufffd" in value.decode("utf-8", "replace")


def test_every_kind_of_file_is_drawn() -> None:
    search = settings(max_examples=2000, database=None, phases=[Phase.generate])

    def reaches(condition: Callable[[DrawnFile], Any]) -> None:
        find(strategies.files(), condition, settings=search)

    reaches(lambda file: file.byteorder == "big" and file.tensors)
    reaches(lambda file: file.version == 2)
    reaches(lambda file: file.alignment == 256 and len(file.tensors) > 1)
    reaches(lambda file: file.gap and file.pad_last)
    reaches(lambda file: file.canonical and len(file.tensors) > 2)
    reaches(lambda file: any(len(spec.ne) == 4 for spec in file.tensors))
    reaches(lambda file: any(value.element_type == "arr" and value.value for value in file.metadata.values()))
    reaches(lambda file: any(value.type == "arr" and not value.value for value in file.metadata.values()))
    reaches(lambda file: any(_is_rubbish(value.value) for value in file.metadata.values()))
    find(strategies.files(canonical=False), lambda file: not file.pad_last, settings=search)


@given(strategies.files(canonical=True, byteorder="little"))
@settings(max_examples=20)
def test_only_canonical_files(file: DrawnFile) -> None:
    assert file.canonical
    assert file.byteorder == "little"
    assert len(file.data) % file.alignment == 0


def test_without_hypothesis_one_line_names_the_extra() -> None:
    program = "import sys; sys.modules['hypothesis'] = None; import ggufslice.testing; import ggufslice.testing.strategies"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "MissingExtraError: this needs the package 'hypothesis': pip install 'ggufslice[testing]'"
    )
