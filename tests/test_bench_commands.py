"""The commands that measure, run recipes and verify: what they print, what they leave, how they fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import ggufslice as gs
from _fakes import fake
from _results import results
from ggufslice.bench import Results
from ggufslice.cli import main
from ggufslice.testing import build_gguf, synthetic
from test_bench_ladder import BENCH
from test_bench_server import SERVER

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, in the folder where commands run, with stand-ins for llama.cpp's programs."""
    (tmp_path / "llama").mkdir()
    fake(tmp_path / "llama", "llama-bench", BENCH)
    fake(tmp_path / "llama", "llama-server", SERVER.format(before=""))
    monkeypatch.setenv("GGUFSLICE_LLAMA_DIR", str(tmp_path / "llama"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny-00001-of-00001.gguf"
    path.write_bytes(build_gguf(*synthetic(layers=4, experts=8, used=2, metadata={"general.license": "mit"})))
    return path


def test_verify_says_what_it_proves_and_fails_with_1(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gs.open(tiny) as model:
        model.pipe(gs.select_experts(2)).write("cut.gguf")

    assert main(["verify", "cut.gguf", "--full"]) == 0
    assert "every tensor byte is the source's" in capsys.readouterr().out

    cut = tiny.with_name("cut.gguf")
    data = bytearray(cut.read_bytes())
    data[-50] ^= 1
    cut.write_bytes(data)
    assert main(["verify", "cut.gguf", "--source", str(tiny), "--full", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert found["differences"][0]["start"] == len(data) - 50

    assert main(["verify", "cut.gguf", "--lock", "a.lock", "--full"]) == 2
    assert main(["verify", str(tiny)]) == 1
    assert "is not a cut that ggufslice wrote" in capsys.readouterr().err


def test_a_recipe_runs_from_source_to_card(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny.with_name("recipe.toml")
    recipe.write_text(
        f"""
name = "Tiny"
source = "{tiny.name}"
intent = "experimental"
ops = [{{ op = "select_experts", keep = 4 }}]
rungs = [{{ name = "L4" }}, {{ name = "L2", ops = [{{ op = "keep_layers", layers = 2 }}] }}]
[bench]
prompt_tokens = 4
generated_tokens = 4
sample_tokens = 2
"""
    )

    assert main(["run", "recipe.toml"]) == 0
    shown = capsys.readouterr()
    assert "licence of the source: mit" in shown.err
    assert "L4" in shown.out
    folder = tiny.with_name("recipe")
    names = {path.name for path in folder.iterdir()}
    assert {"results.json", "ladder.md", "README.md", "card.svg", "card.png", "ladder.svg", "ladder.png"} <= names
    assert (folder / "README.md").read_text().startswith("**Not to be deployed.**")
    assert tiny.with_name("recipe.lock").exists()

    assert main(["run", "recipe.toml", "--out", "again", "--source", str(tiny), "--json"]) == 0
    shown = capsys.readouterr()
    assert "model.gguf has the digest of the lock" in shown.err
    assert "(recipe.lock)" in shown.err
    assert json.loads(shown.out)["name"] == "Tiny"
    assert (folder / "model.gguf").read_bytes() == tiny.with_name("again").joinpath("model.gguf").read_bytes()


def test_the_ladder(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "ladder",
        tiny.name,
        "out",
        "--rungs",
        "4,2x4,1x4x1",
        "-p",
        "4",
        "-n",
        "4",
        "-r",
        "2",
        "--parameters",
        "2.8e12",
    ]

    assert main([*command, "--set", "general.name=str:other"]) == 0

    made = Results.load("out/results.json")
    assert made.name == "tiny"
    assert [s.name for s in made.steps] == ["L4", "L2-E4", "L1-E4-U1"]
    kept = [(s.figures.layers, s.figures.experts, s.figures.experts_used) for s in made.steps]
    assert kept == [(4, 8, 2), (2, 4, 2), (1, 4, 1)]
    assert {s.figures.source_params for s in made.steps} == {2_800_000_000_000}
    assert "L4 to L2-E4: 2.00x fewer layers, 1.00x decode" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rungs", "4,two"], "'two' is no rung"),
        (["--rungs", "4", "--tensor-type", "q8_0", "--quantize", "Q8_0"], "expected PATTERN=TYPE"),
        (["--rungs", "4", "--parameters", "many"], "many"),
        ([], "rungs"),
    ],
)
def test_options_that_can_not_be_understood(
    tiny: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["ladder", tiny.name, "out", *options]) == 2
    assert said in capsys.readouterr().err


def test_bench_and_sample(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", tiny.name, "-p", "4", "-n", "4", "--bandwidth", "10"]) == 0
    out = capsys.readouterr().out
    assert "decode   10.00 tokens/s (± 1.0%)" in out
    token_bytes = gs.Receipt.of(tiny).token_bytes
    assert f"traffic  {token_bytes * 10 / 1e9:.3g} GB/s of weights, {token_bytes / 1e9:.1%} of 10 GB/s" in out

    assert main(["bench", tiny.name, "-p", "4", "-n", "4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["decode"]["per_second"], shown["token_bytes"]) == (10.0, token_bytes)
    assert shown["machine"]["llama_version"] == "1.2 (build 7, commit abc)"

    assert main(["sample", tiny.name, "-n", "2"]) == 0
    assert capsys.readouterr().out.startswith("ab\n\ngate: PASS\n  health: 100.0%")
    assert main(["sample", tiny.name, "-n", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sample"]["text"] == "ab"


def test_a_missing_program_is_a_sentence(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", tiny.name, "out.gguf", "Q8_0"]) == 1
    assert "llama-quantize was not found in" in capsys.readouterr().err
    assert main(["bench", tiny.name, "--llama-dir", "nowhere"]) == 1
    assert "llama-bench was not found in nowhere (--llama-dir)" in capsys.readouterr().err


def test_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    results().save("results.json")

    assert main(["card", "results.json", "a.svg", "b.png", "--step", "L93"]) == 0
    assert (tmp_path / "b.png").exists()
    assert main(["card", "results.json", "a.pdf"]) == 2
    capsys.readouterr()
    assert main(["card", "results.json", "a.svg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": ["a.svg"]}
    (tmp_path / "results.json").write_text(results().to_json().replace('"layers": 12', '"layers": 940'))
    assert main(["card", "results.json", "c.png"]) == 1
    assert "940 of 93 layers" in capsys.readouterr().err


@pytest.mark.llama
@pytest.mark.models
def test_quantize_with_the_real_program(zoo: Path, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["quantize", str(zoo / "qwen3moe.gguf"), str(tmp_path / "q.gguf"), "Q8_0", "--llama-dir", str(llama)]

    assert main(command) == 1
    assert "--allow-requantize" in capsys.readouterr().err
    assert main([*command, "--allow-requantize", "--tensor-type", "attn_q=q4_0", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert {"Q8_0", "Q4_0"} <= set(made["types"])
    assert main([*command, "--allow-requantize"]) == 1
    assert "is there already" in capsys.readouterr().err
