"""The keys that a cut file carries, and how they are read back."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from _views import opened, rewritten
from ggufslice.header import encode
from ggufslice.provenance import Origin, stamp
from ggufslice.testing import TensorSpec, build_gguf, kimi_k3, split_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ggufslice.view import GGUF

CUT = '{"op":"cut"}'


def cut(view: GGUF, blocks: Sequence[int], experts: Mapping[int, tuple[int, ...]] | None = None, **lineage: Any) -> GGUF:
    """Keep blocks (numbers of this view) and experts, and drop the other blocks' tensors; metadata of counts follow."""
    kept = {}
    for new, old in enumerate(blocks):
        prefix = f"blk.{old}."
        for name, tensor in view.items():
            if name.startswith(prefix):
                ids = (experts or {}).get(old)
                part = tensor[list(ids)] if ids and ("_exps" in name or "ffn_gate_inp" in name) else tensor
                kept[f"blk.{new}.{name.removeprefix(prefix)}"] = part
    counts = {view.key("block_count"): len(blocks)}
    if experts:
        counts[view.key("expert_count")] = len(next(iter(experts.values())))
    tensors = [
        type(t)(name, t.ne, t.tensor_type, t.pieces)
        for name, t in chain(((n, t) for n, t in view.items() if not n.startswith("blk.")), kept.items())
    ]
    return view.evolve(
        metadata=view.metadata.set(counts), tensors=tensors, op=CUT, blocks=tuple(blocks), experts=experts or {}, **lineage
    )


def keys(view: GGUF) -> dict[str, tuple[str, Any]]:
    """Return type and value of the keys of a stamped view, behind the prefix."""
    metadata = stamp(view).metadata
    return {k.removeprefix("ggufslice."): (metadata.type(k), metadata[k]) for k in metadata if k.startswith("ggufslice.")}


def test_a_view_without_operations_gets_no_key() -> None:
    view = opened(build_gguf(*synthetic(layers=2)))
    assert stamp(view, forced=["nothing"]) is view
    assert Origin.of(view) is None


def test_the_keys_have_exact_types_and_no_secrets() -> None:
    f16 = 1
    metadata, tensors = synthetic(layers=3, experts=4, used=2, dense_lead=1, tensor_type=f16)
    count = sum(a * b * c for a, b, c in ((*t.ne, 1, 1)[:3] for t in tensors))
    size = sum(t.n_bytes for t in tensors)
    files = split_gguf(metadata, tensors, 2)
    view = opened(*files, url="https://me:secret@example.org/m/model.gguf", validators={"commit": "c0ffee"})
    written = keys(cut(view, [0, 2], {2: (3, 1)}))
    shards = [
        {"file": f"model-{i:05d}-of-00002.gguf", "size": len(files[i - 1]), "commit": "c0ffee", "etag": f'"{i}"'}
        for i in (1, 2)
    ]
    assert json.loads(written["parent.validators"][1]) == shards
    types = {str(t.name).replace("blk.2.", "blk.1."): t.type for t in tensors if "blk.1." not in str(t.name)}
    assert written["parent.types"] == ("arr[u32]", [types[name] for name in sorted(types)])
    assert set(types.values()) == {0, f16}
    del written["parent.types"], written["parent.validators"]
    assert written == {
        "version": ("str", "0.1.0"),
        "source.name": ("str", "Synthetic qwen3moe"),
        "source.url": ("str", "https://example.org/m/model-00001-of-00002.gguf"),
        "source.revision": ("str", "c0ffee"),
        "source.parameter_count": ("u64", count),
        "source.tensor_bytes": ("u64", size),
        "source.block_count": ("u32", 3),
        "source.expert_count": ("u32", 4),
        "source.expert_used_count": ("u32", 2),
        "parent.url": ("str", "https://example.org/m/model-00001-of-00002.gguf"),
        "kept.layers": ("arr[u32]", [0, 2]),
        "kept.experts": ("arr[u32]", [3, 1]),  # block 0 is dense
        "recipe": ("str", '[{"op":"cut"}]'),
    }


def test_queries_and_local_folders_stay_out() -> None:
    data = build_gguf(*synthetic(layers=2))
    signed = keys(cut(opened(data, url="https://example.org/m.gguf?X-Amz-Signature=abc#frag"), [0]))
    assert signed["source.url"][1] == signed["parent.url"][1] == "https://example.org/m.gguf"
    for url in ("/home/someone/models/m.gguf", "file:///home/someone/models/m.gguf"):
        local = keys(cut(opened(data, url=url, validators={"mtime_ns": "1234567"}), [0]))
        assert "1234567" not in json.dumps(local)  # the same cut is the same file, whenever the source was copied
        assert local["source.url"][1] == local["parent.url"][1] == "m.gguf"
        assert "someone" not in json.dumps(local)
        assert "source.revision" not in local


def test_a_model_without_a_name_is_called_after_its_file() -> None:
    data = build_gguf(*synthetic(layers=1, metadata={"general.name": None}))
    assert keys(cut(opened(data), [0]))["source.name"] == ("str", "model")


def test_experts_that_nobody_named_count_as_kept() -> None:
    view = opened(build_gguf(*synthetic(layers=3, experts=3)))
    assert keys(cut(view, [1, 2]))["kept.experts"] == ("arr[u32]", [0, 1, 2, 0, 1, 2])
    dense = opened(build_gguf(*synthetic(layers=3, experts=0)))
    assert "kept.experts" not in keys(cut(dense, [1]))


def test_a_cut_of_a_cut_keeps_the_first_model_and_its_numbers() -> None:
    first = opened(build_gguf(*synthetic(layers=4, experts=8, used=2)))
    once = stamp(cut(first, [1, 2, 3], {b: (b, 4, 6, 7) for b in (1, 2, 3)}))
    names = ((t.name, t.ne, int(t.tensor_type)) for t in once.all_tensors)
    reopened = rewritten(once, {}, [TensorSpec(name, ne, type_) for name, ne, type_ in names])
    assert Origin.of(reopened) == Origin.of(once)
    twice = keys(cut(reopened, [2, 0], {2: (1, 0), 0: (3, 0)}))
    assert twice["kept.layers"][1] == [3, 1]
    assert twice["kept.experts"][1] == [
        4,
        3,
        7,
        1,
    ]  # of [3, 4, 6, 7] the second and first; of [1, 4, 6, 7] the last and first
    assert twice["source.parameter_count"][1] == first.n_params
    assert twice["source.url"][1] == "https://example.org/m/model.gguf"
    assert twice["parent.url"][1] == "rewritten.gguf"
    assert json.loads(twice["recipe"][1]) == [{"op": "cut"}, {"op": "cut"}]


def test_a_quantization_between_two_cuts_is_named_in_the_recipe() -> None:
    once = stamp(cut(opened(build_gguf(*synthetic(layers=2))), [0]))
    q8_0, f32 = 8, 0
    specs = [TensorSpec(t.name, t.ne, q8_0 if len(t.ne) > 1 else f32) for t in once.all_tensors]
    quantized = rewritten(once, {}, specs)
    origin = Origin.of(quantized)
    assert origin is not None
    assert not origin.parent.still_holds(quantized)
    assert json.loads(keys(cut(quantized, [0]))["recipe"][1]) == [{"op": "cut"}, "custom:requantized", {"op": "cut"}]


def test_types_are_compared_whatever_the_order_of_the_tensors() -> None:
    once = stamp(cut(opened(build_gguf(*synthetic(layers=2))), [0]))
    origin = Origin.of(once)
    assert origin is not None
    moved = rewritten(once, {}, [TensorSpec(t.name, t.ne, int(t.tensor_type)) for t in reversed(once.all_tensors)])
    assert list(moved) != list(once)
    assert origin.parent.still_holds(moved)


def test_what_was_grafted_forced_or_dropped_is_said_and_stays_said() -> None:
    view = opened(build_gguf(*synthetic(layers=2)))
    made = cut(view, [0], grafted={"output.weight": "donor.gguf", "gone.weight": "donor.gguf"}, fragment=True)
    stamped = stamp(made, forced=["a", "b"])
    assert stamped.metadata["ggufslice.grafted"] == view["output.weight"].n_elements
    assert stamped.metadata.type("ggufslice.grafted") == "u64"
    assert (stamped.metadata["ggufslice.fragment"], stamped.metadata.type("ggufslice.fragment")) == (True, "bool")
    assert (stamped.metadata["ggufslice.forced"], stamped.metadata.type("ggufslice.forced")) == (["a", "b"], "arr[str]")
    assert stamp(stamped, forced=["b"]) == stamped
    reopened = rewritten(stamped, {}, [TensorSpec(t.name, t.ne, int(t.tensor_type)) for t in stamped.all_tensors])
    again = stamp(cut(reopened, [0]), forced=["c"])
    assert again.metadata["ggufslice.forced"] == ["a", "b", "c"]
    assert again.metadata["ggufslice.fragment"] is True
    assert again.metadata["ggufslice.grafted"] == view["output.weight"].n_elements


def test_foreign_operations_make_the_recipe_not_reproducible() -> None:
    def renamed(view: GGUF) -> GGUF:
        return view.evolve(metadata=view.metadata.set({"general.name": "other"}))

    view = opened(build_gguf(*synthetic(layers=2)))
    ours, foreign = Origin.of(cut(view, [0])), Origin.of(cut(view, [0]).pipe(renamed))
    assert ours is not None
    assert ours.reproducible
    assert foreign is not None
    assert not foreign.reproducible
    assert foreign.recipe[1].startswith("custom:test_provenance.")


def test_damaged_keys_count_as_not_known() -> None:
    once = stamp(cut(opened(build_gguf(*synthetic(layers=2, experts=4))), [0]))
    metadata = once.metadata.remove(["ggufslice.source.url", "ggufslice.kept.experts"]).set(
        {
            "ggufslice.source.parameter_count": "many",
            "ggufslice.source.block_count": True,
            "ggufslice.kept.layers": ["0"],
            "ggufslice.parent.validators": "{not json",
            "ggufslice.recipe": '{"a": 1}',
            "ggufslice.grafted": "x",
        },
        types={
            "ggufslice.source.parameter_count": "str",
            "ggufslice.source.block_count": "bool",
            "ggufslice.kept.layers": "arr[str]",
            "ggufslice.grafted": "str",
        },
    )
    damaged = type(once)(metadata, once.all_tensors)
    origin = Origin.of(damaged)
    assert origin is not None
    assert origin.source.name == "Synthetic qwen3moe"
    assert origin.source.parameter_count is None
    assert origin.source.block_count is None
    assert origin.source.url is None
    assert origin.kept_layers is None
    assert origin.parent.validators == ()
    assert origin.recipe == ()
    assert origin.grafted == 0
    again = keys(cut(damaged, [0]))
    assert not {"source.parameter_count", "source.url", "kept.layers", "kept.experts"} & set(again)


def test_a_large_models_keys_are_laid_out_in_a_header() -> None:
    metadata, tensors = kimi_k3(layers=8, experts=6, used=2, width=16, vocab=300)
    view = opened(build_gguf(metadata, tensors))
    stamped = stamp(cut(view, range(4), dict.fromkeys(range(1, 4), (0, 5))))
    assert stamped.metadata["ggufslice.kept.experts"] == [0, 5] * 3
    rows = [(t.name, t.ne, t.tensor_type, t.n_bytes) for t in stamped.all_tensors]
    layout = encode(stamped.metadata.records, rows, version=3, byteorder="little", alignment=32)
    assert b"ggufslice.kept.experts" in layout.head
