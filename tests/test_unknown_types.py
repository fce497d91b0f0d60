"""Types that no table knows, such as those of a fork with a header in each row: copied whole, never cut inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import ggufslice as gs
from ggufslice.testing import TensorSpec, build_gguf, synthetic

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 8 * 32  # of each of the expert tensors that change their type below
STORED = bytes(i * 7 % 251 for i in range(ROWS * (4 + 18)))  # a row: 4 bytes of its own and one block of 18


@pytest.fixture
def model(tmp_path: Path) -> gs.RemoteGGUF:
    """A model of four layers, two of whose expert tensors have the type 153."""
    metadata, tensors = synthetic("qwen3moe", layers=4, experts=8)
    odd = {"blk.1.ffn_up_exps.weight", "blk.3.ffn_up_exps.weight"}
    tensors = [TensorSpec(t.name, t.ne, 153, data=STORED) if t.name in odd else t for t in tensors]
    (tmp_path / "model.gguf").write_bytes(build_gguf(metadata, tensors))
    return gs.open(tmp_path / "model.gguf")


def test_they_are_copied_whole(model: gs.RemoteGGUF, tmp_path: Path) -> None:
    model.write(tmp_path / "same.gguf")
    assert (tmp_path / "same.gguf").read_bytes() == (tmp_path / "model.gguf").read_bytes()
    receipt = model.pipe(gs.keep_layers([0, 3]), gs.set_metadata({"general.name": "New"})).write(tmp_path / "cut.gguf")
    kept = gs.open(tmp_path / "cut.gguf")["blk.1.ffn_up_exps.weight"]
    assert (kept.tensor_type, kept.ne) == (153, (32, 32, 8))
    assert kept.read()[: len(STORED)] == STORED  # and its padding, which only its own program could tell apart
    (part,) = (p for p in receipt.types if p.tensor_type == "UNKNOWN(153)")
    assert part.n_params == 32 * 32 * 8


def test_their_experts_are_not_cut(model: gs.RemoteGGUF) -> None:
    with pytest.raises(
        gs.UnsupportedCutError, match=r"'blk\.1\.ffn_up_exps\.weight' has the type UNKNOWN\(153\).*copied whole"
    ):
        model.pipe(gs.select_experts([5, 2]))
    with pytest.raises(gs.UnsupportedCutError, match=r"can't decode UNKNOWN\(153\).*read\(\) gives the stored bytes"):
        model["blk.1.ffn_up_exps.weight"].numpy()


def test_padding_behind_them_may_grow(model: gs.RemoteGGUF, tmp_path: Path) -> None:
    model.pipe(gs.set_metadata({"general.alignment": 4096})).write(tmp_path / "wide.gguf")
    assert gs.open(tmp_path / "wide.gguf")["blk.1.ffn_up_exps.weight"].read()[: len(STORED)] == STORED
    last = build_gguf({"general.architecture": "zzz"}, [TensorSpec("a", (256,), 153, data=b"x" * 70)], pad_last=False)
    (tmp_path / "last.gguf").write_bytes(last)
    gs.open(tmp_path / "last.gguf").write(tmp_path / "padded.gguf")
    assert (tmp_path / "padded.gguf").read_bytes() == last + bytes(96 - 70)
