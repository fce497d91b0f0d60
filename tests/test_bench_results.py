"""Results: the founding figures, numbers that must agree, and the forms that they are printed in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from _results import L12, L93, bench, figures, results, sample, speed, step
from ggufslice import BenchError, FormatError
from ggufslice.bench import Fetched, Perplexity, Quantized, Results, Step, judge, markdown, readme, text, traffic
from ggufslice.bench._report import table

if TYPE_CHECKING:
    from pathlib import Path


def test_the_founding_figures() -> None:
    assert traffic(15.64e9, 11.27) == pytest.approx(176.3, abs=0.05)
    head, deep, shallow = table(results())
    row = dict(zip(head, shallow, strict=True))
    assert (row["declared"], row["real"]) == ("0.0086", "1.544")
    row = dict(zip(head, deep, strict=True))
    assert (row["declared"], row["real"], row["GB/s"], row["of 273"]) == ("0.0447", "1.194", "176", "64.6%")
    assert L12.figures.missing == pytest.approx(0.994, abs=0.0005)


def test_what_changed_between_neighbours() -> None:
    l24 = step("L24", figures(5_000_000_000, 30_000_000_000, layers=24), 900.0, 49.02)

    first, second = results(L93, l24, L12).changes

    assert (first.names, second.names) == (("L93", "L24"), ("L24", "L12"))
    assert first.layers == 93 / 24
    assert first.decode == pytest.approx(4.35, abs=0.001)
    assert str(first).startswith("L93 to L24: 3.88x fewer layers, 4.35x decode, ")
    assert results(L93, L12).changes[0].declared == pytest.approx(5.2, abs=0.01)
    assert str(results(L93, attrs.evolve(L12, bench=None)).changes[0]).endswith(
        "decode not measured, 5.20x smaller declared figure"
    )


def test_they_survive_a_file(tmp_path: Path) -> None:
    whole = results(
        attrs.evolve(L12, quantized=Quantized("q.gguf", "Q1_0", 3, {"Q1_0": 15_600_000_000}, (), 0.0, "Q1_0", 1.5)),
        attrs.evolve(
            L93, perplexity=Perplexity(31.2, 0.5, 512, 4, "t"), sample=sample(prompt=[1, 2], text="量\ufffd\n\ud800")
        ),
    )

    whole.save(tmp_path / "results.json")

    assert Results.load(tmp_path / "results.json") == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(results=2), "is not a results file of version 1"),
        (lambda d: d.pop("name"), "has no name"),
        (lambda d: d.update(more=1), "has more, which this version doesn't know"),
        (
            lambda d: d["steps"][0]["figures"].update(layers="many"),
            r"steps\[0\]\.figures\.layers should be int, and is 'many'",
        ),
        (lambda d: d["steps"][0].update(figures=[]), r"steps\[0\]\.figures should be a table of Figures"),
        (lambda d: d["steps"][0]["figures"].update(layers=True), "should be int, and is True"),
    ],
)
def test_a_file_that_is_none_of_ours(tmp_path: Path, change: Any, said: str) -> None:
    data = json.loads(results().to_json())
    change(data)
    (tmp_path / "results.json").write_text(json.dumps(data))

    with pytest.raises(FormatError, match=said):
        Results.load(tmp_path / "results.json")


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(FormatError, match="can't be read as a results file"):
        Results.load(tmp_path / "results.json")


def changed(made: Step, **changes: Any) -> Step:
    return attrs.evolve(made, figures=attrs.evolve(made.figures, **changes))


F = L12.figures


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (changed(L12, declared=0.5), "declared is 0.5, but 8 x 3010000000 / 2800000000000 isn't"),
        (changed(L12, real=None), "real is None, but"),
        (changed(L12, missing=0.5), "missing is 0.5, less than"),
        (changed(L12, missing=None), "missing is None"),
        (changed(L12, file_bytes=3_000_000_000), "the file has 3000000000 bytes, fewer than its tensors"),
        (changed(L12, token_bytes=3_020_000_000), "a token reads 3020000000 bytes of 3010000000"),
        (changed(L12, layers=94), "94 of 93 layers"),
        (changed(L12, experts=897), "897 of 896 experts"),
        (
            attrs.evolve(L12, quantized=Quantized("q", "Q1_0", 3, {"Q1_0": 5}, (), 0.0, "", 0.0)),
            "the quantized tensors hold 5 parameters, not 15600000000",
        ),
        (attrs.evolve(L12, bench=attrs.evolve(bench(1.0, 2.0, F), model_params=7)), "llama-bench counted 7 parameters"),
        (attrs.evolve(L12, bench=attrs.evolve(bench(1.0, 2.0, F), model_bytes=7)), "llama-bench counted 7 tensor bytes"),
        (attrs.evolve(L12, bench=attrs.evolve(bench(1.0, 2.0, F), decode=speed(3.0))), "which no row of llama-bench says"),
        (
            attrs.evolve(L12, bench=attrs.evolve(bench(1.0, 2.0, F), decode=speed(2.0, 0.01))),
            "decode deviates by 0.01 tokens/s, which no row of llama-bench says",
        ),
        (
            attrs.evolve(L12, bench=attrs.evolve(bench(1.0, 2.0, F), decode=attrs.evolve(speed(2.0), samples=(2.0, 9.0)))),
            r"decode is 2.0 tokens/s, which isn't the mean of \[2.0, 9.0\]",
        ),
        (attrs.evolve(L12, sample=sample(tokens=(1,))), "1 tokens are listed, and 48 were returned"),
        (
            attrs.evolve(L12, sample=sample(returned=40, tokens=())),
            "the gate says PASS, and its numbers say FAIL AS DESIGNED",
        ),
        (attrs.evolve(L12, gate=judge(None)), "the gate says NOT MEASURED, and its numbers say PASS"),
    ],
)
def test_numbers_that_do_not_agree_are_refused(made: Step, said: str) -> None:
    results(L12).check()

    with pytest.raises(
        BenchError, match=f"the results of 'Kimi-K3, 16 of 896 experts' don't agree with each other: L12: .*{said}"
    ):
        results(made).check()


def test_a_transfer_that_can_not_be_and_results_without_steps_are_refused() -> None:
    odd = Fetched(received=-1, never_requested=None, requests=1, seconds=1.0)
    with pytest.raises(BenchError, match="a transfer of -1 bytes"):
        results(fetched=odd).check()
    with pytest.raises(BenchError, match="no step was measured"):
        attrs.evolve(results(), steps=()).check()


def test_text_has_a_row_for_each_rung_and_says_what_was_not_measured() -> None:
    bare = attrs.evolve(L12, bench=None, sample=None, gate=judge(None, vocabulary=163_840, experimental=True))

    lines = text(results(L93, bare)).splitlines()

    assert lines[2].split()[:3] == ["rung", "layers", "experts"]
    assert "104.80 B" in lines[3]
    assert "11.27 ± 0.9%" in lines[3]
    assert lines[4].count("not measured") == 4
    assert lines[4].endswith("NOT MEASURED")
    assert any(line.startswith("machine: example-host, CUDA0: NVIDIA GB10") for line in lines)


def test_a_wide_spread_is_remarked_on() -> None:
    noisy = attrs.evolve(L12, bench=attrs.evolve(bench(1806.63, 83.65, F), decode=speed(83.65, 10.0)))

    assert "L12: a spread of 12.0% says that the machine was busy" in text(results(noisy))
    assert "busy" not in text(results(L12))


def test_fallbacks_are_remarked_on() -> None:
    from ggufslice.bench import Fallback  # noqa: PLC0415 - needed here alone

    fell = (Fallback("a", 96, 256, "Q4_K", "Q5_0"),)
    quantized = Quantized("q", "Q4_K_M", 3, {"Q5_0": F.n_params}, fell, 0.979, "", 0.0)

    assert "L12: 1 tensors, 97.9% of the parameters, are not Q4_K_M" in text(results(attrs.evolve(L12, quantized=quantized)))


def test_markdown_is_a_table() -> None:
    odd = attrs.evolve(L12, name="a|b")
    lines = [line for line in markdown(results(odd)).splitlines() if line.startswith("|")]

    assert len(lines) == 3
    assert lines[1].count("---") == lines[0].count("|") - 1
    assert lines[2].startswith("| a\\|b |")


def test_the_readme_of_an_experiment_opens_with_a_warning() -> None:
    made = readme(results())

    assert made.startswith("**Not to be deployed.**")
    assert "Licence of the source: general.license: other, general.license.name: kimi-k3" in made
    assert "    the of and a" in made
    sound = attrs.evolve(L12, gate=judge(sample(), vocabulary=163_840))
    assert not readme(results(sound, intent="")).startswith("**Not")
