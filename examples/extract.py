"""Take a part out of a model: its embeddings, or its head for multi-token prediction (MTP).

Only the bytes of that part are fetched. The result is a fragment: a valid GGUF with the model's metadata, to be read by
tools and not meant to be loaded as a model.

    python extract.py embeddings hf://org/Model-GGUF/Q4_K_M embeddings.gguf
    python extract.py mtp hf://org/Model-GGUF/Q4_K_M mtp.gguf
"""

from __future__ import annotations

import argparse

import ggufslice as gs


def pattern(model: gs.GGUF, part: str) -> str:
    """Return the regular expression that names the tensors of a part."""
    if part == "embeddings":
        return r"^(token_embd|output|output_norm)\."
    if not model.nextn_count:
        raise gs.UnsupportedCutError(f"{model.architecture} with {model.block_count} blocks has no MTP block")
    blocks = range(model.block_count - model.nextn_count, model.block_count)
    return rf"^blk\.({'|'.join(map(str, blocks))})\."


def main() -> None:
    """Extract, and say how little was fetched."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=["embeddings", "mtp"])
    parser.add_argument("source")
    parser.add_argument("out")
    args = parser.parse_args()
    with gs.open(args.source) as model:
        part = model.pipe(gs.keep_tensors(pattern(model, args.part)))
        part.write(args.out)
        print(f"{len(part)} of {len(model)} tensors, {part.tensor_bytes:,} of {model.tensor_bytes:,} bytes")


if __name__ == "__main__":
    main()
