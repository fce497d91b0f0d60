"""Perplexity on a text, and KL divergence from a reference model, with llama-perplexity."""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ggufslice.bench._binaries import Llama
from ggufslice.bench._process import Finished, run, tail
from ggufslice.errors import BenchError

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Divergence", "Perplexity", "kl_divergence", "perplexity"]

# llama-perplexity's log is written by a thread of its own, and its last lines can be lost at its end; then it is run again.
_ATTEMPTS = 3
_TOO_SHORT = "you need at least"
_NUMBER = r"(-?(?:[\d.]+(?:e[+-]?\d+)?|nan|inf))"


@attrs.frozen
class Perplexity:
    """Perplexity on a text.

    Parameters
    ----------
    value
        The perplexity; None where llama-perplexity got no number, which a model does that makes NaN.
    error
        Its standard error.
    ctx
        Tokens of a chunk.
    chunks
        Chunks that were evaluated.
    text
        The text's file name.
    """

    value: float | None
    error: float | None
    ctx: int
    chunks: int
    text: str


@attrs.frozen
class Divergence:
    """How far a model's next-token probabilities are from a reference's, on a text.

    Parameters
    ----------
    mean
        Mean Kullback-Leibler divergence in nats, None where it is no number.
    error
        Its standard error.
    same_top
        Part of the tokens for which both have the same likeliest token, 0 to 1.
    """

    mean: float | None
    error: float | None
    same_top: float | None


def perplexity(
    model: str | PathLike[str],
    text: str | PathLike[str],
    *,
    ctx: int = 512,
    chunks: int | None = None,
    ngl: int = 99,
    llama: Llama | None = None,
    timeout: float | None = None,
) -> Perplexity:
    """Measure a model's perplexity on a text.

    Parameters
    ----------
    model
        A GGUF file; of shards, the first.
    text
        A text file, of two chunks at least.
    ctx
        Tokens of a chunk.
    chunks
        The most chunks to evaluate; None takes all.
    ngl
        Layers to offload.
    llama
        Where the programs are.
    timeout
        Seconds; None allows four hours.

    Raises
    ------
    BenchError
        llama-perplexity is missing, fails, or gives no result, as of a text that is too short.
    """
    for _ in range(_ATTEMPTS):
        done = _run(model, text, ctx=ctx, chunks=chunks, ngl=ngl, llama=llama, timeout=timeout)
        if (made := _estimate(done, ctx, Path(text).name)) is not None:
            return made
        if _TOO_SHORT in done.text:
            break
    raise BenchError(f"llama-perplexity gave no perplexity of {Path(text)} for {model}. {tail(done.text)}")


def _estimate(done: Finished, ctx: int, name: str) -> Perplexity | None:
    steps = re.findall(rf"\[(\d+)\]{_NUMBER}", done.stdout)
    n, last = (int(steps[-1][0]), _finite(steps[-1][1])) if steps else (0, None)
    if found := re.search(rf"Final estimate: PPL = {_NUMBER} \+/- {_NUMBER}", done.text):
        return Perplexity(_finite(found[1]), _finite(found[2]), ctx, n, name)
    # Of a model that makes NaN there is a message instead of an estimate. Else the estimate is the last of the steps.
    if n and (last is None or n == _announced(done)):
        return Perplexity(last, None, ctx, n, name)
    return None


def _announced(done: Finished) -> int | None:
    """Return how many chunks llama-perplexity said that it would evaluate."""
    found = re.search(r"over (\d+) chunks", done.text)
    return int(found[1]) if found else None


def kl_divergence(
    model: str | PathLike[str],
    reference: str | PathLike[str],
    text: str | PathLike[str],
    *,
    ctx: int = 512,
    chunks: int = 16,
    ngl: int = 99,
    llama: Llama | None = None,
    timeout: float | None = None,
) -> Divergence:
    """Measure how far a model's probabilities are from those of a reference with the same vocabulary.

    Parameters
    ----------
    model, reference
        GGUF files; of shards, the first.
    text, ctx, ngl, llama, timeout
        As for `perplexity`.
    chunks
        The most chunks to evaluate: the reference's probabilities are written to a temporary file of two bytes for each
        token of the vocabulary and half of the tokens of a chunk.

    Raises
    ------
    BenchError
        llama-perplexity is missing, fails, or gives no result.
    """
    with tempfile.TemporaryDirectory(prefix="ggufslice-") as folder:
        logits = Path(folder) / "reference.kld"
        save = ["--kl-divergence-base", str(logits)]
        _run(reference, text, *save, ctx=ctx, chunks=chunks, ngl=ngl, llama=llama, timeout=timeout)
        if not logits.is_file():
            raise BenchError(f"llama-perplexity wrote no probabilities of {reference} on {text}: is the text too short?")
        for _ in range(_ATTEMPTS):
            done = _run(model, text, *save, "--kl-divergence", ctx=ctx, chunks=chunks, ngl=ngl, llama=llama, timeout=timeout)
            if (made := _divergence(done)) is not None:
                return made
    raise BenchError(f"llama-perplexity gave no KL divergence of {model} from {reference} on {text}. {tail(done.text)}")


def _divergence(done: Finished) -> Divergence | None:
    mean = re.search(rf"Mean\s+KLD:\s+{_NUMBER} ±\s+{_NUMBER}", done.text)
    top = re.search(rf"Same top p:\s+{_NUMBER}", done.text)
    if mean and top:
        values = [_finite(text) for text in (mean[1], mean[2], top[1])]
    else:
        # The table's last row has the same means: chunk, then five columns of value and error, KL divergence the third.
        rows = [re.findall(_NUMBER, line) for line in done.stdout.splitlines() if line.count("±") == 5]
        if not rows or len(rows[-1]) != 11 or int(rows[-1][0]) != _announced(done):
            return None
        values = [_finite(rows[-1][i]) for i in (5, 6, 9)]
    same = values[2]
    return Divergence(values[0], values[1], None if same is None else same / 100)


def _run(
    model: str | PathLike[str],
    text: str | PathLike[str],
    *more: str,
    ctx: int,
    chunks: int | None,
    ngl: int,
    llama: Llama | None,
    timeout: float | None,
) -> Finished:
    for path in (Path(model), Path(text)):
        if not path.is_file():
            raise BenchError(f"{path}: no such file")
    program = (llama or Llama()).tool("llama-perplexity")
    few = ["--chunks", chunks] if chunks is not None else []
    words = [program, "-m", model, "-f", text, "-c", ctx, "-ngl", ngl, *few, *more]
    return run(list(map(str, words)), timeout=timeout or 4 * 3600).check(f"llama-perplexity of {model}")


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
