"""Re-shard a model: one file into shards, many shards into fewer, or into one.

Works on remote models too, and resumes. Without a size the result is one file.

    python reshard.py model.gguf model-split.gguf --max-shard-size 4000000000
    python reshard.py model-00001-of-00014.gguf model.gguf
"""

from __future__ import annotations

import argparse

import ggufslice as gs


def main() -> None:
    """Write the same tensors and metadata, in other files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--max-shard-size", type=int, metavar="BYTES")
    args = parser.parse_args()
    with gs.open(args.source) as model:
        plan = model.plan(max_shard_size=args.max_shard_size)
        model.write(args.out, max_shard_size=args.max_shard_size)
        print(f"{len(model.shards)} files in, {len(plan.files)} out, {plan.file_bytes:,} bytes")


if __name__ == "__main__":
    main()
