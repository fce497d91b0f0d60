"""Importance matrices: experts ranked by them, and matrices cut along with their model."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import GGUFReader

import ggufslice as gs
from ggufslice.bench import Llama, perplexity
from ggufslice.selection import ExpertPlan
from ggufslice.testing import RangeServer, TensorSpec, Typed, build_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

COUNTS = {1: [4, 9, 1, 9, 0, 7], 2: [0, 0, 3, 2, 8, 8]}  # of 6 experts; block 0 is dense
ENERGY = {1: [1, 2, 300, 4, 0, 5], 2: [0, 0, 1, 400, 2, 3]}


def floats(values: Any) -> bytes:
    return np.asarray(values, "<f4").tobytes()


def entries(name: str, values: Any, counts: Any) -> Iterable[TensorSpec]:
    """Make what llama-imatrix stores for one tensor: values [experts, row], counts [experts]."""
    data = np.asarray(values, "<f4")
    ne = data.shape[::-1]
    yield TensorSpec(f"{name}.in_sum2", ne, data=floats(data))
    yield TensorSpec(f"{name}.counts", (1, *ne[1:]), data=floats(counts))
    yield TensorSpec(f"{name}.in_sum", ne, data=floats(-data))
    yield TensorSpec(f"{name}.stats", (12,), data=floats(range(12)))


def imatrix(counts: Mapping[int, list[int]] = COUNTS, parts: Iterable[str] = ("gate", "up", "down")) -> bytes:
    specs: list[TensorSpec] = [*entries("output.weight", np.arange(4), [7])]
    for block, by_expert in counts.items():
        for part in parts:
            rows = np.outer(ENERGY[block] if part == "down" else by_expert, [0.25, 0.75])
            specs += entries(f"blk.{block}.ffn_{part}_exps.weight", rows, by_expert)
    for block in range(3):
        specs += entries(f"blk.{block}.attn_q.weight", np.arange(4) + block, [7])
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": ["calib.txt"],
        "imatrix.chunk_count": 3,
        "imatrix.n_layer_nextn": Typed(1, "u32"),
    }
    return build_gguf(metadata, specs)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "some.imatrix.gguf"
    out.write_bytes(imatrix())
    return out


def test_the_experts_that_were_seen_most_are_kept(path: Path) -> None:
    plan = ExpertPlan.from_imatrix(path, 3)
    assert plan.keep == {1: (1, 3, 5), 2: (2, 4, 5)}  # in the model's order
    assert ExpertPlan.from_imatrix(path, 1).keep == {1: (1,), 2: (4,)}  # the first of those that tie
    assert plan.source == "imatrix some.imatrix.gguf by count"


def test_or_those_that_were_seen_most_and_had_most_to_say(path: Path) -> None:
    plan = ExpertPlan.from_imatrix(path, 2, by="count*activation")
    assert plan.keep == {1: (2, 5), 2: (3, 5)}
    with pytest.raises(ValueError, match="by='saliency': experts are ranked by"):
        ExpertPlan.from_imatrix(path, 2, by="saliency")


def test_merged_gate_and_up_projections_have_counts_too(tmp_path: Path) -> None:
    path = tmp_path / "merged.gguf"
    path.write_bytes(imatrix(parts=["gate_up"]))
    assert ExpertPlan.from_imatrix(path, 3).keep == {1: (1, 3, 5), 2: (2, 4, 5)}


def test_only_counts_are_fetched() -> None:
    rows = 200_000
    specs = [
        TensorSpec("blk.0.ffn_up_exps.weight.in_sum2", (rows, 4), fill="zeros"),
        TensorSpec("blk.0.ffn_up_exps.weight.counts", (1, 4), data=floats([1, 4, 3, 2])),
        TensorSpec("blk.1.ffn_up_exps.weight.in_sum2", (rows, 4), fill="zeros"),
        TensorSpec("blk.1.ffn_up_exps.weight.counts", (1, 4), data=floats([9, 4, 3, 2])),
    ]
    data = build_gguf({"general.type": "imatrix"}, specs)
    with RangeServer({"big.imatrix.gguf": data}) as server:
        plan = ExpertPlan.from_imatrix(server.url("big.imatrix.gguf"), 2)
        asked = [r.range for r in server.requests if r.range]
    assert plan.keep == {0: (1, 2), 1: (0, 1)}
    assert sum(last - (first or 0) + 1 for first, last in asked if last is not None) < len(data) / 3


def test_blocks_that_were_not_counted(path: Path) -> None:
    plan = ExpertPlan.from_imatrix(path, 2)
    ids, notes = plan.resolve({1: 6, 2: 6, 3: 6}, mtp=[3])
    assert ids[3] == (0, 1)
    assert notes == ("experts of MTP block 3 were not counted: kept the first 2",)
    with pytest.raises(gs.UnsupportedCutError, match="nothing of the experts of block 0"):
        plan.resolve({0: 6, 1: 6, 2: 6})


def test_a_layer_that_saw_no_token_has_no_ranking(tmp_path: Path) -> None:
    path = tmp_path / "unseen.gguf"
    path.write_bytes(imatrix({1: COUNTS[1], 2: [0] * 6}))
    assert list(ExpertPlan.from_imatrix(path, 2).keep) == [1]


def test_counts_of_whole_tensors_are_no_ranking(tmp_path: Path) -> None:
    old = [*entries("blk.0.ffn_up_exps.weight", np.zeros((1, 4)), [5])]
    path = tmp_path / "old.gguf"
    path.write_bytes(build_gguf({"general.type": "imatrix"}, old))
    with pytest.raises(gs.FormatError, match=r"old.gguf: no counts by expert"):
        ExpertPlan.from_imatrix(path, 1)


def test_more_than_there_are(path: Path) -> None:
    with pytest.raises(gs.UnsupportedCutError, match="block 1 has 6 experts: 7 of them can't be kept"):
        ExpertPlan.from_imatrix(path, 7)


def moe(tmp_path: Path, **options: Any) -> gs.GGUF:
    path = tmp_path / "model.gguf"
    path.write_bytes(build_gguf(*synthetic(**{"layers": 3, "dense_lead": 1, "experts": 6, **options})))
    return gs.open(path)


def arrays(path: Path) -> dict[str, list[Any]]:
    return {tensor.name: tensor.data.tolist() for tensor in GGUFReader(path).tensors}


def test_a_matrix_is_cut_like_its_model(path: Path, tmp_path: Path) -> None:
    cut = moe(tmp_path).pipe(
        gs.select_experts({1: [5, 1, 3], 2: [2, 4, 5]}), gs.keep_layers([0, 2]), gs.drop_tensors("^output.weight")
    )
    gs.slice_imatrix(path, cut).write(tmp_path / "cut.imatrix.gguf")

    before, after = arrays(path), arrays(tmp_path / "cut.imatrix.gguf")
    expected = {}
    for kind in ("in_sum2", "counts", "in_sum"):
        for part in ("gate", "up", "down"):
            old = before[f"blk.2.ffn_{part}_exps.weight.{kind}"]
            expected[f"blk.1.ffn_{part}_exps.weight.{kind}"] = [old[i] for i in (2, 4, 5)]
        for new, old_block in ((0, 0), (1, 2)):
            expected[f"blk.{new}.attn_q.weight.{kind}"] = before[f"blk.{old_block}.attn_q.weight.{kind}"]
    assert after == expected
    metadata = gs.open(tmp_path / "cut.imatrix.gguf").metadata
    assert metadata["general.type"] == "imatrix"
    assert metadata["imatrix.n_layer_nextn"] == 0


def test_cuts_of_cuts(path: Path, tmp_path: Path) -> None:
    cut = moe(tmp_path).pipe(gs.select_experts([5, 1, 3]), gs.keep_layers([0, 2]), gs.select_experts([2, 0]))
    sliced = gs.slice_imatrix(gs.open(path), cut)
    whole = gs.open(path)["blk.2.ffn_up_exps.weight.counts"]
    assert sliced["blk.1.ffn_up_exps.weight.counts"].pieces == whole[[3, 5]].pieces


def test_a_file_says_itself_how_it_was_cut(path: Path, tmp_path: Path) -> None:
    cut = moe(tmp_path).pipe(gs.select_experts({1: [5, 1, 3], 2: [2, 4, 5]}), gs.keep_layers([0, 2]))
    cut.write(tmp_path / "cut.gguf")
    expected = gs.slice_imatrix(path, cut)
    written = gs.open(tmp_path / "cut.gguf")
    assert gs.slice_imatrix(path, written).all_tensors == expected.all_tensors
    again, at_once = written.pipe(gs.select_experts([2, 0])), cut.pipe(gs.select_experts([2, 0]))
    assert gs.slice_imatrix(path, again).all_tensors == gs.slice_imatrix(path, at_once).all_tensors
    assert gs.slice_imatrix(path, again)["blk.1.ffn_up_exps.weight.counts"].ne == (1, 2)


def test_a_cut_that_does_not_say_what_it_kept(path: Path, tmp_path: Path) -> None:
    moe(tmp_path).pipe(gs.select_experts(3)).write(tmp_path / "cut.gguf")
    silent = gs.open(tmp_path / "cut.gguf").pipe(gs.remove_metadata("ggufslice.kept.experts"))
    with pytest.raises(gs.UnsupportedCutError, match=r"does not say which layers and experts of the first model it has"):
        gs.slice_imatrix(path, gs.GGUF(silent.metadata, silent.all_tensors))


def test_adjugate_experts_are_cut_by_chunk(tmp_path: Path) -> None:
    chunk = TensorSpec("blk.0.ffn_up_chexps.weight", (32, 32, 3))
    options: dict[str, Any] = {"architecture": "grovemoe", "layers": 1, "dense_lead": 0, "tensors": [chunk]}
    model = moe(tmp_path, metadata={"grovemoe.experts_per_group": 2}, **options)
    matrix = tmp_path / "m.gguf"
    rows = np.arange(6).reshape(3, 2)
    matrix.write_bytes(build_gguf({"general.type": "imatrix"}, entries("blk.0.ffn_up_chexps.weight", rows, [[7], [8], [9]])))
    sliced = gs.slice_imatrix(matrix, model.pipe(gs.select_experts([4, 5, 0, 1])))
    assert sliced["blk.0.ffn_up_chexps.weight.in_sum2"].numpy().tolist() == [[4, 5], [0, 1]]
    assert sliced["blk.0.ffn_up_chexps.weight.counts"].numpy().tolist() == [[9], [7]]


def test_a_model_is_no_matrix_and_another_models_matrix_does_not_fit(path: Path, tmp_path: Path) -> None:
    model = moe(tmp_path, experts=8)
    with pytest.raises(gs.FormatError, match=r"model.gguf is no importance matrix: general.type is 'model'"):
        gs.slice_imatrix(tmp_path / "model.gguf", model)
    with pytest.raises(gs.UnsupportedCutError, match=r"'blk.1.ffn_gate_exps.weight.in_sum2' has 6 experts and the model 8"):
        gs.slice_imatrix(path, model.pipe(gs.select_experts(2)))


@pytest.fixture(scope="module")
def cut_tinymoe(tinymoe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write tinymoe cut to 8 experts and 3 layers, with its importance matrix beside it; return the folder."""
    folder = tmp_path_factory.mktemp("cut")
    whole = tinymoe.with_name("tinymoe.imatrix.gguf")
    cut = gs.open(tinymoe).pipe(gs.select_experts(ExpertPlan.from_imatrix(whole, 8)), gs.keep_layers([0, 1, 3]))
    cut.write(folder / "cut.gguf")
    gs.slice_imatrix(whole, cut).write(folder / "cut.imatrix.gguf")
    return folder


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
    )


@pytest.mark.models
@pytest.mark.llama
@pytest.mark.parametrize("kind", ["IQ1_S", "IQ2_XXS"])
def test_llama_quantize_takes_the_cut_matrix_and_not_the_whole(
    cut_tinymoe: Path, tinymoe: Path, llama: Path, tmp_path: Path, kind: str
) -> None:
    def quantize(imatrix: Path) -> subprocess.CompletedProcess[str]:
        return run(llama / "llama-quantize", "--imatrix", imatrix, cut_tinymoe / "cut.gguf", tmp_path / "q.gguf", kind)

    done = quantize(cut_tinymoe / "cut.imatrix.gguf")
    assert done.returncode == 0, done.stderr[-2000:]
    types = {tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "q.gguf").tensors}
    assert kind in types
    assert quantize(tinymoe.with_name("tinymoe.imatrix.gguf")).returncode != 0


@pytest.mark.models
@pytest.mark.llama
def test_llama_cpp_measures_the_cut_and_makes_a_matrix_of_it(
    cut_tinymoe: Path, tinymoe: Path, llama: Path, tmp_path: Path
) -> None:
    text = tinymoe.with_name("heldout.txt")
    model = cut_tinymoe / "cut.gguf"
    measured = perplexity(model, text, ctx=256, chunks=2, ngl=0, llama=Llama(llama))
    assert measured.value is not None
    assert 1 < measured.value < 4096  # better than a guess among all tokens
    done = run(llama / "llama-imatrix", "-m", model, "-f", text, "-o", tmp_path / "own.gguf", "--chunks", 2, "-c", 256)
    assert done.returncode == 0, done.stderr[-2000:]
    own, sliced = gs.open(tmp_path / "own.gguf"), gs.open(cut_tinymoe / "cut.imatrix.gguf")
    assert {(t.name, t.ne) for t in sliced.values()} <= {(t.name, t.ne) for t in own.values()}
