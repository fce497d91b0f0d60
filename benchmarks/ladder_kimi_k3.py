"""The ladder of 93, 24 and 12 layers on a synthetic Kimi-K3, from shards behind a loopback server to card and plot.

The real architecture with all its 93 layers and 896 experts a layer, at a small width: 16 billion parameters whose bytes are
holes in sparse files. Weights are zeros (``--random`` writes noise, and takes as much disk as the model is large), so the
sample says nothing, and speeds are those of llama.cpp on this machine at that width; the founding model is 28 times as wide.
It takes minutes and is no part of continuous integration:

    python benchmarks/ladder_kimi_k3.py --out /tmp/kimi-k3
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ggufslice as gs
from ggufslice.bench import run_recipe, text
from ggufslice.bench.pictures import draw_card, draw_ladder
from ggufslice.recipe import BenchSettings, Quantization, Recipe, Rung
from ggufslice.testing import RangeServer, kimi_k3, write_shards

# Rows that aren't whole blocks of Q1_0 at this width; at the founding width all are.
ODD_ROWS = {"attn_q_b": "f16", r"blk\.0\.ffn_down": "f16"}


def main() -> None:
    """Run the ladder and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the results go")
    parser.add_argument("--layers", default="93,24,12", help="layers of each rung; the first is how many the model has")
    parser.add_argument("--experts", type=int, default=896, help="experts of a layer")
    parser.add_argument("--keep", type=int, default=16, help="experts to keep")
    parser.add_argument(
        "--width", type=int, default=256, help="of the residual stream, the experts and the space they work in"
    )
    parser.add_argument("--tokens", type=int, default=64, help="tokens to measure with")
    parser.add_argument("--random", action="store_true", help="noise for weights, not holes")
    given = parser.parse_args()
    layers = [int(n) for n in given.layers.split(",")]
    model = kimi_k3(
        layers=layers[0],
        experts=given.experts,
        used=min(16, given.experts),
        width=given.width,
        latent=given.width,
        expert_ffn=given.width,
        vocab=512,
    )
    with tempfile.TemporaryDirectory() as name:
        shards = write_shards(Path(name), "Kimi-K3-synthetic", *model, 14, sparse=not given.random)
        with RangeServer(name) as server:
            recipe = Recipe(
                name=f"Synthetic Kimi-K3 of width {given.width}",
                source=server.url(shards[0].name),
                ops=[gs.select_experts(given.keep), gs.set_expert_used(2)],
                output="kimi-k3.gguf",
                intent="experimental",
                rungs=[Rung(f"L{n}", [gs.keep_layers(n)]) for n in layers],
                quantization=Quantization(type="Q1_0", allow_requantize=True, tensor_types=ODD_ROWS),
                bench=BenchSettings(prompt_tokens=given.tokens, generated_tokens=given.tokens, sample_tokens=16),
            )
            results = run_recipe(recipe, given.out, say=print)
    draw_card(results, given.out / "card.svg", given.out / "card.png")
    draw_ladder(results, given.out / "ladder.svg", given.out / "ladder.png")
    print(text(results))


if __name__ == "__main__":
    main()
