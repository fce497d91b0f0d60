"""A minimal operation of your own: zero the bias that steers tokens away from popular experts.

Models that balance their experts with a selection bias (``exp_probs_b``) learned it for all of them. After most experts are
gone the bias says little, and some find that routing does better without it. It is one small F32 vector a layer, so this
is a literal and not a cut.

    python custom_op.py hf://org/Model-GGUF/Q4_K_M small.gguf --experts 16
"""

from __future__ import annotations

import argparse

import attrs

import ggufslice as gs
from ggufslice.spans import Literal


def zero_selection_bias(view: gs.GGUF) -> gs.GGUF:
    """Replace the selection biases with zeros, of the same type and size."""
    biases = [t for t in view.all_tensors if ".exp_probs_b" in t.name]
    if not biases:
        raise gs.UnsupportedCutError(f"{view.architecture} has no selection bias (exp_probs_b) to zero")
    zeroed = {t.name: attrs.evolve(t, pieces=[Literal(bytes(t.n_bytes))]) for t in biases}
    return view.evolve(
        tensors=[zeroed.get(t.name, t) for t in view.all_tensors], note=f"{len(biases)} selection biases zeroed"
    )


def main() -> None:
    """Cut experts, and zero the bias of those that stay."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--experts", type=int, required=True)
    args = parser.parse_args()
    cut = gs.open(args.source).pipe(gs.select_experts(args.experts), zero_selection_bias)
    print(cut.write(args.out))


if __name__ == "__main__":
    main()
