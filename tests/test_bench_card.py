"""The card and the plot: what is on them, that nothing overlaps, and that any text can be drawn."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from _results import L12, L93, results, sample
from ggufslice import BenchError
from ggufslice.bench import Fetched, Results, Step, judge
from ggufslice.bench._card import _Card
from ggufslice.bench._sheet import columns, fit, legible
from ggufslice.bench.pictures import draw_card, draw_ladder

if TYPE_CHECKING:
    from pathlib import Path

BARE = attrs.evolve(L12, bench=None, sample=None, gate=judge(None, vocabulary=163_840, experimental=True))


def saying(words: str) -> Step:
    said = sample(text=words)
    return attrs.evolve(L12, sample=said, gate=judge(said, vocabulary=163_840, experimental=True))


def texts(made: Results, shown: Step | None = None) -> list[Any]:
    sheet = _Card(made, shown or made.steps[-1]).draw()
    (axes,) = sheet.figure.axes
    return list(axes.texts)


def words(made: Results, shown: Step | None = None) -> list[str]:
    return [t.get_text() for t in texts(made, shown)]


def test_everything_that_was_measured_is_on_it() -> None:
    shown = words(results())

    for expected in (
        "Kimi-K3, 16 of 896 experts",
        "EXPERIMENT: NOT TO BE DEPLOYED",
        "licence of the source: other, kimi-k3",
        "0.0086",
        "1.544",
        "12 of 93",
        "16 of 896",
        "99.4% missing",
        "83.65 ± 0.1% tokens/s",
        "1,806.63 ± 0.0% tokens/s",
        "252 GB/s, 92.2% of 273 GB/s",
        "56.10 GB",
        "537.90 GB",
        "121.43 MB/s",
        "greedy, 48 of 48 tokens, after: Write one sentence about quantization:",
        "PASS",
    ):
        assert expected in shown, expected
    assert any(line.startswith("example-host: CUDA0: NVIDIA GB10") and "128 GiB unified" in line for line in shown)
    assert any("llama.cpp 0.6.0 (build 11434, commit abcdef0) on CUDA" in line for line in shown)


def test_the_two_figures_have_the_same_size() -> None:
    drawn = sorted(texts(results()), key=lambda t: t.get_fontsize())

    assert {t.get_text() for t in drawn[-2:]} == {"0.0086", "1.544"}
    assert drawn[-1].get_fontsize() == drawn[-2].get_fontsize()


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        (results(L12), ["perplexity", "concurrency"]),
        (
            results(BARE, fetched=None),
            ["decode", "prefill", "weight traffic", "perplexity", "concurrency", "transfer", "sample"],
        ),
    ],
)
def test_each_slot_without_a_measurement_says_so(made: Results, missing: list[str]) -> None:
    shown = words(made)

    boxes = [label for label, value in pairwise(shown) if value == "not measured"]
    checks = {c.name for c in made.steps[-1].gate.checks if c.value is None}
    assert [label for label in boxes if label not in checks or label == "perplexity"][: len(missing)] == missing


def test_a_local_source_was_not_fetched() -> None:
    assert "The source is a local file: nothing was fetched." in words(results(fetched=None, source="model.gguf"))


def test_a_resumed_transfer_has_no_rate() -> None:
    fetched = Fetched(received=56_100_000_000, never_requested=None, requests=1, seconds=462.0, resumed=1_000_000_000)

    shown = words(results(fetched=fetched))

    assert "57.10 GB" in shown
    assert "121.43 MB/s" not in shown


CASES = {
    "ladder": results(),
    "one step": results(L12),
    "bare": results(BARE, fetched=None, licence={}),
    "long": results(saying("word " * 2000), name="A very long name of a model " * 8, source="https://e.org/" + "x" * 300),
    "empty": results(saying("")),
    "wide": results(saying("量化" * 90)),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_overlaps_and_nothing_leaves_the_sheet(case: str) -> None:
    drawn = texts(CASES[case])
    figure = drawn[0].figure
    figure.canvas.draw()
    boxes = [(t.get_text(), t.get_window_extent()) for t in drawn if t.get_text().strip()]

    width, height = figure.canvas.get_width_height()
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.x1 <= width, text
        assert box.y0 >= 0, text
        assert box.y1 <= height, text
    for (a, first), (b, second) in combinations(boxes, 2):
        x = min(first.x1, second.x1) - max(first.x0, second.x0)
        y = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert x <= 1 or y <= 3, f"{a!r} overlaps {b!r}"  # a box is as high as the font, its letters aren't


GARBAGE = "的 of\ufffd $x^2$ \\frac{1}{2} \x1b[31m\u200b🤖 \ue000 ﷽ नमस्ते жыв\tщъ\x00 \U0010ffff \ud800"


def test_whatever_a_model_writes_can_be_drawn_without_a_warning(tmp_path: Path) -> None:
    draw_card(results(saying(GARBAGE), name=f"{GARBAGE}"), tmp_path / "card.svg", tmp_path / "card.png")

    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "card.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_what_has_no_glyph_is_written_as_its_code_point() -> None:
    shown, _ = legible("a\x1b\u200b\U0010ffffжщ$", mono=True)

    assert shown == r"a\u{1b}\u{200b}\u{10ffff}жщ$"
    assert any("what has no glyph here" in line for line in words(results(saying("a\x1b"))))
    assert not any("what has no glyph here" in line for line in words(results()))


def test_lines_are_broken_without_losing_a_character() -> None:
    for text in ("", "a b", "word " * 40, "x" * 50, "量化" * 20, "a\n\nb"):
        lines = list(columns(text, 12))
        assert "".join(lines) == text.replace("\n", "")
    assert list(columns("hello big world", 10)) == ["hello big ", "world"]
    assert list(columns("量" * 7, 12)) == ["量" * 6, "量"]
    assert list(columns("a\n\nb", 12)) == ["a", "", "b"]


def test_text_is_made_smaller_before_it_is_cut() -> None:
    assert fit("short", 20, 500, ("DejaVu Sans",)) == ("short", 20)
    text, size = fit("a somewhat longer line", 20, 200, ("DejaVu Sans",))
    assert text == "a somewhat longer line"
    assert 13 <= size < 20
    text, size = fit("a line that is much too long for its place", 20, 100, ("DejaVu Sans",))
    assert text.endswith("…")
    assert size == 13


def test_the_same_results_make_the_same_picture(tmp_path: Path) -> None:
    for name in ("a", "b"):
        draw_card(results(), tmp_path / f"{name}.svg", tmp_path / f"{name}.png")

    for suffix in ("svg", "png"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_contradictions_are_not_drawn(tmp_path: Path) -> None:
    wrong = attrs.evolve(L12, figures=attrs.evolve(L12.figures, declared=0.001))

    with pytest.raises(BenchError, match="don't agree with each other"):
        draw_card(results(wrong), tmp_path / "card.png")
    with pytest.raises(BenchError, match="don't agree with each other"):
        draw_ladder(results(wrong, L93), tmp_path / "ladder.png")
    assert list(tmp_path.iterdir()) == []


def test_another_step_and_one_that_is_not_there(tmp_path: Path) -> None:
    draw_card(results(), tmp_path / "card.svg", step="L93")
    with pytest.raises(BenchError, match="have no step 'L1'; they have L93, L12"):
        draw_card(results(), tmp_path / "card.svg", step="L1")
    with pytest.raises(ValueError, match=r"pictures are \.svg or \.png, not 'card\.pdf'"):
        draw_card(results(), tmp_path / "card.pdf")


@pytest.mark.parametrize("steps", [(L93, L12), (L93, BARE), (BARE, BARE)])
def test_the_plot(tmp_path: Path, steps: tuple[Step, ...]) -> None:
    draw_ladder(results(*steps), tmp_path / "ladder.svg", tmp_path / "ladder.png")

    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_one_line_names_the_extra() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; import ggufslice.bench.pictures"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1].endswith("this needs the package 'matplotlib': pip install 'ggufslice[card]'")


def test_one_rung_is_no_ladder(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="a ladder has two rungs at least"):
        draw_ladder(results(L12), tmp_path / "ladder.svg")
