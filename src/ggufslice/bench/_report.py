"""Results as text and Markdown: the ladder's table, and the README that goes with a recipe's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufslice.units import bytes_text, count_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufslice.bench._results import Results, Step
    from ggufslice.bench._speed import Speed

__all__ = ["markdown", "readme", "table", "text"]

NOT_MEASURED = "not measured"
_HEAD = (
    "rung",
    "layers",
    "experts",
    "used",
    "file",
    "params",
    "declared",
    "real",
    "prefill t/s",
    "decode t/s",
    "read/token",
    "GB/s",
)


def table(results: Results) -> list[tuple[str, ...]]:
    """Return the ladder's table: a head, and a row for each rung."""
    bandwidth = results.bandwidth
    head = (*_HEAD, f"of {bandwidth:g}", "gate") if bandwidth else (*_HEAD, "gate")
    return [head, *(_row(step, bandwidth) for step in results.steps)]


def _row(step: Step, bandwidth: float | None) -> tuple[str, ...]:
    f = step.figures
    share = (NOT_MEASURED if step.traffic is None else percent_text(step.traffic / bandwidth),) if bandwidth else ()
    return (
        step.name,
        _of(f.layers, f.source_layers),
        _of(f.experts, f.source_experts) if f.experts else "none",
        str(f.experts_used) if f.experts else "none",
        bytes_text(f.file_bytes),
        count_text(f.n_params),
        number(f.declared, 4),
        number(f.real, 3),
        speed_text(step.prefill),
        speed_text(step.decode),
        bytes_text(f.token_bytes),
        NOT_MEASURED if step.traffic is None else f"{step.traffic:.3g}",
        *share,
        step.gate.verdict,
    )


def _of(kept: int, whole: int | None) -> str:
    return f"{kept} of {whole}" if whole else str(kept)


def number(value: float | None, decimals: int) -> str:
    """Return a figure with so many decimals, or ``unknown``."""
    return "unknown" if value is None else f"{value:.{decimals}f}"


def speed_text(speed: Speed | None) -> str:
    """Return a speed with its spread."""
    if speed is None:
        return NOT_MEASURED
    spread = "" if speed.spread is None else f" ± {100 * speed.spread:.1f}%"
    return f"{speed.per_second:,.2f}{spread}"


def _remarks(results: Results) -> list[str]:
    lines = [str(change) for change in results.changes]
    for step in results.steps:
        if step.quantized and step.quantized.fallbacks:
            fell = step.quantized
            lines.append(
                f"{step.name}: {len(fell.fallbacks)} tensors, {percent_text(fell.fallback_share)} of the parameters, are "
                f"not {fell.type}: their rows aren't whole blocks"
            )
        lines += [f"{step.name}: {warning}" for warning in (step.bench.warnings if step.bench else ())]
        noisy = [speed.spread or 0.0 for speed in (step.prefill, step.decode) if speed and speed.noisy]
        if noisy:
            spread = percent_text(max(noisy))
            lines.append(f"{step.name}: a spread of {spread} says that the machine was busy; measure again when it is idle")
    if results.steps:
        machine = results.steps[-1].machine
        ran = results.steps[-1].bench
        lines += [
            f"machine: {machine.host}, {machine.words}, {machine.system}, load {machine.load}",
            *([f"llama.cpp {machine.llama_version}; llama-bench {ran.flags}; speculation: none"] if ran else []),
            "read/token is worked out from tensor sizes and experts used; GB/s is that times the decode speed",
        ]
    return lines


def text(results: Results) -> str:
    """Return the ladder as text."""
    rows = table(results)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([results.name, "", *lines, "", *_remarks(results)])


def markdown(results: Results) -> str:
    """Return the ladder as Markdown."""
    rows = table(results)
    lines = [_markdown_row(rows[0]), _markdown_row(["---"] * len(rows[0])), *map(_markdown_row, rows[1:])]
    return "\n".join([f"# {results.name}", "", *lines, "", *(f"- {line}" for line in _remarks(results)), ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def readme(results: Results) -> str:
    """Return the README that goes with the files of a recipe."""
    licence = ", ".join(f"{key}: {value}" for key, value in results.licence.items()) or "not stated in the file"
    warning = (
        "**Not to be deployed.** This is an experiment: most of the model's weights are missing, and its output is not fit "
        "for any use."
    )
    revision = f" at {results.revision}" if results.revision else ""
    lines = [
        *([warning, ""] if results.intent else []),
        markdown(results),
        f"Cut from `{results.source}`{revision}. Licence of the source: {licence}. It applies to the files made from it.",
        "",
    ]
    for step in results.steps:
        if step.sample is not None:
            fenced = "\n".join(f"    {line}" for line in step.sample.text.splitlines() or [""])
            lines += [f"`{step.file}`, greedy, after {step.sample.prompt!r}:", "", fenced, ""]
        lines += [f"- gate: {step.gate.verdict}", *(f"  - {check}" for check in step.gate.checks), ""]
    return "\n".join(lines)
