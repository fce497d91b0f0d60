"""The laws that every cut obeys, on drawn files and drawn sequences of operations."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import ggufslice as gs
from _slabs import content, taken
from _views import opened
from ggufslice.arch import expert_axis
from ggufslice.header import HeaderParser
from ggufslice.selection import ExpertPlan
from ggufslice.spans import Span
from ggufslice.testing import RangeServer, Typed, build_gguf
from ggufslice.testing.strategies import DrawnFile, DrawnShards, expert_models, files, shard_sets

FEW = settings(max_examples=25)


def written(view: gs.GGUF, **options: Any) -> tuple[bytes, gs.Receipt]:
    with tempfile.TemporaryDirectory() as folder:
        receipt = view.write(Path(folder) / "out.gguf", **options)
        return (Path(folder) / "out.gguf").read_bytes(), receipt


def on_disk(shards: DrawnShards, folder: str) -> Path:
    """Write shards and return the first."""
    for name, data in shards.named().items():
        assert isinstance(data, bytes)
        (Path(folder) / name).write_bytes(data)
    return Path(folder) / next(iter(shards.named()))


# Identity ---


@FEW
@given(files(canonical=True))
def test_a_canonical_file_is_copied_byte_for_byte(file: DrawnFile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.gguf"
        path.write_bytes(file.data)
        assert written(gs.open(path))[0] == file.data


@FEW
@given(files(canonical=False))
def test_any_other_file_becomes_the_canonical_one_with_the_same_content(file: DrawnFile) -> None:
    canonical = build_gguf(file.metadata, file.tensors, version=file.version, byteorder=file.byteorder)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.gguf"
        path.write_bytes(file.data + b"rubbish behind it")
        assert written(gs.open(path))[0] == canonical


@FEW
@given(shard_sets())
def test_shards_become_the_canonical_file_that_they_were_made_from(shards: DrawnShards) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert written(gs.open(on_disk(shards, folder)))[0] == build_gguf(shards.metadata, shards.tensors)


# Raw records ---


@FEW
@given(files(), st.data())
def test_a_record_that_no_operation_names_leaves_as_it_came_and_where_it_was(file: DrawnFile, data: st.DataObject) -> None:
    view = opened(file.data)
    keys = sorted(set(view.metadata) - {"general.alignment"})
    removed = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    changed = data.draw(st.sets(st.sampled_from(keys))) - removed if keys else set()
    ops: list[Any] = [gs.remove_metadata(*removed)] if removed else []
    ops += [gs.set_metadata(dict.fromkeys(changed, "new"), types=dict.fromkeys(changed, "str"))]
    after = view.pipe(*ops).metadata
    assert list(after) == [key for key in view.metadata if key not in removed]
    for key in after:
        assert (after.raw(key) == view.metadata.raw(key)) or key in changed
        assert key not in changed or after[key] == "new"


# Verbatim, and accounting ---


@FEW
@given(expert_models(), st.data())
def test_every_byte_written_is_a_byte_of_the_source_and_every_byte_is_accounted_for(
    shards: DrawnShards, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = gs.open(on_disk(shards, folder))
        cut = model.pipe(
            gs.select_experts(data.draw(st.permutations(range(model.expert_count)))[: model.expert_count // 2 + 1])
        )
        plan = cut.plan(force=True)
        file, receipt = written(cut, force=True)
        expected = {}
        for tensor in cut.all_tensors:
            parts = []
            for piece in tensor.pieces:
                assert isinstance(piece, Span)
                parts.append(Path(piece.source.url).read_bytes()[piece.start : piece.stop])
            expected[tensor.name] = b"".join(parts)
        out = Path(folder) / "again.gguf"
        out.write_bytes(file)
        assert {t.name: t.data.tobytes() for t in GGUFReader(out).tensors} == expected
    assert plan.metadata_bytes + plan.padding_bytes + plan.tensor_bytes == plan.file_bytes == len(file)
    assert plan.tensor_bytes == sum(map(len, expected.values()))
    parser = HeaderParser("out", size=len(file))
    parser.feed(file)
    assert parser.header.n_bytes == plan.metadata_bytes
    moved = receipt.transfer
    assert moved is not None
    assert moved.payload + moved.gap + moved.header + moved.wasted == moved.received
    assert moved.payload == plan.tensor_bytes


@settings(max_examples=8)
@given(expert_models(), st.data())
def test_over_http_the_server_sent_what_the_receipt_says(shards: DrawnShards, data: st.DataObject) -> None:
    named = shards.named()
    with RangeServer(named) as server:
        model = gs.open(server.url(next(iter(named))))
        cut = model.pipe(gs.select_experts(data.draw(st.integers(1, model.expert_count))))
        _, receipt = written(cut, force=True)
        sent = server.bytes_sent
    moved = receipt.transfer
    assert moved is not None
    assert moved.payload + moved.gap + moved.header + moved.wasted == moved.received
    assert moved.received <= sent


# Algebra ---


@FEW
@given(expert_models(max_shards=1), st.data())
def test_operations_on_different_things_commute(shards: DrawnShards, data: st.DataObject) -> None:
    view = opened(*shards.shards)
    trunk = view.block_count - view.nextn_count
    moe = sorted({int(name.split(".")[1]) for name in expert_axis(view)})
    n = data.draw(st.integers(1, view.expert_count))
    ids = {b: data.draw(st.permutations(range(view.expert_count)))[:n] for b in moe}
    kept = [i for i in range(trunk) if data.draw(st.booleans())] or [trunk - 1]
    if not set(kept) & set(moe):
        kept = sorted({*kept, next(b for b in reversed(moe) if b < trunk)})
    plan = ExpertPlan(ids)
    used, named = gs.set_expert_used(1), gs.set_metadata({"general.name": "cut"})
    one = view.pipe(gs.select_experts(plan), used, gs.keep_layers(kept), named)
    other = view.pipe(named, gs.keep_layers(kept), gs.select_experts(plan.for_layers(kept)), used)
    assert one.all_tensors == other.all_tensors
    assert one.metadata == other.metadata
    assert one.blocks == other.blocks


class AnySequence(RuleBasedStateMachine):
    """Any sequence of operations, beside the same done with numpy on whole tensors."""

    EXPERTS: ClassVar[tuple[str, ...]] = ("_exps.", "ffn_gate_inp.", "exp_probs_b")

    @initialize(shards=expert_models())
    def open(self, shards: DrawnShards) -> None:
        self.files = shards.shards
        self.view = opened(*shards.shards)
        self.trunk = self.view.block_count - self.view.nextn_count
        self.mtp = self.view.nextn_count
        self.experts = self.view.expert_count
        self.used = self.view.expert_used_count
        self.whole = {str(t.name): (t.ne, t.tobytes()) for t in shards.tensors}
        self.keys = {key: self.view.metadata.raw(key) for key in self.view.metadata}

    def moe(self) -> list[int]:
        return sorted({int(name.split(".")[1]) for name in self.whole if "_exps." in name})

    def is_cut(self, name: str) -> bool:
        return any(part in name for part in self.EXPERTS)

    @precondition(lambda self: self.moe())
    @rule(data=st.data())
    def select_experts(self, data: st.DataObject) -> None:
        blocks = self.moe()
        n = data.draw(st.integers(1, self.experts))
        ids = {b: data.draw(st.permutations(range(self.experts)), label=f"experts of {b}")[:n] for b in blocks}
        if data.draw(st.booleans(), label="the same everywhere"):
            ids = dict.fromkeys(blocks, ids[blocks[0]])
            self.view = gs.select_experts(ids[blocks[0]])(self.view)
        else:
            self.view = gs.select_experts(ids)(self.view)
        for name, (ne, stored) in self.whole.items():
            if self.is_cut(name):
                chosen = ids[int(name.split(".")[1])]
                self.whole[name] = ((*ne[:-1], n), taken(stored, self.experts, chosen))
        self.experts = n

    @precondition(lambda self: self.moe())
    @rule(n=st.integers(1, 9))
    def set_expert_used(self, n: int) -> None:
        self.view = gs.set_expert_used(n)(self.view)
        self.used = n

    @rule(data=st.data())
    def drop_layers(self, data: st.DataObject) -> None:
        gone = data.draw(st.sets(st.integers(0, self.trunk - 1), max_size=self.trunk - 1))
        by_keeping = data.draw(st.booleans(), label="by keeping")
        kept = [i for i in range(self.trunk) if i not in gone]
        if by_keeping:
            self.view = gs.keep_layers(kept)(self.view)
            self.mtp = 0
        else:
            self.view = gs.drop_layers(sorted(gone))(self.view)
            kept += range(self.trunk, self.trunk + self.mtp)
        self.trunk -= len(gone)
        whole = {}
        for name, tensor in self.whole.items():
            if name.startswith("blk."):
                _, block, rest = name.split(".", 2)
                if int(block) in kept:
                    whole[f"blk.{kept.index(int(block))}.{rest}"] = tensor
            else:
                whole[name] = tensor
        self.whole = whole

    @rule(name=st.sampled_from(["general.name", "x.new"]), value=st.text(max_size=8))
    def set_metadata(self, name: str, value: str) -> None:
        self.view = gs.set_metadata({name: value})(self.view)
        self.keys[name] = build_gguf({name: Typed(value, "str")})[24:][: len(self.view.metadata.raw(name))]

    @precondition(lambda self: "x.new" in self.keys)
    @rule()
    def remove_metadata(self) -> None:
        self.view = gs.remove_metadata("x.new")(self.view)
        del self.keys["x.new"]

    @precondition(lambda self: any("_norm" in name for name in self.whole))
    @rule(data=st.data())
    def drop_tensors(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name in self.whole if "_norm" in name)))
        self.view = gs.drop_tensors(f"^{name}$".replace(".", r"\."))(self.view)
        del self.whole[name]

    @precondition(lambda self: "output.weight" in self.whole)
    @rule()
    def rename(self) -> None:
        self.view = gs.rename_tensors({"output.weight": "token_embd.weight", "token_embd.weight": "output.weight"})(
            self.view
        )
        swap = {"output.weight": "token_embd.weight", "token_embd.weight": "output.weight"}
        self.whole = {swap.get(name, name): tensor for name, tensor in self.whole.items()}

    @invariant()
    def tensors_are_the_same(self) -> None:
        assert {t.name: (t.ne, content(t, *self.files)) for t in self.view.all_tensors} == self.whole
        assert list(self.view) == list(self.whole)

    @invariant()
    def numbers_are_the_same(self) -> None:
        assert self.view.block_count == self.trunk + self.mtp == len(self.view.blocks)
        assert self.view.nextn_count == self.mtp
        assert self.view.expert_count == self.experts
        assert self.view.expert_used_count == self.used

    @invariant()
    def other_records_are_untouched(self) -> None:
        ours = ("block_count", "nextn_predict_layers", "leading_dense_block_count", "expert_count", "expert_used_count")
        for key in self.view.metadata:
            if not key.endswith(ours):
                assert self.view.metadata.raw(key) == self.keys[key]


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=40, stateful_step_count=8)


def test_the_oracle_takes_what_numpy_takes() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(4, 6)
    assert taken(array.tobytes(), 4, [3, 0, 3]) == array[[3, 0, 3]].tobytes()
