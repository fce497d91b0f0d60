"""The immutable core: tensors, metadata, views and their lineage."""

from __future__ import annotations

import pickle
import struct
from contextlib import suppress
from itertools import product
from typing import Any

import attrs
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from _views import opened
from ggufslice import ops
from ggufslice.errors import FormatError, GGUFSliceError, MetadataKeyError, TensorNotFoundError, UnsupportedCutError
from ggufslice.spans import Literal, SourceRef, Span
from ggufslice.tensor import decode
from ggufslice.tensor_types import TensorType
from ggufslice.testing import TensorSpec, Typed, build_gguf, synthetic
from ggufslice.values import Record
from ggufslice.view import GGUF, Metadata, Tensor

REF = SourceRef("/model.gguf", 10_000)


def tensor(name: str = "t", ne: tuple[int, ...] = (32, 2, 4), type_: int = 8, start: int = 0) -> Tensor:
    size = TensorType(type_).n_bytes(int(np.prod(ne)))
    assert size is not None
    return Tensor(name, ne, type_, (Span(REF, start, start + size),))


def test_indexing_follows_numpy() -> None:
    t = tensor()  # 4 slabs of 2 rows of one Q8_0 block: 68 bytes each
    assert (t.ne, t.shape, t.n_elements, t.n_bytes) == ((32, 2, 4), (4, 2, 32), 256, 272)
    assert t[1].ne == (32, 2)
    assert t[1].pieces == (Span(REF, 68, 136),)
    assert t[-1].pieces == (Span(REF, 204, 272),)
    assert t[1:3].ne == (32, 2, 2)
    assert t[::2].pieces == (Span(REF, 0, 68), Span(REF, 136, 204))
    assert t[[3, 0]].pieces == (Span(REF, 204, 272), Span(REF, 0, 68))
    assert t[np.array([3, 0])] == t[[3, 0]]
    assert t[range(4)] == t
    assert t[[]].ne == (32, 2, 0)
    assert t[1][0].pieces == (Span(REF, 68, 102),)


@pytest.mark.parametrize("bad", [4, -5, [0, 4], True, [True], np.array([True, False, True, False]), np.zeros((2, 2), int)])
def test_a_bad_index_is_an_index_error_that_names_the_tensor(bad: Any) -> None:
    with pytest.raises(IndexError, match="tensor 't'"):
        tensor()[bad]


def test_what_lies_inside_blocks_or_is_unknown_is_not_sliced() -> None:
    with pytest.raises(UnsupportedCutError, match="inside Q8_0 blocks of 32"):
        tensor(ne=(64,))[0]
    unknown = Tensor("u", (256, 4), 153, (Span(REF, 0, 999),))
    assert unknown.n_bytes == 999
    with pytest.raises(UnsupportedCutError, match=r"UNKNOWN\(153\)"):
        unknown[0]
    with pytest.raises(IndexError, match="scalar"):
        tensor(ne=(), type_=0)[0]


def test_a_tensor_knows_its_size() -> None:
    with pytest.raises(ValueError, match="has 272 bytes, not 271"):
        Tensor("t", (32, 2, 4), 8, (Span(REF, 0, 271),))


def test_types_are_ints_with_names() -> None:
    assert TensorType(12) == GGMLQuantizationType.Q4_K
    assert (TensorType(12).name, TensorType(42).name, str(TensorType(200))) == ("Q4_K", "Q2_0", "UNKNOWN(200)")
    assert TensorType.parse("q1_0") == 41
    assert TensorType(41).n_bytes(256) == 36
    with pytest.raises(ValueError, match="Q9"):
        TensorType.parse("Q9")


@pytest.mark.parametrize(("type_", "dtype"), [(0, "f4"), (1, "f2"), (26, "i4"), (28, "f8")])
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_plain_types_decode_in_numpy_order(type_: int, dtype: str, byteorder: str) -> None:
    values = np.arange(6, dtype=dtype).reshape(2, 3)
    stored = values.astype(values.dtype.newbyteorder(">" if byteorder == "big" else "<")).tobytes()
    t = Tensor("t", (3, 2), type_, (Literal(stored),), byteorder)
    assert decode(t, stored).tolist() == values.tolist()
    assert decode(t, stored).dtype == np.dtype(dtype)


def test_q8_0_decodes_by_its_definition() -> None:
    # One block: a half-precision scale of 0.5, then 32 signed bytes.
    stored = np.float16(0.5).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes()
    t = Tensor("t", (32, 1), 8, (Literal(stored),))
    assert decode(t, stored).tolist() == [[v * 0.5 for v in range(-16, 16)]]
    with pytest.raises(UnsupportedCutError, match="big-endian"):
        decode(attrs.evolve(t, byteorder="big"), stored)


@pytest.mark.parametrize("type_", [42, 153])
def test_what_gguf_py_can_not_decode_is_a_clear_error(type_: int) -> None:
    stored = bytes(18)
    with pytest.raises(UnsupportedCutError, match="can't decode"):
        decode(Tensor("t", (64, 1), type_, (Literal(stored),)), stored)


def metadata() -> Metadata:
    return Metadata(
        [
            Record.of("general.architecture", "llama", "str"),
            Record.of("llama.block_count", 2, "u32"),
            Record.of("a.small", 7, "u8"),
            Record.of("a.list", [1, 2], "arr[i64]"),
            Record.of("a.flag", True, "bool"),
        ]
    )


def test_metadata_is_a_mapping_that_remembers_types_and_bytes() -> None:
    m = metadata()
    assert dict(m) == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "a.small": 7,
        "a.list": [1, 2],
        "a.flag": True,
    }
    assert (m.type("a.list"), m.type("a.small")) == ("arr[i64]", "u8")
    assert m.raw("a.small") == b"\x07\0\0\0\0\0\0\0a.small" + b"\0\0\0\0" + b"\x07"
    with pytest.raises(MetadataKeyError, match=r"no metadata key 'llama.block_cont'; did you mean 'llama.block_count'"):
        m["llama.block_cont"]


def test_a_changed_value_keeps_type_and_place_and_leaves_the_others_alone() -> None:
    m = metadata()
    changed = m.set({"a.small": 200, "new.text": "x"})
    assert list(changed) == [*m, "new.text"]
    assert changed.type("a.small") == "u8"
    assert [changed.raw(k) for k in m if k != "a.small"] == [m.raw(k) for k in m if k != "a.small"]
    assert changed.set({"a.small": 70_000}, types={"a.small": "u32"}).type("a.small") == "u32"
    assert list(m.remove(["a.small", "nope"])) == ["general.architecture", "llama.block_count", "a.list", "a.flag"]


@pytest.mark.parametrize(
    ("values", "types", "reason"),
    [
        ({"a.small": 300}, {}, "300 does not fit type u8"),
        ({"a.small": -1}, {}, "-1 does not fit"),
        ({"a.small": True}, {}, "the bool True"),
        ({"a.small": 1.5}, {}, "whole number"),
        ({"a.small": "7"}, {}, "whole number"),
        ({"a.flag": 1}, {}, "expected True or False"),
        ({"a.list": [2**63]}, {}, "does not fit type i64"),
        ({"a.list": [True]}, {}, "the bool True"),
        ({"a.list": 3}, {}, "expected a list"),
        ({"general.architecture": 3}, {}, "expected text"),
        ({"new": 3}, {}, "say which type"),
        ({"new": [3]}, {}, "say which type"),
        ({"new": []}, {}, "say which type"),
        ({"new": 3}, {"new": "int"}, "no value type is called 'int'"),
        ({"new": 2**40}, {"new": "i32"}, "does not fit type i32"),
        ({"new": 1e39}, {"new": "f32"}, "does not fit type f32"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(values: dict[str, Any], types: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(values))}.*{reason}"):
        metadata().set(values, types=types)


def model() -> GGUF:
    return GGUF(metadata(), [tensor("output.weight"), tensor("blk.0.attn_q.weight", start=272)])


def test_a_model_is_a_mapping_of_tensors() -> None:
    m = model()
    assert list(m.tensors) == ["output.weight", "blk.0.attn_q.weight"]
    assert len(m) == 2
    assert "output.weight" in m
    assert (m.architecture, m.block_count, m.expert_count, m.n_params, m.tensor_bytes) == ("llama", 2, 0, 512, 544)
    with pytest.raises(TensorNotFoundError, match=r"no tensor 'output.wight'; did you mean 'output.weight'"):
        m["output.wight"]
    with pytest.raises(ValueError, match="twice"):
        GGUF(metadata(), [tensor(), tensor()])


def test_views_are_values_that_pickle() -> None:
    m = model()
    m["output.weight"]  # fills the caches
    cut = m.evolve(metadata=m.metadata.set({"a.small": 9}), op='{"op":"x"}')
    for view in (m, cut):
        again = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own bytes
        assert again == view
        assert again["output.weight"] == view["output.weight"]
    assert model() == model()
    assert cut != m
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        m.version = 2  # type: ignore[misc]


def test_a_view_remembers_what_it_was() -> None:
    m = model()
    assert m.lineage is None
    assert m.base is m
    assert m.blocks == (0, 1)
    cut = m.evolve(op='{"op":"a"}', blocks=(1,)).evolve(op='{"op":"b"}', note="said")
    assert cut.base == m
    assert cut.blocks == (1,)
    assert cut.lineage is not None
    assert cut.lineage.ops == ('{"op":"a"}', '{"op":"b"}')
    assert cut.lineage.notes == ("said",)


def rename(view: GGUF) -> GGUF:
    return view.evolve(metadata=view.metadata.set({"general.name": "n"}))


def test_pipe_takes_any_callable_and_records_a_foreign_one() -> None:
    cut = model().pipe(rename, rename)
    assert cut.metadata["general.name"] == "n"
    assert cut.lineage is not None
    assert cut.lineage.ops == ('"custom:test_view.rename"',) * 2
    with pytest.raises(TypeError, match="returned int"):
        model().pipe(len)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", Typed(1 << 31, "u32")),
        ("block_count", Typed(-3, "i32")),
        ("block_count", Typed(1.5, "f32")),
        ("nextn_predict_layers", "two"),
        ("expert_count", Typed([4], "arr", "u32")),
        ("expert_used_count", True),
        ("expert_used_count", Typed([2, -1], "arr", "i32")),
        ("expert_used_count", Typed(["two"], "arr", "str")),
    ],
)
def test_counts_that_can_not_be_are_refused_before_anything_is_counted(key: str, value: Any) -> None:
    view = opened(build_gguf({"general.architecture": "llama", f"llama.{key}": value}, [TensorSpec("a", (8,))]))
    with pytest.raises(FormatError, match=rf"model\.gguf: llama\.{key} is .*, not a whole number from 0 to 65536"):
        _ = (view.block_count, view.nextn_count, view.expert_count, view.expert_used_count)


@pytest.mark.parametrize("architecture", ["qwen3moe", "deepseek2", "gemma3", "gpt-oss"])
def test_no_value_of_the_wrong_type_ends_in_an_error_that_is_not_ours(architecture: str) -> None:
    metadata, tensors = synthetic(architecture, layers=4, experts=4)
    cuts = (ops.select_experts([0, 1, 2]), ops.drop_layers([1]))
    refused = 0
    for key, (value, cut) in product(metadata, product(["text", 1.5, -3, True, [1, 2], ["a"], 0, 1 << 31], cuts)):
        with suppress(struct.error):  # a value that the writer can't write
            view = opened(build_gguf(metadata | {key: value}, tensors))
            try:
                view.pipe(cut).plan()
            except GGUFSliceError:
                refused += 1
    assert refused > 50
