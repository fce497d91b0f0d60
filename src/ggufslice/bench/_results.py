"""A results file: everything that was measured, and the checks that its numbers agree with each other."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice._records import load, plain
from ggufslice.bench._gate import Gate, judge

# The types of fields are read at run time, when a record is made of JSON.
from ggufslice.bench._machine import Machine  # noqa: TC001
from ggufslice.bench._perplexity import Perplexity  # noqa: TC001
from ggufslice.bench._quantize import Quantized  # noqa: TC001
from ggufslice.bench._server import Sample  # noqa: TC001
from ggufslice.bench._speed import Bench, Speed  # noqa: TC001
from ggufslice.errors import BenchError, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from ggufslice.receipt import Receipt

__all__ = ["Change", "Fetched", "Figures", "Results", "Step", "traffic"]

_VERSION = 1
_CLOSE = 1e-6
_ROUNDED = 2e-3  # llama-bench prints samples with six digits


def traffic(token_bytes: float, per_second: float) -> float:
    """Return the weight traffic of decoding in GB/s (10^9 bytes): bytes read for a token times tokens a second."""
    return token_bytes * per_second / 1e9


@attrs.frozen(kw_only=True)
class Figures:
    """What is left of the model in the measured file: the receipt's figures, in its words and units.

    Parameters
    ----------
    layers, source_layers, experts, source_experts, experts_used
        Kept, and of how many.
    file_bytes, tensor_bytes, token_bytes
        Of the file; of its tensors; of the weights that are read for a token.
    n_params, source_params
        Present, and the denominator of `declared`.
    declared, real, missing
        Bits per parameter of the source, bits per parameter present, part of the weights that isn't there.
    """

    layers: int
    source_layers: int | None
    experts: int
    source_experts: int | None
    experts_used: int
    file_bytes: int
    tensor_bytes: int
    token_bytes: int
    n_params: int
    source_params: int | None
    declared: float | None
    real: float | None
    missing: float | None

    @classmethod
    def of(cls, receipt: Receipt) -> Figures:
        """Take the figures out of a receipt."""
        source = receipt.origin.source if receipt.origin else None
        return cls(
            layers=receipt.block_count,
            source_layers=source.block_count if source else None,
            experts=receipt.expert_count,
            source_experts=source.expert_count if source else None,
            experts_used=receipt.expert_used_count,
            file_bytes=receipt.file_bytes,
            tensor_bytes=receipt.tensor_bytes,
            token_bytes=receipt.token_bytes,
            n_params=receipt.n_params,
            source_params=receipt.source_parameters,
            declared=receipt.declared,
            real=receipt.real,
            missing=receipt.missing,
        )


@attrs.frozen(kw_only=True)
class Fetched:
    """What was fetched to make the cut.

    Parameters
    ----------
    received
        Bytes that arrived, from this and earlier runs of the same write.
    never_requested
        Tensor bytes of the source that were not asked for.
    requests
        Range requests.
    seconds
        Wall time.
    resumed
        Bytes that an earlier run had written: their time isn't in `seconds`.
    """

    received: int
    never_requested: int | None
    requests: int
    seconds: float
    resumed: int = 0

    @property
    def rate(self) -> float | None:
        """Bytes a second."""
        return self.received / self.seconds if self.seconds > 0 and self.received else None


@attrs.frozen(kw_only=True)
class Step:
    """One measured rung.

    Parameters
    ----------
    name
        Of the rung.
    key
        Digest of all that it depends on: a finished step with the same key isn't measured again.
    file
        Name of the measured file.
    vocabulary
        Tokens of the vocabulary.
    figures, quantized, bench, sample, perplexity, gate, machine
        What was found; None for what wasn't measured.
    """

    name: str
    key: str
    file: str
    vocabulary: int | None
    figures: Figures
    quantized: Quantized | None
    bench: Bench | None
    sample: Sample | None
    perplexity: Perplexity | None
    gate: Gate
    machine: Machine

    @property
    def decode(self) -> Speed | None:
        """Speed of decoding."""
        return self.bench.decode if self.bench else None

    @property
    def prefill(self) -> Speed | None:
        """Speed of prefill."""
        return self.bench.prefill if self.bench else None

    @property
    def traffic(self) -> float | None:
        """Effective weight traffic while decoding, in GB/s."""
        return traffic(self.figures.token_bytes, self.decode.per_second) if self.decode else None


@attrs.frozen
class Change:
    """What changed from one step to the next.

    Parameters
    ----------
    names
        The two steps.
    layers, decode, declared
        By what factor: fewer layers, faster decoding, a smaller declared figure. None where one of both wasn't measured.
    """

    names: tuple[str, ...]
    layers: float | None
    decode: float | None
    declared: float | None

    def __str__(self) -> str:
        def times(value: float | None, words: str) -> str:
            return f"{words} not measured" if value is None else f"{value:.2f}x {words}"

        parts = (
            times(self.layers, "fewer layers"),
            times(self.decode, "decode"),
            times(self.declared, "smaller declared figure"),
        )
        return f"{self.names[0]} to {self.names[1]}: {', '.join(parts)}"


@attrs.frozen(kw_only=True)
class Results:
    """A ladder, measured.

    Parameters
    ----------
    name, intent
        Of the recipe.
    source, revision
        Where the source is, and its commit.
    licence
        ``general.license*`` of the source.
    recipe
        What was done, as the recipe describes itself.
    fetched
        What was fetched; None where the source is a local file.
    steps
        The rungs.
    ggufslice
        Version.
    """

    name: str
    intent: str
    source: str
    revision: str | None
    licence: dict[str, str]
    recipe: dict[str, Any]
    fetched: Fetched | None
    steps: tuple[Step, ...]
    ggufslice: str

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Results:
        """Read a results file.

        Raises
        ------
        FormatError
            Not one.
        """
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FormatError(f"{path} can't be read as a results file: {error}") from None
        if not isinstance(data, dict) or data.pop("results", None) != _VERSION:
            raise FormatError(f"{path} is not a results file of version {_VERSION}")
        return load(cls, data, str(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the results as JSON."""
        # A lone surrogate, from bytes of a file that aren't UTF-8, is written as JSON's own escape.
        Path(path).write_text(self.to_json(), encoding="utf-8", errors="backslashreplace")

    def to_json(self) -> str:
        """Return the results as JSON."""
        return json.dumps({"results": _VERSION, **plain(self)}, indent=1, ensure_ascii=False) + "\n"

    @property
    def bandwidth(self) -> float | None:
        """What the machine's memory can deliver at most, in GB/s, as stated in the recipe."""
        value = (self.recipe.get("bench") or {}).get("bandwidth")
        return float(value) if isinstance(value, int | float) else None

    @property
    def changes(self) -> tuple[Change, ...]:
        """What changed between neighbours."""

        def ratio(a: float | None, b: float | None) -> float | None:
            return a / b if a and b else None

        return tuple(
            Change(
                (a.name, b.name),
                ratio(a.figures.layers, b.figures.layers),
                ratio(b.decode.per_second, a.decode.per_second) if a.decode and b.decode else None,
                ratio(a.figures.declared, b.figures.declared),
            )
            for a, b in pairwise(self.steps)
        )

    def check(self) -> None:
        """Refuse numbers that don't agree with each other.

        Raises
        ------
        BenchError
            Names what doesn't.
        """
        wrong = [f"{step.name}: {text}" for step in self.steps for text in self._step_conflicts(step)]
        wrong += self._fetch_conflicts()
        if not self.steps:
            wrong.append("no step was measured")
        if wrong:
            raise BenchError(f"the results of {self.name!r} don't agree with each other: {'; '.join(wrong)}")

    def _fetch_conflicts(self) -> Iterator[str]:
        if (f := self.fetched) and (min(f.received, f.requests, f.never_requested or 0, f.resumed) < 0 or f.seconds < 0):
            yield f"a transfer of {f.received} bytes in {f.requests} requests and {f.seconds} s can't be"

    def _step_conflicts(self, step: Step) -> Iterator[str]:
        yield from _figure_conflicts(step.figures)
        if step.quantized and sum(step.quantized.types.values()) != step.figures.n_params:
            yield f"the quantized tensors hold {sum(step.quantized.types.values())} parameters, not {step.figures.n_params}"
        if step.bench:
            yield from _bench_conflicts(step.bench, step.figures)
        if step.sample and step.sample.tokens and len(step.sample.tokens) != step.sample.returned:
            yield f"{len(step.sample.tokens)} tokens are listed, and {step.sample.returned} were returned"
        settings = self.recipe.get("bench") or {}
        gate = judge(
            step.sample,
            step.perplexity,
            vocabulary=step.vocabulary,
            max_perplexity=settings.get("max_perplexity"),
            experimental=bool(self.intent),
        )
        if gate != step.gate:
            yield f"the gate says {step.gate.verdict}, and its numbers say {gate.verdict}"


def _figure_conflicts(f: Figures) -> Iterator[str]:
    bits = 8 * f.tensor_bytes
    for name, stated, whole in (("declared", f.declared, f.source_params), ("real", f.real, f.n_params)):
        if not _same(stated, bits / whole if whole else None):
            yield f"{name} is {stated}, but 8 x {f.tensor_bytes} / {whole} isn't"
    if (f.missing is None) != (f.source_params is None) or (f.missing is not None and not f.missing <= 1):
        yield f"missing is {f.missing}, which no part of the weights is"
    if f.missing is not None and f.source_params and f.missing < 1 - f.n_params / f.source_params - _CLOSE:
        yield f"missing is {f.missing}, less than the {f.source_params - f.n_params} parameters that aren't there"
    if f.file_bytes < f.tensor_bytes:
        yield f"the file has {f.file_bytes} bytes, fewer than its tensors with {f.tensor_bytes}"
    if f.token_bytes > f.tensor_bytes:
        yield f"a token reads {f.token_bytes} bytes of {f.tensor_bytes}"
    if f.source_layers is not None and f.layers > f.source_layers:
        yield f"{f.layers} of {f.source_layers} layers"
    if f.source_experts is not None and f.experts > f.source_experts:
        yield f"{f.experts} of {f.source_experts} experts"


def _bench_conflicts(bench: Bench, f: Figures) -> Iterator[str]:
    if bench.model_params not in (None, f.n_params):
        yield f"llama-bench counted {bench.model_params} parameters, the receipt {f.n_params}"
    if bench.model_bytes not in (None, f.tensor_bytes):
        yield f"llama-bench counted {bench.model_bytes} tensor bytes, the receipt {f.tensor_bytes}"
    for name, speed in (("prefill", bench.prefill), ("decode", bench.decode)):
        if speed is None:
            continue
        if speed.samples and not _same(sum(speed.samples) / len(speed.samples), speed.per_second, _ROUNDED):
            yield f"{name} is {speed.per_second} tokens/s, which isn't the mean of {list(speed.samples)}"
        rows = [row for row in bench.raw if _same(row.get("avg_ts"), speed.per_second)]
        if not rows:
            yield f"{name} is {speed.per_second} tokens/s, which no row of llama-bench says"
        elif speed.deviation is not None and not any(_same(row.get("stddev_ts"), speed.deviation) for row in rows):
            yield f"{name} deviates by {speed.deviation} tokens/s, which no row of llama-bench says"


def _same(a: Any, b: float | None, tolerance: float = _CLOSE) -> bool:
    if a is None or b is None:
        return a is b
    return isinstance(a, int | float) and math.isclose(a, b, rel_tol=tolerance)
