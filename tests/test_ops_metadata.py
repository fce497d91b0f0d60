"""Operations on metadata: exact types, other records untouched, typos named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from _views import opened
from ggufslice.errors import MetadataKeyError, UnsupportedCutError
from ggufslice.ops import parse_assignment, remove_metadata, set_metadata
from ggufslice.testing import TensorSpec, Typed, build_gguf

VIEW = opened(
    build_gguf(
        {
            "general.architecture": "llama",
            "llama.block_count": Typed(2, "u32"),
            "odd": Typed([1, 2], "arr", "i8"),
            "lone": b"\xff\xfe",
            "scale": Typed(1.5, "f64"),
        }
    )
)


def test_a_key_keeps_its_place_and_type_and_the_others_their_bytes() -> None:
    after = set_metadata({"llama.block_count": 7, "odd": [-3], "scale": 2})(VIEW).metadata
    assert list(after) == list(VIEW.metadata)
    assert (after["llama.block_count"], after["odd"], after["scale"]) == (7, [-3], 2.0)
    assert (after.type("llama.block_count"), after.type("odd"), after.type("scale")) == ("u32", "arr[i8]", "f64")
    assert after.raw("lone") == VIEW.metadata.raw("lone")


def test_a_new_key_goes_to_the_end() -> None:
    after = set_metadata({"b": "text", "c": True, "a": 3}, types={"a": "u16"})(VIEW).metadata
    assert list(after)[-3:] == ["b", "c", "a"]
    assert [after.type(key) for key in "bca"] == ["str", "bool", "u16"]


def test_a_type_can_be_changed() -> None:
    after = set_metadata({"scale": 2}, types={"scale": "u8"})(VIEW).metadata
    assert (after.type("scale"), after["scale"]) == ("u8", 2)


@pytest.mark.parametrize(
    ("values", "types", "message"),
    [
        ({"a": 300}, {"a": "u8"}, "'a': 300 does not fit type u8"),
        ({"a": "x"}, {"a": "u8"}, "'a': expected a whole number"),
        ({"a": 1}, {"b": "u8"}, "types names 'b', to which no value is given"),
        ({"": 1}, {}, "at least one letter"),
        ({3: 1}, {}, "at least one letter"),
        ({"general.alignment": 48}, {}, "expected a power of two, got 48"),
        ({"general.alignment": 0}, {}, "expected a power of two, got 0"),
        ({"general.alignment": 64}, {"general.alignment": "u64"}, "has the type u32"),
    ],
)
def test_what_can_be_checked_is_checked_at_once(values: Any, types: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        set_metadata(values, types=types)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"new": 3}, "'new' is new: say which type"), ({"llama.block_count": -1}, "-1 does not fit type u32")],
)
def test_the_rest_is_checked_against_the_model(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        set_metadata(values)(VIEW)


def test_alignment_needs_no_type() -> None:
    after = set_metadata({"general.alignment": 64})(VIEW)
    assert (after.alignment, after.metadata.type("general.alignment")) == (64, "u32")


def test_keys_are_removed_and_typos_named() -> None:
    after = remove_metadata("odd", "lone")(VIEW)
    assert list(after.metadata) == ["general.architecture", "llama.block_count", "scale"]
    with pytest.raises(MetadataKeyError, match=r"no metadata key 'lama.block_count'; did you mean 'llama.block_count'"):
        remove_metadata("odd", "lama.block_count")(VIEW)
    for bad in ((), (3,), (["odd"],)):
        with pytest.raises(TypeError, match="expected names"):
            remove_metadata(*bad)


def test_operations_describe_and_compare_themselves() -> None:
    assert remove_metadata("a", "b").describe() == {"op": "remove_metadata", "keys": ["a", "b"]}
    assert set_metadata({"a": 1}).describe() == {"op": "set_metadata", "values": {"a": 1}}
    typed = set_metadata({"a": [1]}, types={"a": "arr[u8]"})
    said = json.loads(json.dumps(typed.describe()))
    assert set_metadata(said["values"], types=said["types"]) == typed
    assert repr(remove_metadata("a")) == "remove_metadata(keys=('a',))"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=u32:5", ("a.b", "u32", 5)),
        ("a=i8:-0x10", ("a", "i8", -16)),
        ("a=f32:1e-5", ("a", "f32", 1e-5)),
        ("a=bool:True", ("a", "bool", True)),
        ("a=bool:false", ("a", "bool", False)),
        ("a=str:", ("a", "str", "")),
        ("general.url=str:https://x=y:z", ("general.url", "str", "https://x=y:z")),
        ("a=arr[u16]:[1, 2]", ("a", "arr[u16]", [1, 2])),
        ('a=arr[str]:["x", "y"]', ("a", "arr[str]", ["x", "y"])),
    ],
)
def test_assignments_of_the_command_line(text: str, expected: tuple[str, str, Any]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b", "expected KEY=TYPE:VALUE"),
        ("a=5", "expected KEY=TYPE:VALUE"),
        ("=u32:5", "expected KEY=TYPE:VALUE"),
        ("a=u32:five", "'a': 'five' is not of type u32"),
        ("a=u8:256", "256 does not fit type u8"),
        ("a=bool:1", "'1' is not of type bool"),
        ("a=arr[u8]:1,2", "not of type arr"),
        ("a=arr[u8]:[true]", "got the bool True"),
        ("a=int:5", "no value type is called 'int'"),
    ],
)
def test_assignments_that_can_not_be(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_assignment(text)


@pytest.mark.parametrize("architecture", ["clip", "llama", "zzz"])
def test_files_without_layers_can_be_described_anew(architecture: str) -> None:
    view = opened(build_gguf({"general.architecture": architecture}, [TensorSpec("v.weight", (8,))]))
    assert view.pipe(set_metadata({"general.name": "Adapter"})).plan().warnings == ()


def test_a_model_keeps_its_layers() -> None:
    with pytest.raises(UnsupportedCutError, match=r"this model: .* takes 1 to 512 layers, not 0"):
        VIEW.pipe(set_metadata({"llama.block_count": 0})).plan()
