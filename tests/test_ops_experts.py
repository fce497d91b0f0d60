"""Cutting experts: which bytes stay, which keys follow, what is refused."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from _slabs import content, taken
from _views import opened
from ggufslice.arch._experts import expert_axis
from ggufslice.errors import UnsupportedCutError
from ggufslice.ops import select_experts, set_expert_used
from ggufslice.selection import ExpertPlan
from ggufslice.spans import Remap
from ggufslice.testing import TensorSpec, build_gguf, synthetic

if TYPE_CHECKING:
    from ggufslice.view import GGUF

N = 16
# A model whose experts are as many as everything else is wide: size says nothing about which axis is which.
AMBIGUOUS: dict[str, Any] = {
    "layers": 2,
    "experts": N,
    "width": N,
    "ffn": N,
    "expert_ffn": N,
    "shared": 1,
    "router_bias": True,
    "expert_bias": True,
    "selection_bias": True,
    "scales": True,
}
CUT = (
    r"blk\.\d\.(ffn_(gate|up|down|gate_up)_exps\.(weight|bias|scale|input_scale)|ffn_gate_inp\.(weight|bias)|exp_probs_b"
    r"|exp_probs_b\.bias|exp_probs_b_vl\.bias)"
)
ALSO_CUT = [
    TensorSpec("blk.0.ffn_gate_up_exps.weight", (N, 2 * N, N)),
    TensorSpec("blk.0.ffn_up_exps.input_scale", (N,)),
    TensorSpec("blk.0.exp_probs_b", (N,)),
    TensorSpec("blk.0.exp_probs_b_vl.bias", (N,)),
]
NEVER_CUT = [
    TensorSpec("blk.0.ffn_norm_exps.weight", (N,)),
    TensorSpec("blk.0.ffn_gate_inp.scale", (N,)),
    TensorSpec("blk.0.ffn_gate_inp_shexp.weight", (N, N)),
    TensorSpec("blk.0.ffn_latent_down.weight", (N, N)),
    TensorSpec("blk.0.ffn_routed_up.weight", (N, N)),
    TensorSpec("blk.0.ffn_routed_norm.weight", (N,)),
    TensorSpec("blk.0.ffn_res_score.weight", (N,)),
    TensorSpec("blk.0.ffn_up.weight", (N, N)),
    TensorSpec("blk.0.ffn_sub_norm.weight", (N,)),
]


def make(*extra: TensorSpec, **options: Any) -> tuple[GGUF, bytes, dict[str, TensorSpec]]:
    metadata, specs = synthetic(tensors=extra, **options)
    data = build_gguf(metadata, specs)
    return opened(data), data, {str(spec.name): spec for spec in specs}


def moe(**keys: Any) -> GGUF:
    """Return a model of 8 experts with more keys, named without the architecture."""
    metadata = {f"qwen3moe.{key}": value for key, value in keys.items()}
    return make(layers=2, experts=8, metadata=metadata)[0]


def test_every_tensor_of_experts_is_cut_in_the_same_order_and_nothing_else() -> None:
    view, data, specs = make(*ALSO_CUT, *NEVER_CUT, **AMBIGUOUS)
    ids = [5, 15, 0]
    cut = select_experts(ids)(view)
    expected = {
        name: taken(spec.tobytes(), N, ids) if re.fullmatch(CUT, name) else spec.tobytes() for name, spec in specs.items()
    }
    assert {tensor.name: content(tensor, data) for tensor in cut.all_tensors} == expected
    assert sum(len(t.ne) > 0 and t.ne[-1] == 3 for t in cut.all_tensors) == sum(bool(re.fullmatch(CUT, n)) for n in specs)
    assert cut["blk.1.ffn_up_exps.weight"].ne == (N, N, 3)
    assert cut.expert_count == 3
    assert cut.lineage is not None
    assert cut.lineage.experts == {0: (5, 15, 0), 1: (5, 15, 0)}


def test_records_of_other_keys_and_the_order_of_tensors_stay() -> None:
    view, _, _ = make()
    cut = select_experts(3)(view)
    changed = [r.key for old, r in zip(view.metadata.records, cut.metadata.records, strict=True) if old != r]
    assert changed == ["qwen3moe.expert_count"]
    assert cut.metadata.type("qwen3moe.expert_count") == "u32"
    assert list(cut) == list(view)


def test_keeping_all_changes_nothing_but_the_record_of_what_was_done() -> None:
    view, _, _ = make()
    cut = select_experts(range(8))(view)
    assert cut.metadata == view.metadata
    assert cut.all_tensors == view.all_tensors


def test_selections_compose_like_indexing() -> None:
    view, _, _ = make()
    once, twice = select_experts([6, 2])(view), view.pipe(select_experts([7, 6, 2, 0]), select_experts([1, 2]))
    assert twice.all_tensors == once.all_tensors
    assert twice.lineage is not None
    assert once.lineage is not None
    assert twice.lineage.experts == once.lineage.experts == dict.fromkeys(range(4), (6, 2))


def test_each_block_can_keep_its_own_experts_but_as_many() -> None:
    view, data, specs = make(layers=3, dense_lead=1)
    cut = select_experts({2: [0, 7], 1: [3, 1]})(view)
    name = "ffn_down_exps.weight"
    assert content(cut[f"blk.1.{name}"], data) == taken(specs[f"blk.1.{name}"].tobytes(), 8, [3, 1])
    assert content(cut[f"blk.2.{name}"], data) == taken(specs[f"blk.2.{name}"].tobytes(), 8, [0, 7])
    with pytest.raises(UnsupportedCutError, match=r"different numbers of experts \(2 in block 1; 1 in block 2\)"):
        select_experts({1: [0, 1], 2: [0]})(view)
    with pytest.raises(UnsupportedCutError, match=r"nothing of the experts of block 2; name all of 1-2"):
        select_experts({1: [0, 1]})(view)
    with pytest.raises(UnsupportedCutError, match=r"block 0 has no routed experts .* those with experts are 1-2"):
        select_experts({0: [0], 1: [0], 2: [0]})(view)
    with pytest.raises(UnsupportedCutError, match=r"block 2 has experts 0 to 7: there is no expert 8"):
        select_experts({1: [0], 2: [8]})(view)


def test_mtp_blocks_are_cut_too() -> None:
    view, _, _ = make(layers=2, mtp=1)
    assert select_experts([1, 0])(view)["blk.2.ffn_gate_inp.weight"].ne == (32, 2)
    with pytest.raises(UnsupportedCutError, match=r"block 2 \(MTP blocks are cut too"):
        select_experts({0: [0], 1: [0]})(view)


def test_a_model_cut_to_one_expert_may_have_lost_its_axis() -> None:
    metadata, specs = synthetic(layers=1, experts=1, used=1, expert_bias=True)
    squeezed = [TensorSpec(s.name, s.ne[:-1], s.type) if s.ne[-1:] == (1,) and len(s.ne) > 1 else s for s in specs]
    view = opened(build_gguf(metadata, squeezed))
    assert view["blk.0.ffn_up_exps.weight"].ne == (32, 32)
    assert view["blk.0.ffn_gate_inp.weight"].ne == (32,)
    assert set(expert_axis(view).values()) == {1}
    assert select_experts([0])(view).all_tensors == view.all_tensors
    with pytest.raises(UnsupportedCutError, match="there is no expert 1"):
        select_experts([1])(view)


def test_a_tensor_that_no_rule_names_is_an_error_that_lists_it() -> None:
    view, _, _ = make(TensorSpec("blk.0.ffn_expert_temperature.weight", (8,)), TensorSpec("blk.1.exp_skew", (32, 8)))
    with pytest.raises(UnsupportedCutError, match=r"'blk.0.ffn_expert_temperature.weight' of ne \(8,\).*'blk.1.exp_skew'"):
        select_experts(2)(view)


def test_a_dense_model_has_nothing_to_choose() -> None:
    view, _, _ = make(experts=0)
    declared = make(experts=0, metadata={"qwen3moe.expert_count": 8})[0]
    for model in (view, declared):
        with pytest.raises(UnsupportedCutError, match=r"model\.gguf \(qwen3moe\) has no routed experts"):
            select_experts(2)(model)
        with pytest.raises(UnsupportedCutError, match="no routed experts"):
            set_expert_used(2)(model)


def test_old_files_with_a_tensor_for_each_expert_are_refused() -> None:
    view, _, _ = make(TensorSpec("blk.0.ffn_gate.3.weight", (32, 32)))
    with pytest.raises(UnsupportedCutError, match=r"'blk.0.ffn_gate.3.weight' is one expert's own"):
        select_experts(2)(view)


def test_counts_that_disagree_are_refused() -> None:
    view, _, _ = make(TensorSpec("blk.1.exp_probs_b.bias", (9,)))
    with pytest.raises(UnsupportedCutError, match=r"'blk.1.exp_probs_b.bias' has 9 entries .* qwen3moe.expert_count = 8"):
        select_experts(2)(view)


def chunked(per_chunk: int = 2, n: int = 6) -> tuple[GGUF, bytes, TensorSpec]:
    spec = TensorSpec("blk.0.ffn_up_chexps.weight", (32, 32, n // per_chunk))
    metadata = {"grovemoe.experts_per_group": per_chunk}
    view, data, _ = make(spec, architecture="grovemoe", layers=1, experts=n, metadata=metadata)
    return view, data, spec


def test_adjugate_experts_are_cut_by_chunk() -> None:
    view, data, spec = chunked()
    cut = select_experts([4, 5, 0, 1])(view)
    assert cut[str(spec.name)].ne == (32, 32, 2)
    assert content(cut[str(spec.name)], data) == taken(spec.tobytes(), 3, [2, 0])
    assert cut.hparam("experts_per_group") == 2
    for torn in ([0, 2], [0, 1, 2], [1, 2]):
        with pytest.raises(UnsupportedCutError, match="keep whole chunks of 2"):
            select_experts(torn)(view)


def hashed() -> tuple[GGUF, bytes, np.ndarray[Any, Any]]:
    table = np.array([[0, 1], [3, 2], [1, 3], [2, 0]], "<i4")  # experts of each of four tokens
    spec = TensorSpec("blk.0.ffn_gate_tid2eid.weight", (2, 4), 26, data=table.tobytes())
    view, data, _ = make(spec, architecture="deepseek4", layers=2, experts=4, used=2)
    return view, data, table


def test_a_table_of_expert_ids_follows_a_new_order() -> None:
    view, data, table = hashed()
    order = [2, 0, 3, 1]
    cut = select_experts(order)(view)
    renumbered = np.frombuffer(content(cut["blk.0.ffn_gate_tid2eid.weight"], data), "<i4").reshape(4, 2)
    assert np.array(order)[renumbered].tolist() == table.tolist()  # the new ids name the same experts
    assert (renumbered != table).any()
    again = select_experts([3, 1, 0, 2])(cut)
    both = np.frombuffer(content(again["blk.0.ffn_gate_tid2eid.weight"], data), "<i4").reshape(4, 2)
    assert np.array(order)[[3, 1, 0, 2]][both].tolist() == table.tolist()
    (piece,) = again["blk.0.ffn_gate_tid2eid.weight"].pieces
    assert isinstance(piece, Remap)


def test_layers_that_route_by_token_keep_all_experts() -> None:
    view, _, _ = hashed()
    with pytest.raises(UnsupportedCutError, match=r"'blk.0.ffn_gate_tid2eid.weight'.*can only keep all 4 experts"):
        select_experts([0, 1, 2])(view)


GROUPS = {"expert_group_count": 4, "expert_group_used_count": 2}  # of 8 experts: 0-1, 2-3, 4-5, 6-7


@pytest.mark.parametrize(
    ("keep", "groups"),
    [
        (range(8), (4, 2)),
        ([2, 3, 0, 1, 6, 7, 4, 5], (4, 2)),  # groups in another order
        ([1, 0, 3, 2, 5, 4, 7, 6], (4, 2)),  # experts of a group in another order
        ([0, 1, 4, 5, 6, 7], (3, 2)),  # a whole group dropped
        ([0, 1, 4, 5], None),  # as many groups as a token uses: no limit is left
        ([6, 7], None),
        ([0, 2, 4, 6], None),  # one of each group: the limit would choose what top-k chooses
        ([3], None),
    ],
)
def test_groups_that_are_left(keep: list[int], groups: tuple[int, int] | None) -> None:
    cut = select_experts(keep)(moe(**GROUPS))
    found = (cut.hparam("expert_group_count"), cut.hparam("expert_group_used_count"))
    assert found == (groups or (None, None))
    assert cut.lineage is not None
    assert cut.lineage.notes == ()


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ([0, 1, 2], "2 of group 0, 1 of group 1"),
        ([0, 2, 1, 3], "1 of group 0, 1 of group 1, 1 of group 0, 1 of group 1"),
        ({0: [0, 1, 2, 3], 1: [0, 2, 4, 6]}, r"different numbers of groups \(2 in block 0; 4 in block 1\)"),
    ],
)
def test_groups_that_are_torn_apart_are_refused_unless_they_are_reset(keep: Any, said: str) -> None:
    view = moe(**GROUPS)
    with pytest.raises(UnsupportedCutError, match=said + ".*groups='reset'"):
        select_experts(keep)(view)
    cut = select_experts(keep, groups="reset")(view)
    assert "qwen3moe.expert_group_count" not in cut.metadata
    assert "qwen3moe.expert_group_used_count" not in cut.metadata
    assert cut.lineage is not None
    assert "groups were reset" in cut.lineage.notes[0]


@pytest.mark.parametrize(("keep", "stays"), [(2, True), (1, False)])
def test_one_group_is_no_limit_but_needs_more_experts_than_groups(keep: int, *, stays: bool) -> None:
    view = moe(expert_group_count=1, expert_group_used_count=1)
    assert ("qwen3moe.expert_group_count" in select_experts(keep)(view).metadata) is stays


PLAN = ExpertPlan({0: [1, 2], 3: [0, 7]}, source="a study")


@pytest.mark.parametrize(
    "keep", [ExpertPlan.random(4, seed=7), 16, (5, 0, 3), {1: (3, 1), 2: (0, 2)}, PLAN, ExpertPlan.first(2)]
)
@pytest.mark.parametrize("groups", ["keep", "reset"])
def test_an_operation_reads_back_from_its_json(keep: Any, groups: str) -> None:
    op = select_experts(keep, groups=groups)
    said = json.loads(json.dumps(op.describe()))
    assert said.pop("op") == "select_experts"
    assert select_experts(**said) == op


@pytest.mark.parametrize(
    ("keep", "error", "message"),
    [
        (0, ValueError, "at least 1, got 0"),
        (-3, ValueError, "at least 1, got -3"),
        (True, TypeError, "expected a whole number, got True"),
        (1.5, TypeError, "expected a whole number, got 1.5"),
        ("16", TypeError, "expected a list of expert ids, got '16'"),
        ([], ValueError, "keep at least one"),
        ([0, 3, 0], ValueError, "expert 0 is there twice"),
        ([0, -1], ValueError, "count from 0, got -1"),
        ([0, 1.0], TypeError, "expected a whole number, got 1.0"),
        ({0: [1, 1]}, ValueError, "block 0: expert 1 is there twice"),
        ({0: 4}, TypeError, "block 0: expected a list of expert ids, got 4"),
        (None, TypeError, "expected a whole number, got None"),
        ({0, 1}, TypeError, "has no order"),
    ],
)
def test_arguments_are_checked_at_once(keep: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        select_experts(keep)


def test_numpy_numbers_are_numbers() -> None:
    assert select_experts(np.array([3, 1])) == select_experts([3, 1])
    assert select_experts(np.int64(4)) == select_experts(4)
    assert isinstance(select_experts(np.int64(4)).keep, int)


def test_the_used_count_is_set_and_the_implied_width_written_out() -> None:
    absent = make(experts=8, used=2, ffn=64, expert_ffn=32, metadata={"qwen3moe.expert_feed_forward_length": None})[0]
    zero = make(experts=8, used=2, ffn=64, expert_ffn=32, metadata={"qwen3moe.expert_feed_forward_length": 0})[0]
    for view in (absent, zero):
        cut = set_expert_used(4)(view)
        assert cut.expert_used_count == 4
        assert cut.hparam("expert_feed_forward_length") == 32
        assert cut.metadata.type("qwen3moe.expert_feed_forward_length") == "u32"
    stated = make(experts=8, used=2)[0]
    after = set_expert_used(3)(stated).metadata.records
    keys = [new.key for old, new in zip(stated.metadata.records, after, strict=True) if old != new]
    assert keys == ["qwen3moe.expert_used_count"]


def test_a_width_that_nothing_implies_is_not_written() -> None:
    metadata = {"llama.expert_feed_forward_length": None}
    view, _, _ = make(architecture="llama", metadata=metadata)
    assert "llama.expert_feed_forward_length" not in set_expert_used(1)(view).metadata


@pytest.mark.parametrize(
    ("n", "error", "message"),
    [
        (0, ValueError, "at least 1"),
        (True, TypeError, "whole number"),
        ("2", TypeError, "whole number"),
        ([2, -1], ValueError, "at least 1, got -1"),
    ],
)
def test_a_used_count_is_checked_at_once(n: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        set_expert_used(n)


def test_only_nemotron_takes_a_used_count_for_each_layer() -> None:
    hybrid = make(architecture="nemotron_h_moe", layers=3)[0]
    cut = set_expert_used([2, 0, 1])(hybrid)
    assert cut.expert_used_count == [2, 0, 1]
    assert cut.metadata.type("nemotron_h_moe.expert_used_count") == "arr[u32]"
    assert set_expert_used(2)(cut).expert_used_count == 2
    assert set_expert_used(2)(cut).metadata.type("nemotron_h_moe.expert_used_count") == "u32"
    with pytest.raises(UnsupportedCutError, match="2 used counts for 3 blocks"):
        set_expert_used([2, 1])(hybrid)
    with pytest.raises(UnsupportedCutError, match="qwen3moe takes one expert_used_count for all layers"):
        set_expert_used([2, 1, 1, 1])(make()[0])


def test_models_that_contradict_themselves_are_errors() -> None:
    fewer = make(layers=3, metadata={"qwen3moe.block_count": 2})[0]
    with pytest.raises(
        UnsupportedCutError, match=r"block 2 has experts, but qwen3moe.block_count says that there are 2 blocks"
    ):
        select_experts(2)(fewer)
    with pytest.raises(UnsupportedCutError, match="8 experts can't be in 3 groups of equal size"):
        select_experts(2)(moe(expert_group_count=3, expert_group_used_count=1))
    assert select_experts(2, groups="reset")(moe(expert_group_count=3, expert_group_used_count=1)).expert_count == 2
