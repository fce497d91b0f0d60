"""The ladder: each rung cut, quantized, measured, sampled and judged, once; with the real programs and with counted ones."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import ggufslice as gs
from _fakes import fake
from ggufslice import BenchError, FormatError
from ggufslice.bench import Llama, Results, run_recipe, text
from ggufslice.bench.pictures import draw_card, draw_ladder
from ggufslice.recipe import BenchSettings, Quantization, Recipe, Rung, load_recipe
from ggufslice.testing import build_gguf, synthetic
from test_bench_server import SERVER

if TYPE_CHECKING:
    from pathlib import Path

# Programs that do their work on paper, and count how often they are asked.
COUNT = "open(os.path.join(os.path.dirname(sys.argv[0]), NAME + '.count'), 'a').write('x')\n"
BENCH = (
    COUNT
    + """
if os.path.exists(sys.argv[0] + '.broken'): sys.exit('out of memory')
for p, n in ((4, 0), (0, 4)):
    print(json.dumps(dict(n_prompt=p, n_gen=n, avg_ts=10.0, stddev_ts=0.1, samples_ts=[10.0, 10.0], n_gpu_layers=99)))
"""
)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    fake(folder, "llama-bench", BENCH)
    fake(folder, "llama-server", COUNT + SERVER.format(before=""))
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(build_gguf(*synthetic(layers=4, experts=8, used=2, metadata={"general.license": "mit"})))
    return path


def recipe(tiny: Path, **changes: Any) -> Recipe:
    settings = BenchSettings(prompt_tokens=4, generated_tokens=4, repetitions=2, sample_tokens=2)
    return Recipe(
        **{
            "name": "Tiny",
            "source": str(tiny),
            "ops": [gs.select_experts(4)],
            "rungs": [Rung(f"L{n}", [gs.keep_layers(n)]) for n in (4, 2, 1)],
            "bench": settings,
            **changes,
        }
    )


def asked(programs: Path, name: str) -> int:
    count = programs / f"{name}.count"
    return len(count.read_text()) if count.exists() else 0


def test_finished_rungs_are_not_done_again(tiny: Path, tmp_path: Path, programs: Path) -> None:
    run = tmp_path / "run"
    first = run_recipe(recipe(tiny), run, llama=Llama(programs))
    assert (asked(programs, "llama-bench"), asked(programs, "llama-server")) == (3, 3)

    assert run_recipe(recipe(tiny), run, llama=Llama(programs)) == first
    assert asked(programs, "llama-bench") == 3

    assert Results.load(run / "results.json") == first


def test_a_ladder_goes_on_where_it_failed(tiny: Path, tmp_path: Path, programs: Path) -> None:
    said: list[str] = []
    broken = programs / "llama-bench.broken"

    def breaking(line: str) -> None:
        said.append(line)
        if line.startswith("L1: measuring"):
            broken.touch()

    with pytest.raises(BenchError, match="out of memory"):
        run_recipe(recipe(tiny), tmp_path / "run", llama=Llama(programs), say=breaking)
    broken.unlink()
    results = run_recipe(recipe(tiny), tmp_path / "run", llama=Llama(programs), say=said.append)

    assert [step.name for step in results.steps] == ["L4", "L2", "L1"]
    assert "L4 is finished already" in said
    assert "L2 is finished already" in said
    assert asked(programs, "llama-bench") == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"bench": BenchSettings(prompt_tokens=4, generated_tokens=4, repetitions=2, sample_tokens=2, prompt="Other")},
        {"ops": [gs.select_experts(3)]},
        {"intent": "experimental"},
        {"parameters": 10**12},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_inputs_are_measured_anew(tiny: Path, tmp_path: Path, programs: Path, changes: dict[str, Any]) -> None:
    run_recipe(recipe(tiny), tmp_path / "run", llama=Llama(programs))

    run_recipe(recipe(tiny, **changes), tmp_path / "run", llama=Llama(programs))

    assert asked(programs, "llama-bench") == 6


def test_another_rung_is_added_to_those_that_are_there(tiny: Path, tmp_path: Path, programs: Path) -> None:
    run_recipe(recipe(tiny), tmp_path / "run", llama=Llama(programs))
    rungs = [*recipe(tiny).rungs, Rung("L3", [gs.keep_layers(3), gs.set_expert_used(1)])]

    results = run_recipe(recipe(tiny, rungs=rungs), tmp_path / "run", llama=Llama(programs))

    assert asked(programs, "llama-bench") == 4
    assert results.steps[-1].figures.experts_used == 1


def test_a_source_that_has_changed_is_cut_anew(tiny: Path, tmp_path: Path, programs: Path) -> None:
    run_recipe(recipe(tiny), tmp_path / "run", llama=Llama(programs))
    before = (tmp_path / "run" / "model-L1.gguf").read_bytes()
    tiny.write_bytes(build_gguf(*synthetic(layers=4, experts=8, used=2, seed=9)))

    run_recipe(recipe(tiny), tmp_path / "run", llama=Llama(programs))

    assert asked(programs, "llama-bench") == 6
    assert (tmp_path / "run" / "model-L1.gguf").read_bytes() != before


def test_the_figures_are_the_receipts(tiny: Path, tmp_path: Path, programs: Path) -> None:
    results = run_recipe(recipe(tiny), tmp_path / "run", llama=Llama(programs))

    for step, layers in zip(results.steps, (4, 2, 1), strict=True):
        receipt = gs.Receipt.of(tmp_path / "run" / step.file)
        figures = step.figures
        assert (figures.layers, figures.source_layers, figures.experts, figures.source_experts) == (layers, 4, 4, 8)
        assert (figures.declared, figures.real, figures.missing) == (receipt.declared, receipt.real, receipt.missing)
        assert step.traffic == receipt.token_bytes * 10.0 / 1e9
        saved = json.loads((tmp_path / "run" / f"{step.file}.receipt.json").read_text())
        assert saved["tensor_bytes"] == figures.tensor_bytes
    assert [change.layers for change in results.changes] == [2, 2]


def test_a_text_that_is_not_there_is_found_before_anything_is_measured(tiny: Path, tmp_path: Path, programs: Path) -> None:
    with pytest.raises(FormatError, match=r"none\.txt, which the recipe names, is not there"):
        run_recipe(recipe(tiny, bench=BenchSettings(text="none.txt")), tmp_path / "run", llama=Llama(programs))
    assert asked(programs, "llama-bench") == 0


@pytest.mark.llama
@pytest.mark.models
def test_the_ladder_of_a_real_model_with_the_real_programs(tinymoe: Path, llama: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ggufslice", "ladder", tinymoe, tmp_path, "--rungs", "8,4,2", "--quantize", "Q1_0"]
    options = ["-p", "8", "-n", "8", "-r", "2", "--text", tinymoe.with_name("heldout.txt"), "--ctx", "64", "--chunks", "2"]
    done = subprocess.run(
        [*map(str, command), *map(str, options), "--llama-dir", str(llama), "--bandwidth", "20"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    results = Results.load(tmp_path / "results.json")

    assert done.stdout.rstrip() == text(results).rstrip()
    assert [(s.figures.layers, s.figures.source_layers) for s in results.steps] == [(8, 8), (4, 8), (2, 8)]
    for step in results.steps:
        bench = step.bench
        assert bench is not None
        assert (bench.model_params, bench.model_bytes) == (step.figures.n_params, step.figures.tensor_bytes)
        assert step.quantized is not None
        assert step.quantized.types["Q1_0"] > 0.7 * step.figures.n_params
        assert step.sample is not None
        assert step.sample.returned == 48
        assert step.perplexity is not None
        assert step.perplexity.value is not None
    declared = [s.figures.declared or 0 for s in results.steps]
    real = [s.figures.real or 0 for s in results.steps]
    assert declared == sorted(declared, reverse=True)
    assert real == sorted(real), "what is left is denser where less is left"
    for name in ("card.svg", "card.png", "ladder.svg", "ladder.png", "ladder.md", "README.md"):
        assert (tmp_path / name).stat().st_size > 500


@pytest.mark.llama
@pytest.mark.models
def test_the_recipe_that_ci_runs(tinymoe: Path, llama: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    loaded = load_recipe(pytestconfig.rootpath / "recipes" / "tinymoe-ladder.toml")
    moved = Recipe(
        **{f: getattr(loaded, f) for f in ("name", "ops", "output", "intent", "rungs", "quantization", "bench")},
        source=str(tinymoe),
    )

    results = run_recipe(moved, tmp_path, llama=Llama(llama), lock=tmp_path / "r.lock")
    draw_card(results, tmp_path / "card.png")
    draw_ladder(results, tmp_path / "ladder.png")

    assert [s.name for s in results.steps] == ["L8", "L4", "L2"]
    assert {(s.figures.experts, s.figures.experts_used) for s in results.steps} == {(16, 2)}
    assert {s.gate.verdict for s in results.steps} <= {"PASS", "FAIL AS DESIGNED"}


@pytest.mark.llama
@pytest.mark.models
def test_a_model_without_a_tokenizer_is_sampled_by_token_ids(zoo: Path, llama: Path, tmp_path: Path) -> None:
    settings = BenchSettings(prompt_tokens=4, generated_tokens=4, repetitions=1, prompt=[1, 2, 3], sample_tokens=8)
    made = Recipe(
        name="zoo",
        source=str(zoo / "kimi-k3.gguf"),
        ops=[gs.select_experts(2)],
        rungs=[Rung("L6", [gs.keep_layers(6)])],
        quantization=Quantization(type="Q8_0", allow_requantize=True),
        bench=settings,
    )

    results = run_recipe(made, tmp_path, llama=Llama(llama))

    (step,) = results.steps
    assert step.sample is not None
    assert step.sample.prompt_tokens == 3
    assert step.decode is not None
    assert step.decode.spread is None
