"""Putting tensors of another file into a model."""

from __future__ import annotations

from typing import Any

import pytest

from _views import opened
from ggufslice.arch import check
from ggufslice.errors import TensorNotFoundError, UnsupportedCutError
from ggufslice.ops import drop_layers, graft, keep_tensors, rename_tensors, select_experts
from ggufslice.provenance import Origin
from ggufslice.testing import Typed, build_gguf, synthetic
from ggufslice.view import GGUF

BY_BLOCK = "qwen3moe.attention.head_count_kv"


def model(url: str = "/models/ours.gguf", **options: Any) -> GGUF:
    return opened(build_gguf(*synthetic(**{"layers": 3, **options})), url=url)


def donor(**options: Any) -> GGUF:
    return model("https://user:secret@example.org/m/theirs.gguf?token=1", **{"seed": 1, **options})


def test_a_tensor_takes_the_place_of_its_namesake() -> None:
    ours, theirs = model(), donor(tensor_type=8)
    after = graft(theirs, r"^output\.weight$")(ours)
    assert list(after) == list(ours)
    assert after["output.weight"] == theirs["output.weight"]
    assert after["output.weight"].tensor_type == 8
    assert all(after[name] == ours[name] for name in ours if name != "output.weight")
    assert after.metadata == ours.metadata
    assert after.lineage is not None
    assert after.lineage.grafted == {"output.weight": "https://example.org/m/theirs.gguf"}
    assert after.lineage.ops == (
        '{"op":"graft","donor":"https://example.org/m/theirs.gguf","pattern":"^output\\\\.weight$"}',
    )


def test_a_local_donor_is_named_without_its_folder() -> None:
    op = graft("/home/me/theirs.gguf", "output")
    assert op.describe()["donor"] == "theirs.gguf"
    assert "home" not in repr(op)


def test_shapes_must_agree_and_trailing_ones_do() -> None:
    with pytest.raises(UnsupportedCutError, match=r"'output.weight' of .*theirs.gguf has ne \(64, 264\).*has \(32, 264\)"):
        graft(donor(width=64), r"^output\.")(model())
    one: dict[str, Any] = {"experts": 1, "used": 1}
    squeezed = donor(**one)
    tensors = [keep[0] if (keep := t).name == "blk.0.ffn_up_exps.weight" else t for t in squeezed.all_tensors]
    flat = GGUF(squeezed.metadata, tensors)
    assert flat["blk.0.ffn_up_exps.weight"].ne == (32, 32)
    assert graft(flat, "blk.0.ffn_up_exps")(model(**one))["blk.0.ffn_up_exps.weight"].ne == (32, 32)


def test_byte_orders_must_agree() -> None:
    big = opened(build_gguf(*synthetic(layers=1), byteorder="big"))
    with pytest.raises(UnsupportedCutError, match="is big-endian and this model little-endian"):
        graft(big, "output")(model())


def test_mtp_blocks_go_to_the_tail_with_their_metadata() -> None:
    ours = model(metadata={BY_BLOCK: Typed([1, 1, 1], "arr", "u32")})
    theirs = donor(layers=5, mtp=2, kv_heads=1, metadata={BY_BLOCK: Typed([1, 1, 1, 1, 1, 1, 1], "arr", "i32")})
    after = graft(theirs, r"^blk\.[56]\.")(ours)
    assert (after.block_count, after.nextn_count) == (5, 2)
    assert after.metadata[BY_BLOCK] == [1, 1, 1, 1, 1]
    assert after.metadata.type(BY_BLOCK) == "arr[u32]"
    assert after.metadata.type("qwen3moe.nextn_predict_layers") == "u32"
    assert after["blk.3.nextn.eh_proj.weight"].pieces == theirs["blk.5.nextn.eh_proj.weight"].pieces
    assert after["blk.4.ffn_gate_inp.weight"].pieces == theirs["blk.6.ffn_gate_inp.weight"].pieces
    assert after.blocks == (0, 1, 2, 3, 4)
    assert after.base.block_count == 3
    assert check(after) == ()


def test_the_second_mtp_block_alone_can_be_added_to_the_first() -> None:
    ours, theirs = model(mtp=1), donor(mtp=2)
    after = graft(theirs, r"^blk\.4\.")(ours)
    assert (after.block_count, after.nextn_count) == (5, 2)
    assert after["blk.3.ffn_norm.weight"] == ours["blk.3.ffn_norm.weight"]
    with pytest.raises(UnsupportedCutError, match="the pattern leaves one out"):
        graft(theirs, r"^blk\.4\.")(model())


def test_blocks_of_the_trunk_can_not_be_added() -> None:
    with pytest.raises(UnsupportedCutError, match=r"block 3 of .*theirs.gguf is no MTP block.*blocks end at 2"):
        graft(donor(layers=5), "attn_norm")(model())
    with pytest.raises(UnsupportedCutError, match=r"MTP blocks of llama .* don't fit qwen3moe"):
        graft(donor(architecture="llama", mtp=1), r"^blk\.3\.")(model())


def test_mtp_blocks_need_as_many_experts() -> None:
    cut = model().pipe(select_experts(4))
    whole = [str(finding) for finding in check(cut.pipe(graft(donor(mtp=1), r"^blk\.3\."))) if finding.refuse]
    assert "'blk.3.ffn_gate_inp.weight' has 8 entries on its outermost axis, but qwen3moe.expert_count = 4" in whole[0]
    cut_too = donor(mtp=1).pipe(select_experts(4))
    assert check(cut.pipe(graft(cut_too, r"^blk\.3\."))) == ()


def test_experts_are_cut_after_a_graft_too() -> None:
    after = model().pipe(graft(donor(mtp=1), r"^blk\.3\."), select_experts([3, 0, 5]))
    assert after["blk.3.ffn_up_exps.weight"].ne == (32, 32, 3)
    assert check(after) == ()


def test_grafted_blocks_stay_at_the_tail_when_layers_are_dropped() -> None:
    grafted = model(architecture="glm4moe").pipe(graft(donor(architecture="glm4moe", mtp=1), r"^blk\.3\."))
    cut = grafted.pipe(drop_layers([1]))
    assert cut.blocks == (0, 2, 3)
    assert cut.lineage is not None
    assert cut.lineage.grafted
    assert set(cut.lineage.grafted) == {name for name in cut if name.startswith("blk.2.")}
    assert check(cut) == ()
    without = grafted.pipe(drop_layers([1], mtp=False))
    assert without.lineage is not None
    assert without.lineage.grafted == {}
    assert (without.block_count, without.nextn_count) == (2, 0)


def test_what_is_not_the_first_models_is_counted() -> None:
    after = model().pipe(graft(donor(), r"^output\."), rename_tensors({"output.weight": "moved.weight"}))
    origin = Origin.of(after)
    assert origin is not None
    assert origin.grafted == 32 * 264


def test_arguments() -> None:
    with pytest.raises(TypeError, match="as donor, got 3"):
        graft(3, "x")
    with pytest.raises(ValueError, match="not a regular expression"):
        graft("x.gguf", "(")
    with pytest.raises(TensorNotFoundError, match=r"no tensor of https://example.org/m/theirs.gguf matches 'rope_freqs'"):
        graft(donor(), "rope_freqs")(model())
    with pytest.raises(TensorNotFoundError, match=r"near to it are 'output.weight'"):
        graft(donor().pipe(keep_tensors("output")), "outputt.weight")(model())
