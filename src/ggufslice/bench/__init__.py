"""Drive llama.cpp's own programs: quantize, measure, sample, and say what was measured on what.

`Llama` finds the programs. `quantize`, `bench`, `serve`, `perplexity` and `kl_divergence` run one of them each, with time
limits and output caps, and check what it says.
"""

from __future__ import annotations
