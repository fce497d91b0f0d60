"""Measure prefill and decode speed with llama-bench."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.bench._binaries import Llama
from ggufslice.bench._process import diagnose, run
from ggufslice.errors import BenchError

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Bench", "Speed", "bench"]


_NOISY = 0.05


@attrs.frozen
class Speed:
    """One measured speed.

    Parameters
    ----------
    tokens
        Tokens in a repetition.
    per_second
        Tokens a second: mean of the repetitions.
    deviation
        Standard deviation of the repetitions, in tokens a second; None for a single one.
    samples
        Tokens a second of each repetition.
    """

    tokens: int
    per_second: float
    deviation: float | None
    samples: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """Standard deviation over mean."""
        return None if self.deviation is None else self.deviation / self.per_second

    @property
    def noisy(self) -> bool:
        """Whether the spread is that of a machine that was doing something else too."""
        return (self.spread or 0.0) > _NOISY

    def __str__(self) -> str:
        spread = "one repetition" if self.spread is None else f"± {100 * self.spread:.1f}%"
        return f"{self.per_second:,.2f} tokens/s ({spread})"


@attrs.frozen
class Bench:
    """What llama-bench measured on a model.

    Parameters
    ----------
    prefill, decode
        Speeds; None for one that wasn't asked for.
    backends, devices
        What it ran on, in llama-bench's words.
    model_bytes, model_params
        Tensor bytes and parameters, as llama.cpp counts them.
    flags
        The options that it was given.
    warnings
        What is odd about the run, such as a crash behind the last row.
    raw
        llama-bench's own records; of the model's path, the file name.
    """

    prefill: Speed | None
    decode: Speed | None
    backends: str
    devices: str
    model_bytes: int | None
    model_params: int | None
    flags: str
    warnings: tuple[str, ...]
    raw: tuple[dict[str, Any], ...] = attrs.field(repr=False)


def bench(
    model: str | PathLike[str],
    *,
    p: int = 128,
    n: int = 128,
    r: int = 3,
    ngl: int = 99,
    device: str | None = None,
    llama: Llama | None = None,
    timeout: float | None = None,
) -> Bench:
    """Measure a model's speed.

    Parameters
    ----------
    model
        A GGUF file; of shards, the first.
    p, n
        Tokens of the prompt and tokens to generate; 0 leaves that measurement out.
    r
        Repetitions.
    ngl
        Layers to offload. On a machine without a GPU this changes nothing, and the record says that the backend was the CPU.
    device
        A device that must be used, as ``llama-bench --list-devices`` names it, or ``none`` for the CPU alone. None leaves
        the choice to llama.cpp.
    llama
        Where the programs are.
    timeout
        Seconds; None allows an hour, and a second for every 10 MB of the file.

    Raises
    ------
    BenchError
        llama-bench is missing, fails, doesn't answer with the rows that were asked for, or ran elsewhere than asked.
    """
    if p < 0 or n < 0 or not p + n or r < 1:
        raise ValueError(f"nothing to measure with p={p}, n={n}, r={r}")
    llama = llama or Llama()
    path = Path(model)
    if not path.is_file():
        raise BenchError(f"{path}: no such model file")
    if device not in {None, "none"} and not any(d.startswith(f"{device}:") for d in llama.devices()):
        known = ", ".join(d.partition(":")[0] for d in llama.devices()) or "none: this build can only use the CPU"
        raise BenchError(f"llama-bench has no device {device}; it has {known}")
    flags = ["-p", p, "-n", n, "-r", r, "-ngl", ngl, "-ctk", "f16", "-ctv", "f16", *(["-dev", device] if device else [])]
    words = list(map(str, flags))
    limit = 3600 + path.stat().st_size / 1e7 if timeout is None else timeout
    done = run([llama.tool("llama-bench"), "-m", path, *words, "-o", "jsonl"], timeout=limit)
    rows = parse_rows(done.stdout)
    prefill = _speed(rows, p, 0) if p else None
    decode = _speed(rows, 0, n) if n else None
    missing = [name for asked, name, got in ((p, "prefill", prefill), (n, "decode", decode)) if asked and got is None]
    if missing:
        raise BenchError(
            f"llama-bench gave no {' and no '.join(missing)} row of -p {p} -n {n} for {path}: "
            f"{diagnose(done.command[0], done.returncode, done.stderr or done.stdout)}"
        )
    crash = [f"after its rows: {diagnose(done.command[0], done.returncode, done.stderr)}"] if done.returncode else []
    _compare(rows, ngl, device)
    first = rows[0]
    return Bench(
        prefill=prefill,
        decode=decode,
        backends=str(first.get("backends", "not stated")),
        devices=str(first.get("devices", "not stated")),
        model_bytes=_whole(first.get("model_size")),
        model_params=_whole(first.get("model_n_params")),
        flags=" ".join(words),
        warnings=tuple(crash),
        raw=tuple(row | {"model_filename": path.name} for row in rows),
    )


def parse_rows(text: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects of llama-bench; backends print others between them."""
    rows = []
    for line in text.splitlines():
        if line.lstrip().startswith("{"):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict) and "avg_ts" in row:
                rows.append(row)
    return rows


def _speed(rows: list[dict[str, Any]], p: int, n: int) -> Speed | None:
    """Return the speed of the row of that test, or None where there is none or its numbers can't be a speed."""
    row = next((row for row in rows if (row.get("n_prompt"), row.get("n_gen")) == (p, n)), None)
    if row is None or (mean := _positive(row.get("avg_ts"))) is None:
        return None
    samples = tuple(float(s) for s in row.get("samples_ts") or () if _positive(s))
    deviation = row.get("stddev_ts")
    known = len(samples) > 1 and isinstance(deviation, int | float) and math.isfinite(deviation)
    return Speed(p + n, mean, float(deviation) if known and deviation is not None else None, samples)


def _positive(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if good else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _compare(rows: list[dict[str, Any]], ngl: int, device: str | None) -> None:
    """Refuse rows of another place than the one asked for: they'd be read as a slow machine."""
    for row in rows:
        if row.get("n_gpu_layers", ngl) != ngl:
            raise BenchError(f"llama-bench was asked for -ngl {ngl} and ran with {row['n_gpu_layers']}")
        used, backends = str(row.get("devices", device)), str(row.get("backends", ""))
        if device is not None and used != device:
            raise BenchError(f"llama-bench was asked to run on {device}, and ran on {used} (backends: {backends})")
        if device not in {None, "none"} and backends == "CPU":
            raise BenchError(
                f"llama-bench was asked to run on {device}, and only its CPU backend was there: was a backend library not "
                "loaded?"
            )
