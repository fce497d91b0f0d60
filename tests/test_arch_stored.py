"""Bytes that no tensor claims are remarked on: the type's number may mean another type, with larger rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ggufslice as gs
from ggufslice.arch import check
from ggufslice.testing import TensorSpec, build_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from ggufslice.view import GGUF

F32 = 0


def stored(folder: Path, *, behind_first: int, behind_last: int) -> GGUF:
    """Two tensors of 32 bytes, with so many bytes behind each."""
    data = build_gguf({"general.architecture": "zzz"}, [TensorSpec(name, (8,), F32) for name in ("first", "last")])
    head, offset = data[:-64], (32).to_bytes(8, "little")
    head = (32 + behind_first).to_bytes(8, "little").join(head.rsplit(offset, 1))
    path = folder / "model.gguf"
    path.write_bytes(head + bytes(32 + behind_first) + bytes(32 + behind_last))
    return gs.open(path)


def test_bytes_that_belong_to_no_tensor_are_remarked_on(tmp_path: Path) -> None:
    view = stored(tmp_path, behind_first=64, behind_last=32)
    (found,) = check(view)
    assert not found.refuse
    assert found.message.startswith("behind tensor 'first' (and of 1 more) lie 64 bytes that belong to no tensor")
    assert "isn't F32 but another program's of the same number" in found.message
    assert view.pipe(gs.set_metadata({"general.name": "x"})).plan().warnings == (found.message,)
    receipt = view.write(tmp_path / "out.gguf")
    assert receipt.notes == (found.message,)
    assert f"* {found.message}" in str(receipt)
    assert check(gs.open(tmp_path / "out.gguf")) == ()


def test_padding_is_no_such_thing(tmp_path: Path) -> None:
    assert check(stored(tmp_path, behind_first=0, behind_last=31)) == ()


def test_remarks_reach_the_receipt(tmp_path: Path) -> None:
    (tmp_path / "zzz.gguf").write_bytes(build_gguf(*gs.testing.synthetic("zzz", layers=1, experts=4, used=1)))
    cut = gs.open(tmp_path / "zzz.gguf").pipe(gs.select_experts([3, 1]))
    (warning,) = cut.plan().warnings
    assert "the architecture 'zzz' is not known here" in warning
    assert warning in cut.write(tmp_path / "cut.gguf").notes
