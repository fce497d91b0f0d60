"""`keep_layers` and `drop_layers`: what they take, how they number, what a cut leaves in the view."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import ggufslice as gs
from _views import opened
from ggufslice import ops
from ggufslice.arch import check
from ggufslice.testing import TensorSpec, build_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ggufslice.view import GGUF


def model(**options: Any) -> GGUF:
    return opened(build_gguf(*synthetic(**{"layers": 6, "experts": 4, **options})))


def layer_bytes(view: GGUF, block: int) -> dict[str, Any]:
    """Return where the bytes of a block's tensors are, by the names behind the number."""
    prefix = f"blk.{block}."
    return {name.removeprefix(prefix): tensor.pieces for name, tensor in view.items() if name.startswith(prefix)}


@pytest.mark.parametrize(
    ("op", "kept"),
    [
        (ops.keep_layers(3), [0, 1, 2]),
        (ops.keep_layers(6), [0, 1, 2, 3, 4, 5]),
        (ops.keep_layers([0, 2, 5]), [0, 2, 5]),
        (ops.keep_layers(range(2, 4)), [2, 3]),
        (ops.keep_layers([0, -2, -1]), [0, 4, 5]),
        (ops.keep_layers({5, 0}), [0, 5]),
        (ops.keep_layers(iter([1, 4])), [1, 4]),
        (ops.keep_layers(lambda view: range(0, view.block_count, 2)), [0, 2, 4]),
        (ops.keep_layers(gs.ends(2, 1)), [0, 1, 5]),
        (ops.keep_layers({"ends": [1, 2]}), [0, 4, 5]),
        (ops.keep_layers(gs.evenly(3)), [0, 2, 5]),
        (ops.drop_layers([0]), [1, 2, 3, 4, 5]),
        (ops.drop_layers(range(1, 5)), [0, 5]),
        (ops.drop_layers([-1, 2]), [0, 1, 3, 4]),
        (ops.drop_layers([]), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_which_layers_stay(op: Callable[[GGUF], GGUF], kept: list[int]) -> None:
    view = model()
    cut = op(view)
    assert list(cut.blocks) == kept
    assert cut.block_count == len(kept)
    for number, origin in enumerate(kept):
        assert layer_bytes(cut, number) == layer_bytes(view, origin) != {}
    assert layer_bytes(cut, len(kept)) == {}


def test_numbers_are_those_of_the_view() -> None:
    cut = model().pipe(ops.keep_layers([0, 2, 5]), ops.drop_layers([1]), ops.keep_layers([-1]))
    assert cut.blocks == (5,)
    assert layer_bytes(cut, 0) == layer_bytes(cut.base, 5)


def test_tensors_of_no_layer_stay_where_they_are() -> None:
    view = model()
    cut = ops.keep_layers([1, 3])(view)
    assert [name for name in cut if not name.startswith("blk.")] == [
        "token_embd.weight",
        "output_norm.weight",
        "output.weight",
    ]
    assert next(iter(cut)) == "token_embd.weight"
    assert list(cut)[-1] == "output.weight"


def test_keys_that_a_cut_does_not_touch_keep_their_bytes_and_place() -> None:
    view = model()
    cut = ops.keep_layers([0, 2])(view)
    assert list(cut.metadata) == list(view.metadata)
    changed = [key for key in view.metadata if cut.metadata.raw(key) != view.metadata.raw(key)]
    assert changed == ["qwen3moe.block_count"]


def test_keeping_all_layers_changes_nothing() -> None:
    view = model(dense_lead=1, mtp=1)
    cut = ops.keep_layers(6, mtp=True)(view)
    assert cut.metadata == view.metadata
    assert cut.all_tensors == view.all_tensors


@pytest.mark.parametrize("layers", [12, 0, -1])
def test_a_number_to_drop_is_ambiguous(layers: int) -> None:
    with pytest.raises(TypeError, match=rf"drop_layers\(\[{layers}\]\)"):
        ops.drop_layers(layers)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ops.keep_layers([]), ValueError, "at least 1 layer"),
        (lambda: ops.keep_layers(0), ValueError, "at least 1 layer"),
        (lambda: ops.keep_layers(-2), ValueError, "at least 1 layer"),
        (lambda: ops.keep_layers([1, 1]), ValueError, "layer 1 is named twice"),
        (lambda: ops.drop_layers([3, 2, 3]), ValueError, "layer 3 is named twice"),
        (lambda: ops.keep_layers("0-3"), TypeError, "numbers"),
        (lambda: ops.drop_layers("3"), TypeError, "list"),
        (lambda: ops.keep_layers([True]), TypeError, "bool"),
        (lambda: ops.keep_layers(True), TypeError, "bool"),
        (lambda: ops.keep_layers([1.0]), TypeError, "float"),
        (lambda: ops.keep_layers(1.5), TypeError, "float"),
        (lambda: ops.keep_layers([0], mtp="yes"), TypeError, "bool"),  # type: ignore[arg-type]  # what is refused
        (lambda: ops.keep_layers({"middle": 3}), ValueError, "'ends'"),
        (lambda: gs.ends(0, 0), ValueError, "at least 1 layer"),
        (lambda: gs.ends(-1, 2), ValueError, "-1"),
        (lambda: gs.evenly(0), ValueError, "at least 1 layer"),
        (lambda: gs.evenly(True), TypeError, "bool"),
    ],
)
def test_arguments_are_checked_at_once(make: Callable[[], object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (ops.keep_layers(7), "first 7 layers: the model has 6"),
        (ops.keep_layers([0, 6]), "no layer 6: the model has layers 0 to 5"),
        (ops.keep_layers([-7]), "no layer -7"),
        (ops.drop_layers([9]), "no layer 9"),
        (ops.keep_layers([2, 0]), "ascending order"),
        (ops.keep_layers([4, -3]), "ascending order"),
        (ops.keep_layers([5, -1]), "ascending order"),
        (ops.drop_layers(range(6)), "no layer of the trunk"),
        (ops.keep_layers(gs.ends(4, 3)), "4 first and 3 last layers: the model has 6"),
        (ops.keep_layers(gs.evenly(7)), "7 layers: the model has 6"),
    ],
)
def test_layers_that_are_not_there_or_out_of_order(op: Callable[[GGUF], GGUF], says: str) -> None:
    with pytest.raises(gs.UnsupportedCutError, match=says):
        op(model())


class TestMTP:
    """Blocks for multi-token prediction: at the tail, counted apart, kept only on request or left alone."""

    @pytest.mark.parametrize(
        ("op", "kept", "left"),
        [
            (ops.keep_layers(2), [0, 1], 0),
            (ops.keep_layers([0, -1]), [0, 5], 0),
            (ops.keep_layers(2, mtp=True), [0, 1, 6, 7], 2),
            (ops.keep_layers(2, mtp=False), [0, 1], 0),
            (ops.keep_layers([1, 6]), [1, 6], 1),
            (ops.drop_layers([2]), [0, 1, 3, 4, 5, 6, 7], 2),
            (ops.drop_layers([2], mtp=True), [0, 1, 3, 4, 5, 6, 7], 2),
            (ops.drop_layers([2], mtp=False), [0, 1, 3, 4, 5], 0),
            (ops.drop_layers([], mtp=False), [0, 1, 2, 3, 4, 5], 0),
            (ops.drop_layers([7]), [0, 1, 2, 3, 4, 5, 6], 1),
            (ops.drop_layers([-1]), [0, 1, 2, 3, 4, 6, 7], 2),
        ],
    )
    def test_kept_on_request(self, op: Callable[[GGUF], GGUF], kept: Sequence[int], left: int) -> None:
        cut = op(model(architecture="glm4moe", mtp=2))
        assert list(cut.blocks) == kept
        assert cut.block_count == len(kept)
        assert cut.nextn_count == left
        assert any("nextn" in name for name in cut) == bool(left)

    @pytest.mark.parametrize(
        ("op", "says"),
        [(ops.keep_layers([0, 7], mtp=False), "mtp=False"), (ops.drop_layers([7], mtp=True), "mtp=True")],
    )
    def test_a_contradiction(self, op: Callable[[GGUF], GGUF], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            op(model(architecture="glm4moe", mtp=2))

    def test_a_second_head_does_not_become_the_first(self) -> None:
        findings = check(ops.keep_layers([0, 1, 7])(model(architecture="glm4moe", mtp=2)))
        assert any("MTP head 1" in finding.message for finding in findings if finding.refuse)


def test_a_tensor_of_no_layer_of_the_model_is_not_lost() -> None:
    view = model(tensors=[TensorSpec("blk.6.attn_norm.weight", (32,), 0)])
    with pytest.raises(gs.UnsupportedCutError, match=r"'blk\.6\.attn_norm\.weight' belongs to layer 6, but .* 6"):
        ops.keep_layers(2)(view)


def test_a_model_without_a_count_of_its_layers() -> None:
    with pytest.raises(gs.UnsupportedCutError, match="block_count"):
        ops.keep_layers(2)(model(metadata={"qwen3moe.block_count": None}))


def test_operations_are_values() -> None:
    assert ops.keep_layers([0, 1]) == ops.keep_layers(range(2)) != ops.keep_layers(2)
    assert pickle.loads(pickle.dumps(ops.keep_layers(gs.ends(1, 2)))) == ops.keep_layers(gs.ends(1, 2))  # noqa: S301 - our own bytes
    assert repr(ops.drop_layers([1], mtp=False)) == "drop_layers(layers=(1,), mtp=False)"


@pytest.mark.parametrize(
    ("op", "described"),
    [
        (ops.keep_layers(4), {"op": "keep_layers", "layers": 4}),
        (ops.keep_layers([0, -1], mtp=True), {"op": "keep_layers", "layers": [0, -1], "mtp": True}),
        (ops.drop_layers(range(2)), {"op": "drop_layers", "layers": [0, 1]}),
        (ops.keep_layers(gs.ends(2, 3)), {"op": "keep_layers", "layers": {"ends": [2, 3]}}),
        (ops.keep_layers(gs.evenly(3)), {"op": "keep_layers", "layers": {"evenly": 3}}),
    ],
)
def test_operations_are_recorded_and_made_again(op: ops.Op, described: dict[str, Any]) -> None:
    assert op.describe() == described
    lineage = op(model()).lineage
    assert lineage is not None
    assert [json.loads(text) for text in lineage.ops] == [described]
    arguments = {key: value for key, value in described.items() if key != "op"}
    assert getattr(ops, described["op"])(**arguments) == op


def test_a_chooser_of_somebody_elses_is_named() -> None:
    def last(view: GGUF) -> list[int]:
        return [view.block_count - 1]

    described = ops.keep_layers(last).describe()
    assert described["layers"].startswith("custom:")
    assert described["layers"].endswith("last")


def test_evenly_takes_whole_periods() -> None:
    """smollm3 leaves rope out of layers 3, 7, 11 and 15, and would out of the new layers 3 and 7."""
    view = opened(build_gguf(*synthetic("smollm3", layers=16, experts=0)))
    assert gs.evenly(8)(view) == (0, 1, 2, 3, 12, 13, 14, 15)
    assert gs.evenly(4)(view) == (0, 5, 10, 15)
    assert gs.evenly(3)(view) == (0, 1, 2)
    assert gs.evenly(16)(view) == tuple(range(16))
