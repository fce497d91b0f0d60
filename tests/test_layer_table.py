"""What is in which layers, as a table and as values."""

from __future__ import annotations

from _views import opened
from ggufslice import keep_layers, layer_table
from ggufslice.summary import plain
from ggufslice.testing import TensorSpec, build_gguf, kimi_k3


def test_layers_with_equal_content_are_one_row_with_their_classes_below() -> None:
    metadata = {"general.architecture": "smollm3", "smollm3.block_count": 5}
    tensors = [TensorSpec("token_embd.weight", (32, 10), 8)]
    for block in range(5):
        tensors += [
            TensorSpec(f"blk.{block}.attn_norm.weight", (32,)),
            TensorSpec(f"blk.{block}.attn_q.weight", (32, 32), 8 if block == 4 else 1),
            TensorSpec(f"blk.{block}.ffn_up.weight", (32, 64), 8),
        ]
    # The fourth layer has no rope (llama.cpp b11434, src/models/smollm3.cpp), the fifth another type.
    # Q8_0 has 34 bytes for 32 weights. Attention: 1024 weights; dense: 2048 in 2176 bytes; norms: 32 in 128 bytes.
    assert layer_table.table(opened(build_gguf(metadata, tensors))) == [
        "layers  holds                      experts  parameters      bytes    bits  types",
        "0-2     attention, dense, rope                  9.31 K   13.06 kB  11.216  Q8_0, F16, F32",
        "          attention                             3.07 K    6.14 kB  16.000  F16",
        "          dense FFN                             6.14 K    6.53 kB   8.500  Q8_0",
        "          norms                                     96  384 bytes  32.000  F32",
        "3       attention, dense, no rope               3.10 K    4.35 kB  11.216  Q8_0, F16, F32",
        "          attention                             1.02 K    2.05 kB  16.000  F16",
        "          dense FFN                             2.05 K    2.18 kB   8.500  Q8_0",
        "          norms                                     32  128 bytes  32.000  F32",
        "4       attention, dense, rope                  3.10 K    3.39 kB   8.742  Q8_0, F32",
        "          attention                             1.02 K    1.09 kB   8.500  Q8_0",
        "          dense FFN                             2.05 K    2.18 kB   8.500  Q8_0",
        "          norms                                     32  128 bytes  32.000  F32",
        "-       outside of layers                          320  340 bytes   8.500  Q8_0",
        "          embeddings                               320  340 bytes   8.500  Q8_0",
    ]


def test_a_model_of_93_layers_is_a_few_groups() -> None:
    view = opened(build_gguf(*kimi_k3(width=16, vocab=300, experts=8, used=2)))
    groups = layer_table.groups(view)
    # Every fourth layer is attention, every twelfth keeps a checkpoint of the residual stream, layer 0 is dense.
    fourth, twelfth = set(range(3, 93, 4)), set(range(12, 93, 12))
    assert [(group.kind, set(group.layers), group.experts) for group in groups] == [
        (("recurrent", "dense", "residual checkpoint"), {0}, 0),
        (("recurrent", "MoE"), set(range(1, 93)) - fourth - twelfth, 8),
        (("attention", "MoE"), fourth, 8),
        (("recurrent", "MoE", "residual checkpoint"), twelfth, 8),
        ((), set(), 0),
    ]
    assert any(line.startswith("3,7,11,...,83,87,91 ") for line in layer_table.table(view))
    values = layer_table.plain(view)
    for total in ("n_params", "n_bytes"):
        assert sum(c[total] for group in values for c in group["classes"]) == sum(group[total] for group in values)
    assert sum(group["n_params"] for group in values) == view.n_params
    assert sum(group["n_bytes"] for group in values) == view.tensor_bytes


def test_a_cut_says_which_layers_of_how_many_it_has() -> None:
    view = opened(build_gguf(*kimi_k3(layers=12, width=16, vocab=300, experts=8, used=2)))
    whole, cut = plain(view), plain(view.pipe(keep_layers(4)))
    assert (whole["kept_layers"], whole["source_block_count"]) == (None, None)
    assert (list(cut["kept_layers"]), cut["source_block_count"]) == ([0, 1, 2, 3], 12)
    assert [group["layers"] for group in cut["layers"]] == [[0], [1, 2], [3], []]


def test_a_file_without_layers() -> None:
    assert layer_table.table(opened(build_gguf({"general.architecture": "zzz"}))) == [
        "layers  holds  experts  parameters  bytes  bits  types"
    ]
