"""The packer against gguf-py's reader and against bytes written by hand."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from ggufslice.testing import TensorSpec, Typed, build_gguf, kimi_k3, split_gguf, synthetic, write_shards, write_sparse
from ggufslice.testing._data import BLOCKS

if TYPE_CHECKING:
    from pathlib import Path


def _read(path: Path, data: bytes) -> gguf.GGUFReader:
    path.write_bytes(data)
    return gguf.GGUFReader(path)


def test_every_byte_of_a_small_file() -> None:
    spec = TensorSpec("t", (2, 3), 24, data=b"abcdef")

    file = build_gguf({"k": Typed(7, "u8"), "s": b"\xff"}, [spec])

    head = (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
        + struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 7)
        + struct.pack("<Q", 1) + b"s" + struct.pack("<IQ", 8, 1) + b"\xff"
        + struct.pack("<Q", 1) + b"t" + struct.pack("<IQQIQ", 2, 2, 3, 24, 0)
    )  # fmt: skip
    assert len(head) == 24 + 14 + 22 + 41
    assert file == head.ljust(128, b"\0") + b"abcdef".ljust(32, b"\0")


def test_version_1_has_32_bit_lengths_and_big_endian_swaps_numbers() -> None:
    first = build_gguf({"k": Typed(1, "u16")}, [TensorSpec("t", (4,), 24, data=b"abcd")], version=1, pad_last=False)
    big = build_gguf({"k": Typed(1, "u16")}, [TensorSpec("t", (1,), 0)], byteorder="big", pad_last=False)
    little = build_gguf({"k": Typed(1, "u16")}, [TensorSpec("t", (1,), 0)], pad_last=False)

    assert first[:32] == b"GGUF" + struct.pack("<IIII", 1, 1, 1, 1) + b"k" + struct.pack("<IHI", 2, 1, 1) + b"t"
    assert big[:24] == b"GGUF" + struct.pack(">IQQ", 3, 1, 1)
    assert big[-4:] == little[-4:][::-1]


VALUES: dict[str, Any] = {
    "u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1, "i32": -(2**31), "u64": 2**64 - 1,
    "i64": -(2**63), "f32": 0.5, "f64": 1e300, "bool": True, "str": "ä",
}  # fmt: skip


def test_gguf_py_reads_every_type_and_array(tmp_path: Path) -> None:
    metadata = {f"scalar.{kind}": Typed(value, kind) for kind, value in VALUES.items()}
    metadata |= {f"array.{kind}": Typed([value, value], "arr", kind) for kind, value in VALUES.items()}
    nested = Typed([Typed([1, 2], "arr", "u8"), Typed([3], "arr", "u8")], "arr", "arr")

    reader = _read(tmp_path / "a.gguf", build_gguf({**metadata, "plain": [-1, 2], "n": nested}))

    names = {"str": "STRING", "f32": "FLOAT32", "f64": "FLOAT64", "bool": "BOOL"}
    for kind, value in VALUES.items():
        expected = names.get(kind, kind.replace("u", "UINT").replace("i", "INT"))
        for key, stored in ((f"scalar.{kind}", value), (f"array.{kind}", [value, value])):
            field = reader.get_field(key)
            assert field is not None
            assert field.contents() == stored
            assert field.types[-1].name == expected
    plain, n = reader.get_field("plain"), reader.get_field("n")
    assert plain is not None
    assert plain.contents() == [-1, 2]
    assert n is not None
    assert [int(part[0]) for part in n.parts if part.dtype == np.uint8 and len(part) == 1][-3:] == [1, 2, 3]


def test_values_without_a_type_of_their_own_are_refused() -> None:
    with pytest.raises(TypeError, match=r"\[\] has no GGUF type"):
        build_gguf({"k": []})
    with pytest.raises(ValueError, match="element_type is for arrays"):
        Typed(1, "u8", "u8")


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_gguf_py_reads_the_same_tensors(tmp_path: Path, byteorder: Any) -> None:
    specs = [TensorSpec("a", (8, 3, 2)), TensorSpec("b", (5,), 1), TensorSpec("c", (64, 2), gguf.GGMLQuantizationType.Q8_0)]

    reader = _read(tmp_path / "a.gguf", build_gguf({"general.alignment": 64}, specs, byteorder=byteorder))

    assert reader.alignment == 64
    for spec, tensor in zip(specs, reader.tensors, strict=True):
        assert (tensor.name, tuple(tensor.shape), tensor.tensor_type) == (spec.name, spec.ne, spec.type)
        assert tensor.data_offset % 64 == 0
        assert tensor.data.tobytes() == spec.tobytes(byteorder)
    floats = reader.tensors[0].data
    assert np.array_equal(floats.astype("<f4"), np.frombuffer(specs[0].tobytes(), "<f4").reshape(floats.shape))


def test_gaps_offsets_and_a_missing_tail() -> None:
    a, b = TensorSpec("a", (3,), 24, data=b"aaa"), TensorSpec("b", (3,), 24, data=b"bbb")

    plain, gapped = build_gguf({}, [a, b], pad_last=False), build_gguf({}, [a, b], gap=40, pad_last=False)
    swapped = build_gguf(
        {}, [TensorSpec("a", (3,), 24, data=b"aaa", offset=32), TensorSpec("b", (3,), 24, data=b"bbb", offset=0)]
    )

    assert plain[-35:] == b"aaa".ljust(32, b"\0") + b"bbb"
    assert gapped[-67:] == b"aaa".ljust(32, b"\0") + b"\xaa" * 32 + b"bbb"
    assert swapped[-64:] == b"bbb".ljust(32, b"\0") + b"aaa".ljust(32, b"\0")


def test_alignment_is_stated_when_it_is_not_the_default(tmp_path: Path) -> None:
    reader = _read(tmp_path / "a.gguf", build_gguf({"k": 1}, [TensorSpec("a", (1,)), TensorSpec("b", (1,))], alignment=128))

    assert reader.alignment == 128
    assert [tensor.data_offset % 128 for tensor in reader.tensors] == [0, 0]


@pytest.mark.parametrize("kind", sorted(BLOCKS))
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_generated_data_is_deterministic_and_finite(kind: int, byteorder: Any) -> None:
    spec = TensorSpec("t", (512, 64), kind)
    data = np.frombuffer(spec.tobytes(byteorder), "u1").copy()

    assert len(data) == spec.n_bytes == 512 * 64 // BLOCKS[kind][0] * BLOCKS[kind][1]
    assert TensorSpec("t", (512, 64), kind).tobytes(byteorder) == data.tobytes()
    assert TensorSpec("t", (512, 64), kind, seed=1).tobytes(byteorder) != data.tobytes()
    if byteorder == "little" and kind in _DEQUANTIZED:
        values = gguf.quants.dequantize(data.reshape(64, -1), gguf.GGMLQuantizationType(kind))
        assert np.isfinite(values).all()
        assert 0.001 < values.std() < 10


_DEQUANTIZED = {
    int(kind) for kind in (*gguf.quants._type_traits, gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
}


def test_the_reader_can_dequantize_most_types() -> None:
    assert len(_DEQUANTIZED & set(BLOCKS)) >= 24


def test_norms_are_around_one_and_zeros_are_zero() -> None:
    norm = np.frombuffer(TensorSpec("blk.0.attn_norm.weight", (1000,)).tobytes(), "<f4")

    assert abs(norm.mean() - 1) < 0.01
    assert TensorSpec("t", (32,), 8, fill="zeros").tobytes() == bytes(34)


def test_sizes_that_only_data_can_tell() -> None:
    with pytest.raises(ValueError, match="type 153 is unknown"):
        build_gguf({}, [TensorSpec("a", (256,), 153)])
    with pytest.raises(ValueError, match="rows of 33"):
        build_gguf({}, [TensorSpec("a", (33,), 8)])
    assert build_gguf({}, [TensorSpec("a", (256,), 153, data=b"x" * 70)], pad_last=False).endswith(b"x" * 70)
    assert TensorSpec("q2_0", (64, 3), 42).n_bytes == 54


@pytest.mark.parametrize("no_tensor_first", [False, True])
def test_shards_as_gguf_split_writes_them(tmp_path: Path, no_tensor_first: bool) -> None:  # noqa: FBT001 - a parameter
    metadata, specs = synthetic(layers=2, experts=4)

    files = split_gguf(metadata, specs, 3, no_tensor_first=no_tensor_first)

    readers = [_read(tmp_path / f"{number}.gguf", file) for number, file in enumerate(files)]
    assert [tensor.name for reader in readers for tensor in reader.tensors] == [spec.name for spec in specs]
    assert (len(readers[0].tensors) == 0) == no_tensor_first
    assert all(reader.tensors for reader in readers[1:])
    for number, reader in enumerate(readers):
        split = [field for name, field in reader.fields.items() if name.startswith("split.")]
        assert [(field.name, field.contents(), field.types[0].name) for field in split] == [
            ("split.no", number, "UINT16"),
            ("split.tensors.count", len(specs), "INT32"),
            ("split.count", 3, "UINT16"),
        ]
        assert len(reader.fields) - 3 == 3 + (len(metadata) if number == 0 else 0)
    paths = write_shards(tmp_path, "m", metadata, specs, 3, no_tensor_first=no_tensor_first)
    assert [path.name for path in paths] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert [path.read_bytes() for path in paths] == files


def test_more_shards_than_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="1 tensors can't fill 2 of 2 shards"):
        split_gguf({}, [TensorSpec("a", (1,))], 2)


def test_a_sparse_file_has_the_header_and_the_size_of_the_whole(tmp_path: Path) -> None:
    metadata, specs = synthetic()
    whole = build_gguf(metadata, specs)

    path = write_sparse(tmp_path / "a.gguf", metadata, specs)

    data = path.read_bytes()
    start = gguf.GGUFReader(path).tensors[0].data_offset
    assert len(data) == len(whole)
    assert data[:start] == whole[:start]
    assert not any(data[start:])


def test_kimi_k3_has_the_published_shape(tmp_path: Path) -> None:
    metadata, specs = kimi_k3()
    shapes = {spec.name: (spec.ne, spec.type) for spec in specs}
    total = sum(spec.n_bytes for spec in specs)
    routed = sum(spec.n_bytes for spec in specs if "_exps" in str(spec.name))

    assert 593.5e9 < total < 594.5e9
    assert 547.5e9 < routed < 548.5e9
    assert shapes["blk.1.ffn_gate_exps.weight"] == ((3584, 3072, 896), 19)
    assert [shapes[f"blk.{block}.ffn_down_exps.weight"] for block in (26, 27)] == [
        ((3072, 3584, 896), 16),
        ((3072, 3584, 896), 19),
    ]
    assert shapes["blk.0.attn_q.weight"][0] == shapes["blk.92.ssm_g.weight"][0] == (7168, 12288)
    assert shapes["blk.3.attn_q_a.weight"][0] == (7168, 1536)
    assert shapes["blk.3.attn_kv_a_mqa.weight"][0] == (7168, 576)
    assert shapes["blk.0.ffn_down.weight"][0] == (33792, 7168)
    assert metadata["kimi-k3.attention.head_count"] == 96
    assert metadata["kimi-k3.attention.head_count_kv"][:5] == [0, 0, 0, 1, 0]
    assert len(set(metadata["tokenizer.ggml.tokens"].value)) == 163_840
    assert len(metadata["tokenizer.ggml.merges"].value) == 163_840 - 257
    paths = write_shards(tmp_path, "k3", metadata, specs, 14, sparse=True)
    sizes = [path.stat().st_size for path in paths]
    assert len(sizes) == 14
    assert total < sum(sizes) < total + 20e6
    assert max(sizes) < 45e9
    assert sum(path.stat().st_blocks * 512 for path in paths) < 20e6


def test_a_tiny_kimi_k3_keeps_every_name_and_key_of_the_large_one() -> None:
    large, tiny = kimi_k3(), kimi_k3(width=16, vocab=512)

    assert list(large[0]) == list(tiny[0])
    assert [(spec.name, len(spec.ne)) for spec in large[1]] == [(spec.name, len(spec.ne)) for spec in tiny[1]]
    assert 30e6 < sum(spec.n_bytes for spec in tiny[1]) < 45e6


def test_the_shared_kimi_k3_has_the_same_tensors(zoo: Path) -> None:
    ours = {str(spec.name).split(".", 2)[-1]: len(spec.ne) for spec in kimi_k3(layers=5, experts=4, width=64, vocab=300)[1]}
    theirs = {
        tensor.name.split(".", 2)[-1]
        for tensor in gguf.GGUFReader(zoo / "kimi-k3.gguf").tensors
        if not tensor.name.endswith(("scale", "attn_q.bias", "attn_k.bias", "attn_v.bias"))
    }

    assert set(ours) == theirs


def test_options_of_synthetic_models() -> None:
    metadata, specs = synthetic(
        "deepseek2", layers=3, experts=4, dense_lead=1, shared=2, mtp=1, attention_bias=True, router_bias=True,
        expert_bias=True, selection_bias=True, scales=True, tensor_type=8, expert_type=2,
        metadata={"general.name": None, "general.license": "mit"},
        tensors=[TensorSpec("output.weight", (1,)), TensorSpec("x", (1,))],
    )  # fmt: skip
    shapes = {spec.name: (spec.ne, spec.type) for spec in specs}

    assert metadata["deepseek2.block_count"] == 4
    assert metadata["deepseek2.nextn_predict_layers"] == 1
    assert metadata["deepseek2.leading_dense_block_count"] == 1
    assert "general.name" not in metadata
    assert metadata["general.license"] == "mit"
    assert "blk.0.ffn_gate.weight" in shapes
    assert "blk.0.ffn_gate_exps.weight" not in shapes
    assert shapes["blk.1.ffn_down_exps.weight"] == ((32, 32, 4), 2)
    assert shapes["blk.1.ffn_down_exps.bias"] == ((32, 4), 0)
    assert shapes["blk.1.ffn_up_exps.scale"] == ((4,), 0)
    assert shapes["blk.1.exp_probs_b.bias"] == shapes["blk.1.ffn_gate_inp.bias"] == ((4,), 0)
    assert shapes["blk.1.ffn_up_shexp.weight"] == ((32, 64), 8)
    assert shapes["blk.1.attn_q.bias"] == ((32,), 0)
    assert shapes["blk.3.nextn.eh_proj.weight"] == ((64, 32), 8)
    assert shapes["output.weight"] == ((1,), 0)
    assert specs[-1].name == "x"
