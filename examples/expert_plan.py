"""A plan of experts by layer, from an importance matrix: print how much of each layer's traffic the kept experts carried.

An importance matrix counts how many tokens each expert of each layer saw. Keeping the most used ones is a start; how much
they carried tells in which layers that is a fair summary and in which it isn't.

    python expert_plan.py model.imatrix.gguf plan.json --experts 16
    ggufslice build hf://org/Model-GGUF/Q4_K_M small.gguf --experts @plan.json
"""

from __future__ import annotations

import argparse

import ggufslice as gs


def counts(imatrix: gs.GGUF) -> dict[int, list[float]]:
    """Return, for each layer, how many tokens went to each expert; only the counts are fetched."""
    suffix = ".ffn_down_exps.weight.counts"
    layers = {int(name.split(".")[1]): tensor for name, tensor in imatrix.items() if name.endswith(suffix)}
    return {layer: tensor.numpy().ravel().tolist() for layer, tensor in sorted(layers.items())}


def main() -> None:
    """Make the plan, and say what it keeps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("imatrix")
    parser.add_argument("plan")
    parser.add_argument("--experts", type=int, required=True)
    args = parser.parse_args()
    with gs.open(args.imatrix) as imatrix:
        plan = gs.ExpertPlan.from_imatrix(imatrix, args.experts)
        for layer, seen in counts(imatrix).items():
            kept = list(plan.keep[layer])
            carried = sum(seen[i] for i in kept) / sum(seen)
            print(f"layer {layer:3}: {carried:6.1%} of tokens by {len(kept)} of {len(seen)} experts: {kept}")
    plan.save(args.plan)


if __name__ == "__main__":
    main()
