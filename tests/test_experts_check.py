"""What is said of the experts of a cut before it is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from _views import opened
from ggufslice.arch._experts import check
from ggufslice.arch._moe import chunks
from ggufslice.errors import UnsupportedCutError
from ggufslice.ops import drop_tensors, remove_metadata, select_experts, set_expert_used, set_metadata
from ggufslice.spans import Literal
from ggufslice.testing import TensorSpec, build_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

GROUPS: dict[str, Any] = {"expert_group_count": 4, "expert_group_used_count": 2}


def moe(architecture: str = "deepseek2", *, extra: tuple[TensorSpec, ...] = (), **keys: Any) -> GGUF:
    shape: dict[str, Any] = {"layers": 2, "experts": 8, "selection_bias": True}
    shape |= {key: keys.pop(key) for key in ("layers", "experts", "used", "ffn", "expert_ffn") if key in keys}
    metadata = {
        f"{architecture}.{key}": value
        for key, value in {"expert_gating_func": 2, "expert_weights_norm": True, **keys}.items()
    }
    return opened(build_gguf(*synthetic(architecture, metadata=metadata, tensors=extra, **shape)))


def refusals(view: GGUF) -> list[str]:
    return [str(finding) for finding in check(view) if finding.refuse]


def remarks(view: GGUF) -> list[str]:
    return [str(finding) for finding in check(view) if not finding.refuse]


def test_a_sound_cut_has_no_findings() -> None:
    assert check(moe()) == ()
    assert check(moe().pipe(select_experts([7, 0, 3]), set_expert_used(1))) == ()
    assert check(moe(**GROUPS).pipe(select_experts([0, 1, 2, 3, 6, 7]))) == ()


def test_the_used_count_is_never_lowered_silently() -> None:
    (found,) = refusals(moe(used=4).pipe(select_experts(3)))
    assert found.endswith("but a layer keeps 3 experts; add set_expert_used(3) (--expert-used 3) or a lower number")
    assert found.startswith("deepseek2.expert_used_count = 4,")
    assert refusals(moe(used=4).pipe(select_experts(3), set_expert_used(3))) == []
    assert refusals(moe(used=4).pipe(set_expert_used(3), select_experts(3))) == []


@pytest.mark.parametrize(
    ("values", "types", "said"),
    [
        ({"expert_used_count": 9}, {}, "expert_used_count = 9, but a layer keeps 8"),
        ({"expert_used_count": 0}, {}, "expert_used_count is 0 or not there"),
        ({"expert_used_count": [1, 2]}, {"expert_used_count": "arr[u32]"}, "differs between layers"),
        ({"expert_count": 7}, {}, "has 8 entries on its outermost axis, but deepseek2.expert_count = 7"),
        ({"expert_count": 2000}, {}, "2000 experts are more than the 1024"),
        ({"expert_group_count": 3}, {"expert_group_count": "u32"}, "8 experts can't be split into 3 groups"),
        ({"expert_group_count": 8}, {"expert_group_count": "u32"}, "expert_group_count = 8 must be below the 8 experts"),
        (
            {"expert_group_count": 4, "expert_group_used_count": 4},
            {"expert_group_count": "u32", "expert_group_used_count": "u32"},
            "expert_group_used_count = 4 of 4 groups",
        ),
        (
            {"expert_group_count": 4, "expert_group_used_count": 1, "expert_used_count": 3},
            {"expert_group_count": "u32", "expert_group_used_count": "u32"},
            r"a token uses 3 experts, but only 1 groups of 2 are open to it.*add set_expert_used\(2\)",
        ),
    ],
)
def test_what_llama_cpp_would_abort_on_or_get_wrong(values: dict[str, Any], types: dict[str, str], said: str) -> None:
    def full(names: dict[str, Any]) -> dict[str, Any]:
        return {f"deepseek2.{key}": value for key, value in names.items()}

    cut = moe().pipe(set_metadata(full(values), types=full(types)))
    assert re.search(said, "\n".join(refusals(cut)))


def test_what_was_wrong_in_the_source_is_not_held_against_the_cut() -> None:
    broken = moe(used=9)
    assert refusals(broken.pipe(set_metadata({"general.name": "same experts"}))) == []
    assert len(refusals(broken.pipe(select_experts(4)))) == 1


def test_masked_experts_must_not_be_used() -> None:
    grouped = moe(used=4, **GROUPS)
    assert refusals(grouped.pipe(select_experts(range(6)))) == []  # 3 groups of 2, of which 2 are open: 4 experts
    assert "only 2 groups of 2 are open" in refusals(grouped.pipe(select_experts(range(6)), set_expert_used(5)))[0]


def moved(name: str, change: Callable[[Tensor], Tensor], **lineage: Any) -> Callable[[GGUF], GGUF]:
    """Return a foreign operation that changes one tensor."""

    def operation(view: GGUF) -> GGUF:
        return view.evolve(tensors=[change(t) if t.name == name else t for t in view.all_tensors], **lineage)

    return operation


@pytest.mark.parametrize("name", ["ffn_gate_inp.weight", "exp_probs_b.bias", "ffn_down_exps.weight"])
def test_a_router_that_was_rotated_against_its_experts_is_caught(name: str) -> None:
    rotated = moved(f"blk.1.{name}", lambda t: t[[1, 2, 3, 0]])
    (found,) = refusals(moe().pipe(select_experts([6, 4, 2, 0]), rotated))
    assert f"'blk.1.{name}' has the experts [4, 2, 0, 6], but the cut of its block kept [6, 4, 2, 0]" in found


def test_a_foreign_operation_that_moves_all_of_a_block_and_records_it_is_fine() -> None:
    def reverse(view: GGUF) -> GGUF:
        tensors = [t[::-1] if t.ne[-1:] == (8,) and t.name.startswith("blk.1.") else t for t in view.all_tensors]
        return view.evolve(tensors=tensors, experts={1: range(7, -1, -1)})

    assert refusals(moe().pipe(reverse)) == []


def test_a_selection_bias_that_is_set_to_zero_is_the_users_own_affair() -> None:
    zero = moved("blk.0.exp_probs_b.bias", lambda t: attrs.evolve(t, pieces=[Literal(bytes(t.n_bytes))]))
    assert refusals(moe().pipe(select_experts(4), zero)) == []


def test_a_layer_that_uses_all_it_keeps_is_named_for_what_it_is() -> None:
    assert "nothing is routed any more" in remarks(moe(used=2).pipe(select_experts(2)))[0]
    assert remarks(moe(used=2).pipe(select_experts(3))) == []
    assert remarks(moe(used=8)) == []


@pytest.mark.parametrize(
    ("architecture", "keys", "said"),
    [
        ("olmoe", {}, True),
        ("qwen2moe", {}, True),
        ("qwen3moe", {"expert_gating_func": 0}, False),  # normalised behind top-k
        ("deepseek2", {"expert_gating_func": 1, "expert_weights_norm": False}, True),
        ("deepseek2", {"expert_gating_func": 1, "expert_weights_norm": True}, False),
        ("deepseek2", {"expert_gating_func": 2, "expert_weights_norm": False}, False),
    ],
)
def test_a_softmax_over_fewer_experts_weighs_them_more(architecture: str, keys: dict[str, Any], *, said: bool) -> None:
    found = remarks(moe(architecture, **keys).pipe(select_experts(4)))
    assert any("softmax over all of them: over 4 instead of 8" in text for text in found) is said


def test_groups_that_limit_no_longer_are_said() -> None:
    grouped = moe(**GROUPS)
    by_hand = remove_metadata("deepseek2.expert_group_count", "deepseek2.expert_group_used_count")
    for cut in (
        grouped.pipe(select_experts([0, 1, 2], groups="reset")),
        grouped.pipe(select_experts(range(6)), by_hand),
    ):
        assert "4 groups no longer limit them" in remarks(cut)[0]
    assert remarks(grouped.pipe(select_experts([0, 1, 4, 5]))) == []  # both groups are open: nothing changed
    # One of each group: a token that may use two groups and uses two experts chooses the same ones, but not one that uses 3.
    assert remarks(grouped.pipe(select_experts([0, 2, 4, 6]))) == []
    assert "4 groups no longer limit" in remarks(grouped.pipe(select_experts([0, 2, 4, 6]), set_expert_used(3)))[0]
    # Whatever else is wrong with a cut made by hand, the check says so.
    assert any(
        "no longer limit" in text for text in remarks(grouped.pipe(by_hand, set_metadata({"deepseek2.expert_count": 4})))
    )


def test_llama4_of_128_experts_has_another_attention() -> None:
    big = moe("llama4", experts=128, layers=1)
    assert "unless there are exactly 128 experts: 16 of 128" in refusals(big.pipe(select_experts(16)))[0]
    assert refusals(big.pipe(select_experts(range(127, -1, -1)))) == []
    assert refusals(moe("llama4", experts=130, layers=1).pipe(select_experts(128))) != []
    assert refusals(moe("llama4", experts=16, layers=1).pipe(select_experts(4))) == []


@pytest.mark.parametrize("architecture", ["hunyuan-dense", "hunyuan_vl"])
def test_hunyuan_of_one_expert_would_be_loaded_as_dense(architecture: str) -> None:
    (found,) = refusals(moe(architecture, used=1).pipe(select_experts(1)))
    assert "is loaded as a dense model" in found
    assert refusals(moe(architecture, used=1).pipe(select_experts(2))) == []


def test_a_token_table_has_as_many_experts_as_are_used() -> None:
    table = TensorSpec("blk.0.ffn_gate_tid2eid.weight", (2, 4), 26, data=bytes(32))
    view = moe("deepseek4", extra=(table,), used=2)
    (found,) = refusals(view.pipe(set_expert_used(1)))
    assert "names 2 experts a token, but 1 are used" in found


def test_adjugate_experts_must_be_as_many_as_are_used() -> None:
    specs = tuple(TensorSpec(f"blk.{i}.ffn_up_chexps.weight", (32, 32, 4)) for i in range(2))
    view = moe("grovemoe", extra=specs, used=3, experts_per_group=2)
    assert refusals(view.pipe(select_experts(6))) == []
    (found,) = refusals(view.pipe(select_experts(4)))
    assert "2 adjugate experts (ffn_*_chexps), fewer than the 3 experts used" in found


def test_an_implied_width_must_stay_what_it_was() -> None:
    view = moe("qwen3moe", used=2, ffn=64, expert_ffn=32, expert_feed_forward_length=None)
    assert refusals(view.pipe(set_expert_used(4))) == []
    (found,) = refusals(view.pipe(set_metadata({"qwen3moe.expert_used_count": 4})))
    assert "experts would be 64 / 4 wide, but tensor 'blk.0.ffn_down_exps.weight' has 32" in found


def test_a_fragment_is_not_meant_to_load() -> None:
    assert check(moe().pipe(select_experts(1), drop_tensors("ffn_gate_inp"))) == ()


def test_an_unknown_architecture_is_cut_by_name_with_a_remark() -> None:
    view = moe("somethingnew")
    (said,) = check(view.pipe(select_experts(4)))
    assert not said.refuse
    assert "the architecture 'somethingnew' is not known here" in said.message
    assert check(view.pipe(set_expert_used(1))) == ()


def test_a_chunk_of_absurd_size_costs_nothing() -> None:
    with pytest.raises(UnsupportedCutError, match="are not all of 0 to 2305843009213693951"):
        chunks((0, 1), 1 << 61, "block 0")
