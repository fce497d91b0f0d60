"""Plans: where everything goes, as figures and as text. Nothing is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import pytest

from _views import opened
from ggufslice.header import HeaderParser
from ggufslice.io.plan import Plan, make_plan
from ggufslice.spans import Literal, Remap, Span, n_bytes
from ggufslice.tensor_types import TensorType
from ggufslice.testing import TensorSpec, Typed, build_gguf, split_gguf, synthetic
from ggufslice.view import GGUF, Metadata, Tensor

if TYPE_CHECKING:
    from ggufslice.header import Header

METADATA, TENSORS = synthetic(layers=3, experts=4)
FILE = build_gguf(METADATA, TENSORS)


def heads(plan: Plan) -> list[Header]:
    """Parse the header of each planned file, as a reader of the file would."""
    found = []
    for file in plan.files:
        parser = HeaderParser("planned", size=file.layout.n_bytes)
        parser.feed(file.layout.head)
        found.append(parser.header)
    return found


def small(*sizes: int, metadata: dict[str, object] | None = None) -> GGUF:
    """Return the view of a file of f32 tensors of so many elements."""
    tensors = [TensorSpec(f"t{i}", (n,), 0) for i, n in enumerate(sizes)]
    return opened(build_gguf(metadata or {"general.architecture": "zzz"}, tensors))


def test_a_plan_without_an_operation_has_the_headers_own_bytes_and_all_data_in_place() -> None:
    plan = make_plan(opened(FILE))
    (file,) = plan.files
    assert FILE.startswith(file.layout.head)
    assert plan.file_bytes == len(FILE)
    assert all(isinstance(piece, Span) and piece.start == at for piece, at in plan.copies())


def test_figures_add_up() -> None:
    plan = make_plan(opened(FILE))
    assert plan.metadata_bytes + plan.padding_bytes + plan.tensor_bytes == plan.file_bytes == len(FILE)
    assert plan.tensor_bytes == sum(t.n_bytes for t in TENSORS)
    # Everything is one run: tensors of 32-byte multiples lie one behind the other.
    assert plan.n_requests == 1
    assert plan.gap_bytes == 0
    assert plan.fetch_bytes == plan.tensor_bytes


def test_gaps_are_fetched_where_that_saves_a_request() -> None:
    view = small(3, 5, 8)  # 12, 20 and 32 bytes: 20 and 12 bytes of padding lie between them
    plan = make_plan(view)
    assert (plan.n_requests, plan.gap_bytes, plan.fetch_bytes) == (1, 32, 96)
    assert plan.padding_bytes == 32 + (plan.files[0].layout.offsets[0] - plan.metadata_bytes)


def test_keys_of_a_set_of_shards_are_left_out_of_a_single_file() -> None:
    view = opened(FILE)
    split = view.metadata.set(
        {"split.no": 0, "split.count": 3, "split.tensors.count": 9},
        types={"split.no": "u16", "split.count": "u16", "split.tensors.count": "i32"},
    )
    plan = make_plan(GGUF(split, view.all_tensors))
    assert FILE.startswith(plan.files[0].layout.head)


def test_shards_are_what_llama_cpp_reads() -> None:
    view = small(1000, 1000, 3000, 1000, metadata={"general.architecture": "zzz", "general.alignment": Typed(64, "u32")})
    plan = make_plan(view, max_shard_size=8800)
    found = heads(plan)
    assert [[t.name for t in head.tensors] for head in found] == [["t0", "t1"], ["t2"], ["t3"]]
    for number, head in enumerate(found):
        split = [(r.key, r.type, r.value) for r in head.records[-3:]]
        assert split == [("split.no", "u16", number), ("split.count", "u16", 3), ("split.tensors.count", "i32", 4)]
        assert head.alignment == 64
    assert [r.key for r in found[0].records[:-3]] == ["general.architecture", "general.alignment"]
    assert [r.key for r in found[1].records[:-3]] == ["general.alignment"]
    assert [file.start for file in plan.files] == [0, plan.files[0].stop, plan.files[1].stop]
    assert plan.metadata_bytes + plan.padding_bytes + plan.tensor_bytes == plan.file_bytes
    assert all(file.layout.n_bytes <= 8800 for file in (plan.files[0], plan.files[2]))
    (warning,) = plan.warnings
    assert "shard 2 has 12." in warning
    assert "t2 alone is as large" in warning


def test_a_shard_is_filled_to_the_last_byte_and_not_over_it() -> None:
    view = small(1000, 1000)
    whole = make_plan(view, max_shard_size=10**6).file_bytes
    keys = sum(len(key) + 8 + 4 + size for key, size in (("split.no", 2), ("split.count", 2), ("split.tensors.count", 4)))
    limit = -(-(whole - 8000 + keys) // 32) * 32 + 8000 + 64
    assert len(make_plan(view, max_shard_size=limit).files) == 1
    assert len(make_plan(view, max_shard_size=whole - 1).files) == 2


def test_what_fits_in_one_shard_is_a_plain_file() -> None:
    plan = make_plan(opened(FILE), max_shard_size=len(FILE) + 200)
    assert len(plan.files) == 1
    assert plan.files[0].layout.head == FILE[: len(plan.files[0].layout.head)]


@pytest.mark.parametrize("size", [0, -1])
def test_a_shard_of_nothing_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"max_shard_size is {size}"):
        make_plan(opened(FILE), max_shard_size=size)


def test_more_shards_than_a_u16_counts_are_refused() -> None:
    view = GGUF(Metadata(), [Tensor(f"t{i}", (1,), TensorType(0), (Literal(b"1234"),)) for i in range(65536)])
    with pytest.raises(ValueError, match="makes 65536 shards, but the format counts up to 65535"):
        make_plan(view, max_shard_size=1)


def test_shards_of_a_set_that_was_opened_are_put_together() -> None:
    shards = split_gguf(METADATA, TENSORS, 3)
    plan = make_plan(opened(*shards))
    assert FILE.startswith(plan.files[0].layout.head)
    assert len(plan.source_bytes) == 3
    assert sum(plan.source_bytes.values()) == plan.tensor_bytes


def test_the_digest_tells_what_goes_where() -> None:
    view = opened(FILE)
    digest = make_plan(view).digest
    assert make_plan(opened(FILE)).digest == digest
    renamed = GGUF(view.metadata.set({"general.name": "other"}), view.all_tensors)
    assert make_plan(renamed).digest != digest
    first, *rest = view.all_tensors
    (span,) = first.pieces
    assert isinstance(span, Span)
    moved = attrs.evolve(first, pieces=(attrs.evolve(span, start=span.start + 4, stop=span.stop + 4),))
    assert make_plan(GGUF(view.metadata, [moved, *rest])).digest != digest
    stated = attrs.evolve(first, pieces=(Literal(bytes(n_bytes(first.pieces))),))
    assert make_plan(GGUF(view.metadata, [stated, *rest])).digest != digest
    assert make_plan(view, max_shard_size=100_000).digest != digest


def test_tables_of_expert_ids_count_as_requests_and_bytes() -> None:
    view = small(8)
    (tensor,) = view.all_tensors
    (span,) = tensor.pieces
    assert isinstance(span, Span)
    table = attrs.evolve(tensor, pieces=(Remap(span, (1, 0)),))
    plan = make_plan(GGUF(view.metadata, [table]))
    assert (plan.n_requests, plan.fetch_bytes) == (1, 32)


def test_text_for_a_person() -> None:
    view = opened(FILE)
    licensed = GGUF(view.metadata.set({"general.license": "apache-2.0"}), view.all_tensors)
    text = str(make_plan(licensed))
    assert text.splitlines()[0].startswith("Synthetic qwen3moe (qwen3moe): 3 of 3 layers; 4 of 4 experts, 2 used a token; ")
    assert "write    262.0" in text
    assert "in 1 file: 254.72 kB in 39 tensors" in text
    assert "fetch    254.72 kB of 254.72 kB (100.0%) in 1 request, " in text
    assert "https://example.org/m/model.gguf" in text
    assert "licence  apache-2.0" in text
    assert "147.46 kB  routed experts" in text
    assert "licence  not stated in the file" in str(make_plan(view))


def test_json_for_a_program() -> None:
    plan = make_plan(opened(FILE))
    values = json.loads(plan.to_json())
    assert values["file_bytes"] == len(FILE)
    assert values["metadata_bytes"] + values["padding_bytes"] + values["tensor_bytes"] == len(FILE)
    assert values["files"] == [len(FILE)]
    assert values["fetch"]["sources"] == [{"source": "https://example.org/m/model.gguf", "bytes": plan.tensor_bytes}]
    assert sum(values["classes"].values()) == plan.tensor_bytes
    assert values["experts"] == {"kept": 4, "of": 4, "used": 2}


def test_a_header_of_nothing_can_be_planned() -> None:
    plan = make_plan(opened(build_gguf({}, [])))
    assert plan.file_bytes == 32
    assert plan.n_requests == 0
    assert "licence" in str(plan)
