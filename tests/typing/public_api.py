"""What a type checker infers of the public API: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, assert_type

import numpy as np

import ggufslice as gs


def opening(token: str | None) -> None:
    assert_type(gs.open("model.gguf"), gs.RemoteGGUF)
    assert_type(
        gs.open(Path("model.gguf"), revision="main", token=token, options=gs.TransferOptions(max_gap=0)), gs.RemoteGGUF
    )
    with gs.open("model.gguf") as model:
        assert_type(model, gs.RemoteGGUF)


def reading(model: gs.GGUF) -> None:
    assert_type(model.architecture, str)
    assert_type(model.block_count, int)
    assert_type(model.expert_used_count, int | list[int])
    assert_type(model.n_params, int)
    assert_type(model.tensors, Mapping[str, gs.Tensor])
    assert_type(model.metadata, gs.Metadata)
    assert_type(model.metadata["general.name"], Any)
    assert_type(model.metadata.raw("general.name"), bytes)
    assert_type(model.metadata.type("general.name"), str)
    assert_type(model.get("output.weight"), gs.Tensor | None)
    assert_type(model["output.weight"], gs.Tensor)
    assert_type(model["output.weight"][0], gs.Tensor)
    assert_type(model["output.weight"][:4], gs.Tensor)
    assert_type(model["output.weight"][[0, 2]], gs.Tensor)
    assert_type(model["output.weight"].ne, tuple[int, ...])
    assert_type(model["output.weight"].shape, tuple[int, ...])
    assert_type(model["output.weight"].numpy(), np.ndarray[Any, Any])
    assert_type(model["output.weight"].read(), bytes)


def cutting(model: gs.GGUF, plan: gs.ExpertPlan) -> None:
    def custom(view: gs.GGUF) -> gs.GGUF:
        return view

    operations: list[Callable[[gs.GGUF], gs.GGUF]] = [
        gs.select_experts(16),
        gs.select_experts([0, 3]),
        gs.select_experts({0: [0, 3]}),
        gs.select_experts(plan, groups="reset"),
        gs.set_expert_used(2),
        gs.keep_layers(12),
        gs.keep_layers(range(12), mtp=True),
        gs.drop_layers([3, 4]),
        gs.set_metadata({"general.name": "x"}, types={"general.name": "str"}),
        gs.remove_metadata("general.url", "general.license"),
        gs.keep_tensors("^blk"),
        gs.drop_tensors("^blk"),
        gs.rename_tensors({"a": "b"}),
        gs.graft(model, "^output"),
        custom,
    ]
    cut = model.pipe(*operations, lambda view: view)
    assert_type(cut, gs.GGUF)
    assert_type(cut.plan(), gs.Plan)
    assert_type(cut.plan(max_shard_size=1, force=True).fetch_bytes, int)
    assert_type(cut.write("out.gguf", jobs=8), gs.Receipt)


def accounting(receipt: gs.Receipt) -> None:
    assert_type(receipt.declared, float | None)
    assert_type(receipt.real, float | None)
    assert_type(receipt.transfer, gs.Transfer | None)
    assert_type(gs.Receipt.of("model.gguf", against="source.gguf", parameters=10), gs.Receipt)
    assert_type(receipt.markdown(), str)


def choosing() -> None:
    assert_type(gs.ExpertPlan.first(4), gs.ExpertPlan)
    assert_type(gs.ExpertPlan.random(4, seed=1), gs.ExpertPlan)
    assert_type(gs.ExpertPlan.from_imatrix("imatrix.gguf", 4), gs.ExpertPlan)
    assert_type(gs.ExpertPlan.from_json(Path("plan.json")), gs.ExpertPlan)
    assert_type(gs.ExpertPlan.first(4).for_layers([0, 2]), gs.ExpertPlan)


def failing(error: gs.SourceChangedError) -> None:
    source: gs.SourceError = error
    root: gs.GGUFSliceError = source
    builtin: OSError = error
    del root, builtin


gs.open()  # type: ignore[call-arg]
gs.remove_metadata(1)  # type: ignore[arg-type]
