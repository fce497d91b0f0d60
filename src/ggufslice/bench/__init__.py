"""Drive llama.cpp's own programs: quantize, measure, sample, and say what was measured on what.

======================================== ==================================================================
`Llama`                                  finds the programs: a folder, ``$GGUFSLICE_LLAMA_DIR``, PATH
`quantize`, `bench`, `serve`             run one program each, and check what it says
`perplexity`, `kl_divergence`            on a text
`judge`                                  the gate: health and degeneration of a sample
`run_recipe`                             all of it, for each rung of a recipe's ladder; resumable
`Results`                                what was measured, and whether its numbers agree
======================================== ==================================================================

Programs run without a terminal, with time limits and output caps, in process groups of their own that are ended whatever
happens. The pictures are in `ggufslice.bench.pictures`, which needs the extra ``card``.
"""

from __future__ import annotations

from ggufslice.bench._binaries import Llama
from ggufslice.bench._gate import Check, Gate, judge
from ggufslice.bench._ladder import run_recipe
from ggufslice.bench._machine import Machine
from ggufslice.bench._perplexity import Divergence, Perplexity, kl_divergence, perplexity
from ggufslice.bench._quantize import Fallback, Quantized, quantize
from ggufslice.bench._report import markdown, readme, text
from ggufslice.bench._results import Change, Fetched, Figures, Results, Step, traffic
from ggufslice.bench._server import Sample, Server, serve
from ggufslice.bench._speed import Bench, Speed, bench

__all__ = [
    "Bench",
    "Change",
    "Check",
    "Divergence",
    "Fallback",
    "Fetched",
    "Figures",
    "Gate",
    "Llama",
    "Machine",
    "Perplexity",
    "Quantized",
    "Results",
    "Sample",
    "Server",
    "Speed",
    "Step",
    "bench",
    "judge",
    "kl_divergence",
    "markdown",
    "perplexity",
    "quantize",
    "readme",
    "run_recipe",
    "serve",
    "text",
    "traffic",
]
