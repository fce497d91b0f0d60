"""The example programs, run as a user would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import GGUFReader

from ggufslice.testing import RangeServer, TensorSpec, build_gguf, split_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs an example in `tmp_path` and returns what it printed."""

    def run(name: str, *arguments: object, code: int = 0) -> str:
        command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    return run


def write(path: Path, **shape: Any) -> Path:
    path.write_bytes(build_gguf(*synthetic(**shape)))
    return path


def tensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {t.name: np.asarray(t.data) for t in GGUFReader(path).tensors}


def test_every_example_is_run_here() -> None:
    assert {p.stem for p in EXAMPLES.glob("*.py")} == {"custom_op", "expert_plan", "extract", "reshard", "diff"}


def test_custom_op_zeroes_the_selection_bias_alone(tmp_path: Path, example: Callable[..., str]) -> None:
    source = write(tmp_path / "model.gguf", architecture="deepseek2", selection_bias=True, experts=8)

    said = example("custom_op", source, "small.gguf", "--experts", 4)

    before, after = tensors(source), tensors(tmp_path / "small.gguf")
    assert not after["blk.0.exp_probs_b.bias"].any()
    assert after["blk.0.exp_probs_b.bias"].shape == (4,)
    assert before["blk.0.exp_probs_b.bias"].any()
    assert np.array_equal(after["blk.3.ffn_up_exps.weight"], before["blk.3.ffn_up_exps.weight"][:4])
    assert "4 selection biases zeroed" in said


def test_custom_op_says_when_there_is_no_bias(tmp_path: Path, example: Callable[..., str]) -> None:
    source = write(tmp_path / "model.gguf")
    example("custom_op", source, "small.gguf", "--experts", 4, code=1)
    assert not (tmp_path / "small.gguf").exists()


def test_expert_plan_keeps_the_most_used_and_says_how_much_they_carried(tmp_path: Path, example: Callable[..., str]) -> None:
    counts = {0: [10, 0, 60, 30], 1: [25, 25, 0, 50]}
    specs = [
        TensorSpec(f"blk.{layer}.ffn_down_exps.weight.counts", (1, 4), data=np.array(seen, "<f4").tobytes())
        for layer, seen in counts.items()
    ]
    (tmp_path / "imatrix.gguf").write_bytes(build_gguf({"general.type": "imatrix"}, specs))

    said = example("expert_plan", "imatrix.gguf", "plan.json", "--experts", 2)

    assert "layer   0:  90.0% of tokens by 2 of 4 experts: [2, 3]" in said
    assert "layer   1:  75.0% of tokens by 2 of 4 experts: [0, 3]" in said
    assert json.loads((tmp_path / "plan.json").read_text())["layers"] == {"0": {"keep": [2, 3]}, "1": {"keep": [0, 3]}}


@pytest.mark.parametrize(("part", "only"), [("embeddings", ("token_embd.", "output")), ("mtp", ("blk.4.",))])
def test_extract_fetches_that_part_alone(
    tmp_path: Path, example: Callable[..., str], part: str, only: tuple[str, ...]
) -> None:
    model = build_gguf(*synthetic(layers=4, mtp=1, width=64, expert_ffn=256))
    (tmp_path / "model.gguf").write_bytes(model)
    with RangeServer({"model.gguf": model}) as server:
        example("extract", part, server.url("model.gguf"), "part.gguf")
        fetched = server.bytes_sent

    before, after = tensors(tmp_path / "model.gguf"), tensors(tmp_path / "part.gguf")
    assert after.keys() == {name for name in before if name.startswith(only)}
    for name, data in after.items():
        assert np.array_equal(data, before[name]), name
    assert fetched < len(model) * 3 / 4


def test_extract_says_when_there_is_no_mtp_block(tmp_path: Path, example: Callable[..., str]) -> None:
    example("extract", "mtp", write(tmp_path / "model.gguf"), "part.gguf", code=1)


def test_reshard_there_and_back_gives_the_same_file(tmp_path: Path, example: Callable[..., str]) -> None:
    model = build_gguf(*synthetic())
    for i, shard in enumerate(split_gguf(*synthetic(), 3), 1):
        (tmp_path / f"in-{i:05d}-of-00003.gguf").write_bytes(shard)

    said = example("reshard", "in-00001-of-00003.gguf", "whole.gguf")
    assert said == f"3 files in, 1 out, {len(model):,} bytes\n"
    assert (tmp_path / "whole.gguf").read_bytes() == model

    example("reshard", "whole.gguf", "out.gguf", "--max-shard-size", 150_000)
    shards = sorted(tmp_path.glob("out-*.gguf"))
    assert len(shards) > 1
    assert all(path.stat().st_size <= 150_000 for path in shards)
    example("reshard", shards[0], "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == model


def test_diff_reads_headers_and_reports_each_difference(tmp_path: Path, example: Callable[..., str]) -> None:
    a = write(tmp_path / "a.gguf", layers=2)
    b = write(tmp_path / "b.gguf", layers=2, experts=4, shared=1)

    said = example("diff", a, b, code=1).splitlines()

    assert "~ qwen3moe.expert_count = 8 -> 4" in said
    assert "~ blk.1.ffn_up_exps.weight (32, 32, 8) F32 -> (32, 32, 4) F32" in said
    assert any(line.startswith("+ blk.0.ffn_up_shexp.weight") for line in said)
    assert example("diff", a, a) == "no difference in the headers\n"
