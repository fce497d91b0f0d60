"""Operations on tensors by name."""

from __future__ import annotations

import pytest

from _views import opened
from ggufslice.errors import TensorNotFoundError
from ggufslice.ops import drop_tensors, keep_tensors, rename_tensors
from ggufslice.testing import build_gguf, synthetic

VIEW = opened(build_gguf(*synthetic(layers=2)))


def test_patterns_are_searched_for() -> None:
    assert list(keep_tensors("ffn_norm")(VIEW)) == ["blk.0.ffn_norm.weight", "blk.1.ffn_norm.weight"]
    assert list(keep_tensors(r"^output")(VIEW)) == ["output_norm.weight", "output.weight"]
    assert list(keep_tensors(r"^output\.")(VIEW)) == ["output.weight"]
    assert list(drop_tensors("blk")(VIEW)) == ["token_embd.weight", "output_norm.weight", "output.weight"]


def test_keeping_and_dropping_split_a_model_in_two() -> None:
    kept, dropped = keep_tensors("attn")(VIEW), drop_tensors("attn")(VIEW)
    assert sorted([*kept, *dropped]) == sorted(VIEW)
    assert {name: kept[name] for name in kept} == {name: VIEW[name] for name in VIEW if "attn" in name}
    assert kept.metadata == VIEW.metadata


def test_what_lacks_tensors_is_a_fragment() -> None:
    for op in (keep_tensors("attn"), drop_tensors("attn")):
        cut = op(VIEW)
        assert cut.lineage is not None
        assert cut.lineage.fragment
    whole = keep_tensors("")(VIEW)
    assert whole.lineage is not None
    assert not whole.lineage.fragment


@pytest.mark.parametrize("op", [keep_tensors, drop_tensors])
def test_a_pattern_that_matches_nothing_names_the_nearest(op: type[keep_tensors]) -> None:
    with pytest.raises(TensorNotFoundError, match=r"'blk\\\\.0\\\\.attn_nrom'; near to it are 'blk.0.attn_norm.weight'"):
        op(r"blk\.0\.attn_nrom")(VIEW)
    with pytest.raises(ValueError, match=r"not a regular expression: 'blk\['"):
        op("blk[")


def test_names_are_changed_and_swapped() -> None:
    swap = {"blk.0.attn_q.weight": "blk.1.attn_q.weight", "blk.1.attn_q.weight": "blk.0.attn_q.weight"}
    after = rename_tensors(swap)(VIEW)
    assert after["blk.1.attn_q.weight"].pieces == VIEW["blk.0.attn_q.weight"].pieces
    assert after["blk.0.attn_q.weight"].pieces == VIEW["blk.1.attn_q.weight"].pieces
    assert rename_tensors(swap)(after).all_tensors == VIEW.all_tensors
    assert [t.name for t in rename_tensors({"output.weight": "out"})(VIEW).all_tensors][-1] == "out"


def test_names_that_can_not_be() -> None:
    with pytest.raises(TensorNotFoundError, match=r"'outptu.weight'; did you mean 'output.weight'"):
        rename_tensors({"outptu.weight": "x"})(VIEW)
    with pytest.raises(ValueError, match=r"can't be called 'output.weight': there is a tensor of that name"):
        rename_tensors({"output_norm.weight": "output.weight"})(VIEW)
    with pytest.raises(ValueError, match="can't get the same name"):
        rename_tensors({"a": "x", "b": "x"})
    assert rename_tensors({"output.weight": "é" * 31 + "x"})(VIEW)
    for name, size in (("é" * 32, 64), ("", 0)):
        with pytest.raises(ValueError, match=f"{size} bytes: llama.cpp reads 1 to 63"):
            rename_tensors({"output.weight": name})
