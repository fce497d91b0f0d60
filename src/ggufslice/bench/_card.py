"""The card: one picture of what was measured, drawn from a results file and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufslice.bench import _sheet
from ggufslice.bench._gate import BY_DESIGN, FAIL, NOT_MEASURED, PASS
from ggufslice.bench._report import number, speed_text
from ggufslice.bench._sheet import AMBER_INK, GREEN, GREY, INK, RED, Sheet, columns, legible
from ggufslice.errors import BenchError
from ggufslice.units import bytes_text, count_text, percent_text

if TYPE_CHECKING:
    from os import PathLike

    from ggufslice.bench._results import Results, Step
    from ggufslice.bench._speed import Speed

__all__ = ["draw_card"]

_WIDTH, _MARGIN, _GAP = 1200, 48, 24
_HALF = (_WIDTH - 2 * _MARGIN - _GAP) / 2
_RIGHT = _MARGIN + _HALF + _GAP
_INNER = _WIDTH - 2 * _MARGIN
_ROW = 34
_SAMPLE_COLUMNS, _SAMPLE_LINES, _SAMPLE_STEP = 112, 16, 22
_VERDICTS = {PASS: GREEN, FAIL: RED, BY_DESIGN: RED, NOT_MEASURED: AMBER_INK}


def draw_card(results: Results, *paths: str | PathLike[str], step: str | None = None) -> None:
    """Draw the card of a step.

    Parameters
    ----------
    results
        What was measured. Numbers that don't agree with each other are refused.
    *paths
        Files to make: ``.svg`` or ``.png``.
    step
        Its name; None takes the last, which is what the ladder leads to.

    Raises
    ------
    BenchError
        The results contradict themselves, or there is no such step.
    MissingExtraError
        matplotlib isn't installed: the extra is ``card``.
    """
    results.check()
    names = [s.name for s in results.steps]
    if step is not None and step not in names:
        raise BenchError(f"the results have no step {step!r}; they have {', '.join(names)}")
    shown = results.steps[-1 if step is None else names.index(step)]
    sheet = _Card(results, shown).draw()
    for path in paths:
        _sheet.save(sheet.figure, path, results.name)


class _Card:
    def __init__(self, results: Results, step: Step) -> None:
        self.results = results
        self.step = step
        text = step.sample.text if step.sample else ""
        # A newline is a line break; whatever else can't be seen is escaped, so lines are measured as they are drawn.
        safe = "\n".join(legible(line, mono=True)[0] for line in text.split("\n"))
        self.sample = list(columns(safe, _SAMPLE_COLUMNS))
        self.escaped = safe != text
        self.ladder = results.steps if len(results.steps) > 1 else ()
        self.y = 0.0

    def draw(self) -> Sheet:
        """Draw from top to bottom."""
        self.sheet = Sheet(_WIDTH)
        self._head()
        self._figures()
        bottom = max(self._survivors(), self._speeds())
        self.y = bottom + _GAP
        self._transfer()
        if self.ladder:
            self._rungs()
        self._sample()
        self._gate()
        self._foot()
        self.sheet.end(self.y)
        return self.sheet

    def _head(self) -> None:
        results, sheet = self.results, self.sheet
        pill = "EXPERIMENT: NOT TO BE DEPLOYED" if results.intent else ""
        sheet.text(_MARGIN, 70, results.name, 32, bold=True, width=_INNER - (350 if pill else 0))
        if pill:
            sheet.pill(_WIDTH - _MARGIN, 64, pill, RED)
        revision = f" at {results.revision[:12]}" if results.revision else ""
        sheet.text(_MARGIN, 104, f"cut from {results.source}{revision}", 15, color=GREY, width=_INNER)
        licence = ", ".join(results.licence.values()) or "not stated in the file"
        sheet.text(_MARGIN, 127, f"licence of the source: {licence}", 15, color=GREY, width=_INNER)
        self.y = 150.0

    def _figures(self) -> None:
        """Draw the two figures, at the same size, with what each divides by."""
        f = self.step.figures
        whole = count_text(f.source_params) if f.source_params else "an unknown number of"
        for x, label, value, note in (
            (
                _MARGIN,
                "DECLARED bits/param",
                number(f.declared, 4),
                f"{bytes_text(f.tensor_bytes)} over {whole} source parameters",
            ),
            (
                _RIGHT,
                "REAL bits/param",
                number(f.real, 3),
                f"{bytes_text(f.tensor_bytes)} over {count_text(f.n_params)} parameters present",
            ),
        ):
            self.sheet.box(x, self.y, _HALF, 160)
            self.sheet.text(x + 24, self.y + 36, label, 16, color=GREY, bold=True)
            self.sheet.text(x + 24, self.y + 104, value, 60, bold=True, width=_HALF - 48)
            self.sheet.text(x + 24, self.y + 138, note, 15, color=GREY, width=_HALF - 48)
        self.y += 160 + _GAP + 12

    def _title(self, x: float, text: str) -> None:
        self.sheet.text(x, self.y + 14, text, 17, bold=True)

    def _survivors(self) -> float:
        f, sheet, x = self.step.figures, self.sheet, _MARGIN
        self._title(x, "What survives")
        y = self.y + 50
        present = None if f.missing is None else 1 - f.missing
        shares = (
            ("layers", _of(f.layers, f.source_layers), f.layers / f.source_layers if f.source_layers else None),
            (
                "experts a layer",
                _of(f.experts, f.source_experts),
                f.experts / f.source_experts if f.source_experts else None,
            ),
            ("weights", "unknown" if f.missing is None else f"{percent_text(f.missing)} missing", present),
        )
        for label, value, share in shares:
            if label == "experts a layer" and not f.experts and not f.source_experts:
                continue
            sheet.text(x, y, label, 15, color=GREY)
            if share is not None:
                sheet.bar(x + 150, y - 9, 210, min(1.0, share))
            sheet.text(x + _HALF, y, value, 15, bold=True, right=True, width=165)
            y += _ROW
        facts = [
            ("parameters present", count_text(f.n_params)),
            ("file", bytes_text(f.file_bytes)),
            ("weights read for a token", bytes_text(f.token_bytes)),
        ]
        if f.experts:
            facts.insert(0, ("experts a token uses", str(f.experts_used)))
        for label, value in facts:
            sheet.text(x, y, label, 15, color=GREY)
            sheet.text(x + _HALF, y, value, 15, bold=True, right=True)
            y += _ROW
        return y - 12

    def _speeds(self) -> float:
        step, sheet, x = self.step, self.sheet, _RIGHT
        self._title(x, "What was measured")
        y = self.y + 50
        bandwidth = self.results.bandwidth
        share = (
            f", {percent_text(step.traffic / bandwidth)} of {bandwidth:g} GB/s"
            if bandwidth and step.traffic is not None
            else ""
        )
        rows = (
            ("decode", _rate(step.decode), step.decode),
            ("prefill", _rate(step.prefill), step.prefill),
            ("weight traffic", None if step.traffic is None else f"{step.traffic:.3g} GB/s{share}", step.decode),
            ("perplexity", _perplexity(step), None),
            ("concurrency", None, None),
        )
        for label, value, speed in rows:
            if value is None:
                sheet.amber(x, y - 21, _HALF, 31, label)
            else:
                sheet.text(x, y, label, 15, color=GREY)
                color = AMBER_INK if speed is not None and speed.noisy else INK
                sheet.text(x + _HALF, y, value, 15, bold=True, right=True, width=_HALF - 130, color=color)
            y += _ROW + 6 if value is None else _ROW
        if any(speed.noisy for speed in (step.decode, step.prefill) if speed):
            sheet.text(x, y, "So wide a spread says that the machine was busy.", 13, color=AMBER_INK)
            y += _ROW
        return y - 12

    def _transfer(self) -> None:
        fetched, sheet = self.results.fetched, self.sheet
        self._title(_MARGIN, "Transfer")
        y = self.y + 26
        if fetched is None:
            if "://" in self.results.source:
                sheet.amber(_MARGIN, y, _INNER, 46, "transfer")
            else:
                sheet.box(_MARGIN, y, _INNER, 46)
                sheet.text(_MARGIN + 24, y + 29, "The source is a local file: nothing was fetched.", 15, color=GREY)
            self.y = y + 46 + _GAP
            return
        third = (_INNER - 2 * _GAP) / 3
        never = None if fetched.never_requested is None else bytes_text(fetched.never_requested)
        rate = None if fetched.rate is None else f"{bytes_text(fetched.rate)}/s"
        if fetched.resumed:
            rate = None
        slots = (
            ("fetched", bytes_text(fetched.received + fetched.resumed)),
            ("never requested", never),
            (f"{fetched.requests:,} requests in {_duration(fetched.seconds)}", rate),
        )
        for i, (label, value) in enumerate(slots):
            x = _MARGIN + i * (third + _GAP)
            if value is None:
                sheet.amber(x, y, third, 46, label)
                continue
            sheet.box(x, y, third, 46)
            sheet.text(x + 16, y + 29, label, 14, color=GREY, width=third / 2)
            sheet.text(x + third - 16, y + 29, value, 16, bold=True, right=True, width=third / 2 - 24)
        self.y = y + 46 + _GAP

    def _rungs(self) -> None:
        """Draw the ladder: what moves when nothing but the number of layers and experts changes."""
        sheet = self.sheet
        self._title(_MARGIN, "The ladder")
        places = (
            ("rung", 0, False),
            ("layers", 250, True),
            ("experts", 390, True),
            ("file", 510, True),
            ("declared", 640, True),
            ("real", 750, True),
            ("decode tokens/s", 950, True),
            ("gate", _INNER, True),
        )
        y = self.y + 44
        for label, at, right in places:
            sheet.text(_MARGIN + at, y, label, 13, color=GREY, right=right)
        sheet.rule(_MARGIN, y + 10, _INNER)
        for step in self.ladder:
            y += 28
            f = step.figures
            values = (
                step.name,
                _of(f.layers, f.source_layers),
                _of(f.experts, f.source_experts),
                bytes_text(f.file_bytes),
                number(f.declared, 4),
                number(f.real, 3),
                speed_text(step.decode),
                step.gate.verdict,
            )
            for (_, at, right), value in zip(places, values, strict=True):
                bold, color = step is self.step, AMBER_INK if value == "not measured" else _VERDICTS.get(value, INK)
                sheet.text(_MARGIN + at, y, value, 14, bold=bold, right=right, color=color, width=190 if at != 0 else 130)
        self.y = y + 16 + _GAP

    def _sample_height(self) -> float:
        if self.step.sample is None:
            return 46.0
        lines = min(len(self.sample), _SAMPLE_LINES + 1) + self.escaped
        return 62.0 + _SAMPLE_STEP * lines

    def _sample(self) -> None:
        sheet, sample = self.sheet, self.step.sample
        self._title(_MARGIN, "What it says")
        y, height = self.y + 26, self._sample_height()
        if sample is None:
            sheet.amber(_MARGIN, y, _INNER, height, "sample")
            self.y = y + height + _GAP
            return
        how = "greedy" if sample.temperature == 0 else f"temperature {sample.temperature:g}"
        sheet.box(_MARGIN, y, _INNER, height)
        prompt = sample.prompt if isinstance(sample.prompt, str) else f"tokens {sample.prompt}"
        head = f"{how}, {sample.returned} of {sample.asked} tokens, after: {prompt}"
        sheet.text(_MARGIN + 24, y + 30, head, 14, color=GREY, width=_INNER - 48)
        at = y + 62
        for line in self.sample[:_SAMPLE_LINES]:
            sheet.text(_MARGIN + 24, at, line, 15, mono=True, width=_INNER - 48)
            at += _SAMPLE_STEP
        if len(self.sample) > _SAMPLE_LINES:
            more = sum(map(len, self.sample[_SAMPLE_LINES:]))
            sheet.text(_MARGIN + 24, at, f"and {more} characters more, in the results file", 13, color=GREY)
            at += _SAMPLE_STEP
        if self.escaped:
            note = r"what has no glyph here is written as its code point, such as \u{4f60}"
            sheet.text(_MARGIN + 24, at, note, 13, color=GREY)
        self.y = y + height + _GAP

    def _gate(self) -> None:
        sheet, gate = self.sheet, self.step.gate
        self._title(_MARGIN, "Gate")
        sheet.pill(_WIDTH - _MARGIN, self.y + 14, gate.verdict, _VERDICTS.get(gate.verdict, GREY))
        y = self.y + 50
        for i, check in enumerate(gate.checks):
            x = _MARGIN + (i % 2) * (_HALF + _GAP)
            color = {True: GREEN, False: RED, None: AMBER_INK}[check.passed]
            sheet.text(x, y, check.name, 14, color=GREY)
            sheet.text(x + 190, y, check.shown, 14, bold=True, color=color, width=110)
            sheet.text(x + _HALF, y, check.limit, 13, color=GREY, right=True, width=_HALF - 310)
            y += 28 if i % 2 or check is gate.checks[-1] else 0
        self.y = y + 4

    def _foot(self) -> None:
        sheet, step = self.sheet, self.step
        machine = step.machine
        driver = f", driver {machine.driver}" if machine.driver else ""
        load = "unknown" if machine.load is None else f"{machine.load:g}"
        ran = (
            f"llama.cpp {machine.llama_version} on {step.bench.backends}; llama-bench {step.bench.flags}; speculation: none"
            if step.bench
            else "llama.cpp was not run"
        )
        lines = (
            f"{machine.host}: {machine.words}{driver}; {machine.system}; load before {load}",
            ran,
            f"{step.file}; drawn by ggufslice {self.results.ggufslice} from the results file alone",
        )
        sheet.rule(_MARGIN, self.y, _INNER)
        for i, line in enumerate(lines):
            sheet.text(_MARGIN, self.y + 28 + 21 * i, line, 13, color=GREY, width=_INNER)
        self.y += 28 + 21 * len(lines) + 16


def _of(kept: int, whole: int | None) -> str:
    return f"{kept} of {whole}" if whole else str(kept)


def _rate(speed: Speed | None) -> str | None:
    return None if speed is None else f"{speed_text(speed)} tokens/s"


def _perplexity(step: Step) -> str | None:
    if step.perplexity is None:
        return None
    if step.perplexity.value is None:
        return "not a number"
    error = f" ± {step.perplexity.error:.2g}" if step.perplexity.error is not None else ""
    return f"{step.perplexity.value:.4g}{error} on {step.perplexity.text}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
