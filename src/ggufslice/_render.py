"""A receipt as text, Markdown and plain values: how the figures are written, and the sentences that go with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.units import bytes_text, count_text, counted, numbers_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufslice.accounting import Transfer
    from ggufslice.provenance import Origin
    from ggufslice.receipt import Part, Receipt
    from ggufslice.view import GGUF

__all__ = ["kept", "markdown", "plain", "table", "text"]

_SMALLEST_BITS = 1.125  # of Q1_0, the narrowest tensor type: 18 bytes for 128 weights
_UNKNOWN = "unknown"
_HEAD = ("class", "type", "parameters", "bytes", "bits")


def kept(view: GGUF, origin: Origin | None) -> str | None:
    """Return in a few words what a cut kept of the first model, or None where that isn't known."""
    source = origin.source if origin else None
    if source is None:
        return None
    words = [
        f"{now} of {before} {what}"
        for now, before, what in (
            (view.block_count, source.block_count, "layers"),
            (view.expert_count, source.expert_count, "experts"),
        )
        if before
    ]
    return ", ".join(words) or None


def text(receipt: Receipt) -> str:
    """Return the receipt as text; the last three lines are the figures that belong side by side."""
    facts = list(_facts(receipt))
    width = max(len(label) for label, _ in facts)
    lines = [f"{receipt.name} ({receipt.architecture or 'no architecture'})", ""]
    lines += [f"{label:<{width}}  {value}" for label, value in facts]
    lines += ["", *table(receipt), ""]
    if receipt.claims:
        lines += ["claims in the metadata, beside what was measured", *(f"  {line}" for line in _claims(receipt)), ""]
    remarks = list(_remarks(receipt))
    if remarks:
        lines += [*(f"* {remark}" for remark in remarks), ""]
    return "\n".join(lines + _last_lines(receipt))


def table(receipt: Receipt) -> list[str]:
    """Return parameters, bytes and bits by class and type as aligned lines."""
    rows = [_HEAD, *_rows(receipt)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]


def markdown(receipt: Receipt) -> str:
    """Return the receipt as Markdown."""
    lines = [f"## {receipt.name}", "", "| | |", "|---|---|"]
    lines += [f"| {label} | {_escaped(value)} |" for label, value in _facts(receipt)]
    lines += ["", f"| {' | '.join(_HEAD)} |", "|---|---|--:|--:|--:|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(receipt)]
    if receipt.claims:
        lines += ["", "Claims in the metadata, beside what was measured:", ""]
        lines += [f"* {_escaped(line)}" for line in _claims(receipt)]
    remarks = [f"* {_escaped(remark)}" for remark in _remarks(receipt)]
    if remarks:
        lines += ["", *remarks]
    return "\n".join([*lines, "", "```", *_last_lines(receipt), "```", ""])


def plain(receipt: Receipt) -> dict[str, Any]:
    """Return the receipt as JSON-able values: bytes as integers, ratios unrounded, None for what isn't known."""
    fields = attrs.asdict(receipt)
    ratios = {
        "source_parameters": receipt.source_parameters,
        "declared_bits": receipt.declared,
        "real_bits": receipt.real,
        "missing": receipt.missing,
        "repeating_bits": receipt.repeating.bits,
    }
    transfer = None if receipt.transfer is None else {**fields["transfer"], **_totals(receipt.transfer)}
    parts = [{**attrs.asdict(part), "bits": part.bits} for part in receipt.parts]
    return fields | ratios | {"parts": parts, "transfer": transfer, "remarks": list(_remarks(receipt))}


def _totals(transfer: Transfer) -> dict[str, int]:
    return {name: getattr(transfer, name) for name in ("payload", "gap", "header", "wasted")}


def _facts(receipt: Receipt) -> Iterator[tuple[str, str]]:
    origin = receipt.origin
    if origin and (origin.source.name or origin.source.url):
        source = origin.source
        revision = f" at {source.revision}" if source.revision and source.revision not in (source.url or "") else ""
        yield "cut from", ", ".join(filter(None, (source.name, source.url))) + revision
    yield "layers", _layers(receipt)
    if receipt.expert_count:
        yield "experts", _experts(receipt)
    yield "parameters", count_text(receipt.n_params) + _of(receipt.source_parameters, count_text)
    if origin and origin.grafted:
        yield "grafted", f"{count_text(origin.grafted)} parameters that aren't the first model's"
    yield "file", _file(receipt)
    yield "read per token", f"{bytes_text(receipt.token_bytes)} of {bytes_text(receipt.tensor_bytes)} of weights"
    if receipt.never_requested is not None:
        whole = origin.source.tensor_bytes if origin else None
        yield "never requested", bytes_text(receipt.never_requested) + _of(whole, bytes_text)
    if receipt.transfer is not None:
        yield "transfer", _transfer(receipt.transfer)
    for key, value in receipt.licence:
        yield key.removeprefix("general."), value


def _of(whole: int | None, write: Any) -> str:
    return f" of {write(whole)}" if whole else ""


def _file(receipt: Receipt) -> str:
    parts = {"tensors": receipt.tensor_bytes, "metadata": receipt.metadata_bytes, "padding": receipt.padding_bytes}
    return f"{bytes_text(receipt.file_bytes)}: " + ", ".join(f"{name} {bytes_text(n)}" for name, n in parts.items())


def _layers(receipt: Receipt) -> str:
    source = receipt.origin.source.block_count if receipt.origin else None
    layers = receipt.origin.kept_layers if receipt.origin else None
    if layers is None:
        return f"{receipt.block_count}{_of(source, str)}"
    return f"{numbers_text(layers)}{_of(source, str)} ({len(layers)} kept)"


def _experts(receipt: Receipt) -> str:
    source = receipt.origin.source if receipt.origin else None
    before = source.expert_used_count if source else None
    used = f", {receipt.expert_used_count} used a token"
    if before is not None and before != receipt.expert_used_count:
        used += f" (the first model uses {before})"
    return f"{receipt.expert_count}{_of(source.expert_count if source else None, str)} in a layer{used}"


def _transfer(transfer: Transfer) -> str:
    rate = f" at {bytes_text(transfer.received / transfer.seconds)}/s" if transfer.seconds else ""
    moved = ", ".join(f"{name} {bytes_text(n)}" for name, n in _totals(transfer).items() if n)
    resumed = f", {bytes_text(transfer.resumed)} from an earlier run" if transfer.resumed else ""
    retries = f" ({transfer.retries} {'retry' if transfer.retries == 1 else 'retries'})" if transfer.retries else ""
    return (
        f"{bytes_text(transfer.received)} received ({moved or 'nothing'}){resumed}; "
        f"{counted(transfer.requests, 'request')}{retries} in {transfer.seconds:.1f} s{rate}"
    )


def _rows(receipt: Receipt) -> Iterator[tuple[str, ...]]:
    for part in receipt.parts:
        yield _row(part, part.tensor_class, part.tensor_type)
    for part in receipt.types:
        yield _row(part, "all", part.tensor_type)
    yield _row(receipt.repeating, receipt.repeating.tensor_class, "")
    yield ("everything", "", count_text(receipt.n_params), bytes_text(receipt.tensor_bytes), _bits(receipt.real))


def _row(part: Part, kind: str, type_: str) -> tuple[str, ...]:
    return kind, type_, count_text(part.n_params), bytes_text(part.n_bytes), _bits(part.bits)


def _bits(bits: float | None) -> str:
    return _UNKNOWN if bits is None else f"{bits:.3f}"


def _claims(receipt: Receipt) -> Iterator[str]:
    for claim in sorted(receipt.claims, key=lambda claim: claim.holds is not False):
        verdict = "  <- no longer holds" if claim.holds is False else ""
        yield f"{claim.key} = {claim.claimed}: {claim.measured}{verdict}"


def _remarks(receipt: Receipt) -> Iterator[str]:
    """Yield what a reader must know to take the figures for what they are."""
    origin, experts, used = receipt.origin, receipt.expert_count, receipt.expert_used_count
    if receipt.declared is not None and receipt.declared < _SMALLEST_BITS:
        yield (
            f"The declared figure is below {_SMALLEST_BITS} bits, the width of the smallest tensor type (Q1_0). Nothing can "
            "be stored that small: the rest is deletion, not quantization."
        )
    if 0 < experts <= used:
        yield (
            f"No more experts are kept ({experts}) than a token goes through ({used}): every token takes the same ones, so "
            "the router has nothing left to choose. It is a dense model in the shape of a mixture of experts."
        )
    if origin and origin.fragment:
        yield "This is a fragment: tensors were dropped by name, and it isn't meant to load."
    for message in receipt.forced:
        yield f"Forced: {message}"
    yield from receipt.notes
    if receipt.requantized:
        yield "Tensor types have changed since the cut: it was quantized afterwards, its bytes are no longer the parent's."
    if origin and origin.recipe and not origin.reproducible:
        foreign = ", ".join(op for op in origin.recipe if isinstance(op, str))
        yield f"The recipe can't be run again from the file alone: it has steps that aren't ggufslice's ({foreign})."


def _last_lines(receipt: Receipt) -> list[str]:
    declared = _UNKNOWN if receipt.declared is None else f"{receipt.declared:.4f}"
    missing = _UNKNOWN if receipt.missing is None else percent_text(receipt.missing)
    return [
        f"DECLARED bits/param  : {declared:<8} <- the tweet",
        f"REAL bits/param      : {_bits(receipt.real):<8} <- divide by what you actually shipped",
        f"weight volume missing: {missing}",
    ]


def _escaped(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
