"""Receipts: the figures against hand-worked ones, and how they are written."""

from __future__ import annotations

import json
import math
import subprocess
from typing import TYPE_CHECKING, Any

import attrs
import gguf
import pytest

import ggufslice as gs
from _views import opened, rewritten
from ggufslice.accounting import SourceTransfer, Transfer
from ggufslice.classes import TensorClass, classify, is_lookup
from ggufslice.provenance import Origin, Source, stamp
from ggufslice.receipt import Receipt
from ggufslice.spans import SourceRef, Span
from ggufslice.testing import RangeServer, TensorSpec, Typed, build_gguf, kimi_k3, synthetic, write_shards
from ggufslice.view import GGUF, Metadata, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

F32, F16, Q8_0, Q1_0, Q4_K, Q6_K = 0, 1, 8, 41, 12, 14


def last_three(receipt: Receipt) -> list[str]:
    return str(receipt).splitlines()[-3:]


def weights(**params: int) -> GGUF:
    """Return a view that has so many parameters of each type, in rows of 256, with a source of no bytes."""
    ids = {"Q1_0": Q1_0, "Q8_0": Q8_0}
    tensors, at = [], 0
    for name, n in params.items():
        size = n // 128 * 18 if name == "Q1_0" else n // 32 * 34
        tensors.append(Tensor(name, (256, n // 256), ids[name], (Span(SourceRef("x"), at, at + size),)))
        at += size
    return GGUF(Metadata(()), tensors)


# What the three figures were first printed for: 3.01 GB, of which Q1_0 has 18 bytes for 128 weights and Q8_0 34 for 32.
def test_the_12_layer_model_of_the_founding_write_up() -> None:
    view = weights(Q1_0=14_714_576_128, Q8_0=885_423_872)
    assert f"{view.n_params:.2e}" == "1.56e+10"
    assert f"{view.tensor_bytes:.2e}" == "3.01e+09"
    receipt = Receipt.of(view, parameters=2_800_000_000_000)
    assert last_three(receipt) == [
        "DECLARED bits/param  : 0.0086   <- the tweet",
        "REAL bits/param      : 1.544    <- divide by what you actually shipped",
        "weight volume missing: 99.4%",
    ]


def test_the_93_layer_model_of_the_founding_write_up() -> None:
    view = weights(Q1_0=103_821_016_832, Q8_0=978_983_168)
    assert f"{view.n_params:.3e}" == "1.048e+11"
    assert f"{view.tensor_bytes:.3e}" == "1.564e+10"
    lines = last_three(Receipt.of(view, parameters=2_800_000_000_000))
    assert lines[0] == "DECLARED bits/param  : 0.0447   <- the tweet"
    assert lines[1] == "REAL bits/param      : 1.194    <- divide by what you actually shipped"


def test_figures_of_an_unknown_source_are_unknown() -> None:
    assert last_three(Receipt.of(weights(Q1_0=256))) == [
        "DECLARED bits/param  : unknown  <- the tweet",
        "REAL bits/param      : 1.125    <- divide by what you actually shipped",
        "weight volume missing: unknown",
    ]
    assert last_three(Receipt.of(GGUF(Metadata(()), ())))[1] == (
        "REAL bits/param      : unknown  <- divide by what you actually shipped"
    )


@pytest.mark.parametrize(
    ("present", "whole", "printed"),
    [
        (4, 10_000, "99.9%"),  # 99.96% is not all
        (1, 10**12, "99.9%"),
        (0, 10_000, "100.0%"),
        (56, 10_000, "99.4%"),
        (10_000, 10_000, "0.0%"),
        (10_001, 10_000, "0.0%"),
        (10_500, 10_000, "-5.0%"),  # the stated count is lower than what is there
        (5_000, 10_000, "50.0%"),
    ],
)
def test_missing_never_reads_as_all(present: int, whole: int, printed: str) -> None:
    receipt = attrs.evolve(Receipt.of(weights(Q1_0=256), parameters=whole), n_params=present)
    assert last_three(receipt)[2] == f"weight volume missing: {printed}"


# A file in which every way to count gives another figure. By hand, with rows of 32:
#   token_embd   8 x 32 F32   256 params 1024 bytes      output  8 x 32 F16  256 params 512 bytes
#   ffn_up_exps  4 x 2 x 32 Q8_0  256 params, 8 rows of 34 = 272 bytes, padded to 320
#   attn_norm    32 F32        32 params  128 bytes      nextn.eh_proj 32 x 32 F16, in the MTP block: 1024 params 2048 bytes
#   together     1824 params   3984 bytes, 48 of padding
TINY: tuple[dict[str, Any], list[TensorSpec]] = (
    {
        "general.architecture": "qwen3moe",
        "general.alignment": 64,
        "qwen3moe.block_count": 2,
        "qwen3moe.nextn_predict_layers": 1,
        "qwen3moe.expert_count": 4,
        "qwen3moe.expert_used_count": 1,
    },
    [
        TensorSpec("token_embd.weight", (32, 8), F32),
        TensorSpec("blk.0.ffn_up_exps.weight", (32, 2, 4), Q8_0),
        TensorSpec("blk.0.attn_norm.weight", (32,), F32),
        TensorSpec("blk.1.nextn.eh_proj.weight", (32, 32), F16),
        TensorSpec("output.weight", (32, 8), F16),
    ],
)


def test_every_way_to_count_differs_in_a_hand_worked_file() -> None:
    data = build_gguf(*TINY)
    receipt = Receipt.of(opened(data))
    assert (receipt.n_params, receipt.tensor_bytes, receipt.file_bytes) == (1824, 3984, len(data))
    keys = 8 + 20 + 4 + 8 + 8  # length and text of "general.architecture", its type, length and text of "qwen3moe"
    keys += sum(8 + len(key) + 4 + 4 for key in list(TINY[0])[1:])
    rows = sum(8 + len(str(spec.name)) + 4 + 8 * len(spec.ne) + 4 + 8 for spec in TINY[1])
    assert receipt.metadata_bytes == 24 + keys + rows
    assert receipt.padding_bytes == 48 + -(24 + keys + rows) % 64
    assert receipt.metadata_bytes + receipt.padding_bytes + receipt.tensor_bytes == len(data)
    # 8 x 3984 / 1824; blocks alone 8 x (272 + 128 + 2048) / (256 + 32 + 1024)
    assert receipt.real == pytest.approx(17.4737, abs=1e-4)
    assert receipt.repeating.bits == pytest.approx(14.9268, abs=1e-4)
    figures = {receipt.real, receipt.repeating.bits, *(part.bits for part in receipt.parts), 8 * len(data) / 1824}
    assert len(figures) == 2 + 3 + 1  # F32, F16 and Q8_0 parts have 32, 16 and 8.5 bits
    # a token: one expert of four, the norm, the output; neither the MTP block nor the whole embedding table
    assert receipt.token_bytes == 272 // 4 + 128 + 512


def test_the_embedding_is_read_whole_only_where_it_is_the_output_too() -> None:
    metadata, tensors = TINY
    tied = Receipt.of(opened(build_gguf(metadata, tensors[:-1])))
    assert tied.token_bytes == 272 // 4 + 128 + 1024


def test_used_experts_may_differ_by_layer_and_be_more_than_there_are() -> None:
    metadata, tensors = TINY
    more = [attrs.evolve(tensors[1], name="blk.1.ffn_up_exps.weight"), TensorSpec("blk.1.ffn_up.3.weight", (32, 2), Q8_0)]
    keys = metadata | {
        "qwen3moe.nextn_predict_layers": 0,
        "qwen3moe.expert_used_count": Typed([0, 9], "arr", "u32"),
    }
    receipt = Receipt.of(opened(build_gguf(keys, [tensors[1], *more])))
    assert receipt.expert_used_count == 9
    assert receipt.token_bytes == 0 * 272 + 272 + 68  # none in the first layer; all of the second, old names too


def test_parts_are_listed_by_class_and_type() -> None:
    receipt = Receipt.of(opened(build_gguf(*TINY)))
    assert [(p.tensor_class, p.tensor_type, p.n_params, p.n_bytes) for p in receipt.parts] == [
        ("routed experts", "Q8_0", 256, 272),
        ("embeddings", "F32", 256, 1024),
        ("output", "F16", 256, 512),
        ("norms", "F32", 32, 128),
        ("other", "F16", 1024, 2048),
    ]
    assert [(p.tensor_type, p.n_params, p.n_bytes) for p in receipt.types] == [
        ("F16", 1280, 2560),
        ("F32", 288, 1152),
        ("Q8_0", 256, 272),
    ]
    assert sum(p.n_bytes for p in receipt.classes) == sum(p.n_bytes for p in receipt.types) == receipt.tensor_bytes


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            TensorClass.ROUTED,
            (
                "blk.3.ffn_up_exps.weight blk.0.ffn_gate_up_exps.bias blk.1.ffn_down_exps.scale blk.0.ffn_up_chexps.weight "
                "blk.0.ffn_down.7.weight"
            ),
        ),
        (TensorClass.SHARED, "blk.3.ffn_up_shexp.weight blk.3.ffn_gate_inp_shexp.weight"),
        (
            TensorClass.ROUTER,
            (
                "blk.3.ffn_gate_inp.weight blk.3.ffn_gate_inp.bias blk.3.exp_probs_b.bias blk.3.exp_probs_b "
                "blk.0.ffn_gate_tid2eid.weight"
            ),
        ),
        (
            TensorClass.ATTENTION,
            (
                "blk.0.attn_q.weight blk.0.attn_q.bias blk.0.attn_kv_a_mqa.weight blk.0.attn_sinks.weight "
                "blk.0.indexer.proj.weight blk.0.attn_output.weight dec.blk.1.cross_attn_k.weight"
            ),
        ),
        (
            TensorClass.RECURRENT,
            (
                "blk.0.ssm_a blk.0.ssm_dt.bias blk.0.ssm_conv1d_q.weight blk.0.time_mix_key.weight "
                "blk.0.shortconv.in_proj.weight"
            ),
        ),
        (
            TensorClass.DENSE,
            (
                "blk.0.ffn_up.weight blk.0.ffn_down.bias blk.0.ffn_routed_down.weight blk.0.ffn_latent_up.weight "
                "blk.0.channel_mix_key.weight"
            ),
        ),
        (TensorClass.EMBEDDINGS, "token_embd.weight position_embd.weight per_layer_token_embd.weight"),
        (TensorClass.OUTPUT, "output.weight output.bias cls.output.weight blk.9.nextn.shared_head_head.weight"),
        (
            TensorClass.NORMS,
            (
                "output_norm.weight blk.0.attn_norm.weight blk.0.ffn_norm_exps.weight blk.0.ssm_norm.weight "
                "blk.0.attn_q_a_norm.weight token_embd_norm.weight blk.9.nextn.enorm.weight blk.0.ffn_routed_norm.weight"
            ),
        ),
        (
            TensorClass.OTHER,
            "rope_freqs.weight blk.9.nextn.eh_proj.weight blk.0.attn_res_score.weight v.blk.0.attn_q.weight",
        ),
    ],
)
def test_the_class_of_a_name(kind: TensorClass, names: str) -> None:
    assert {name: classify(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_tables_are_looked_up_by_row() -> None:
    rows = ["token_embd.weight", "blk.0.ffn_gate_tid2eid.weight", "per_layer_token_embd.weight"]
    assert all(map(is_lookup, rows))
    assert not any(map(is_lookup, ["output.weight", "token_embd_norm.weight", "blk.0.ffn_gate_inp.weight"]))


def keep(view: GGUF, names: Iterable[str], **changes: Any) -> GGUF:
    """Keep tensors by name and, of the routed ones, the first experts."""
    experts = changes.pop("experts", None)
    wanted = set(names)
    tensors = [t[:experts] if experts and "_exps" in t.name else t for t in view.all_tensors if t.name in wanted]
    metadata = view.metadata.set({view.key(k): v for k, v in changes.items()})
    return view.evolve(metadata=metadata, tensors=tensors, op='{"op":"keep"}')


def test_a_cut_says_what_was_kept_and_what_was_never_requested() -> None:
    view = opened(build_gguf(*TINY))
    made = keep(view, list(view)[:3], experts=2, expert_count=2).evolve(blocks=(0,), experts={0: (0, 1)})
    receipt = Receipt.of(made)
    # there: 256 + 128 + 32 params in 1024 + 136 + 128 bytes, of 1824 in 3984
    assert (receipt.n_params, receipt.tensor_bytes) == (416, 1288)
    assert receipt.declared == 8 * 1288 / 1824
    assert receipt.real == 8 * 1288 / 416
    assert receipt.missing == pytest.approx(1408 / 1824)
    assert receipt.never_requested == 3984 - 1288
    text = str(receipt)
    assert "[0] of 2 (1 kept)" in text
    assert "2 of 4 in a layer, 1 used a token" in text
    assert "2.70 kB of 3.98 kB" in text
    gap = Transfer((SourceTransfer("x", payload=1288, gap=100),), received=1388)
    assert Receipt.of_view(made, transfer=gap).never_requested == 3984 - 1288 - 100
    # the file that a write makes has the keys that say so, and the figures are those of that file
    stamped = stamp(made)
    assert Receipt.of(stamped).file_bytes == receipt.file_bytes
    again = rewritten(stamped, {}, [TensorSpec(t.name, t.ne, int(t.tensor_type)) for t in stamped.all_tensors])
    reread = Receipt.of(again)
    assert last_three(reread) == last_three(receipt)
    assert reread.file_bytes == receipt.file_bytes
    assert reread.never_requested is None


def test_grafted_parameters_are_not_the_first_models() -> None:
    view = opened(build_gguf(*TINY))
    made = keep(view, list(view)).evolve(grafted={"output.weight": "donor"})
    receipt = Receipt.of(made)
    assert receipt.missing == pytest.approx(256 / 1824)
    assert receipt.real == 8 * 3984 / 1824
    assert "256 parameters that aren't the first model's" in str(receipt)


def test_a_file_without_keys_is_measured_against_its_model() -> None:
    whole = opened(build_gguf(*TINY))
    bare = opened(build_gguf(TINY[0], TINY[1][:3]))
    receipt = Receipt.of(bare, against=whole)
    assert receipt.missing == pytest.approx((1824 - 544) / 1824)
    assert receipt.origin == Origin(source=Source.of(whole))
    assert Receipt.of(bare, against=whole, parameters=5440).missing == pytest.approx(0.9)
    cut = stamp(keep(whole, list(whole)[:3]))
    assert Receipt.of(bare, against=cut).origin == Origin(source=Source.of(whole))  # a cut names the first model


def claims(metadata: dict[str, Any], tensors: list[TensorSpec]) -> dict[str, tuple[str, bool | None]]:
    receipt = Receipt.of(opened(build_gguf({"general.architecture": "llama", **metadata}, tensors)))
    return {claim.key: (claim.measured, claim.holds) for claim in receipt.claims}


def test_the_file_type_is_compared_with_what_holds_the_bytes() -> None:
    # Q4_K in three tensors of 144 bytes, Q6_K in one of 2100: most tensors are Q4_K, most bytes Q6_K
    tensors = [TensorSpec(f"t{i}", (256,), Q4_K) for i in range(3)] + [TensorSpec("big", (256, 10), Q6_K)]
    measured = "Q6_K holds 82.9% of the bytes"
    for number, holds in ((15, False), (18, True), (18 + 1024, True), (999, None)):
        assert claims({"general.file_type": number}, tensors)["general.file_type"] == (measured, holds)


@pytest.mark.parametrize(
    ("label", "holds"),
    [("10K", True), ("9.5K", True), ("11K-A1K", True), ("2.8T", False), ("0.0B", None), ("4x1B", False), ("small", None)],
)
def test_a_size_label_is_compared_with_what_was_counted(label: str, holds: bool | None) -> None:  # noqa: FBT001 - a table
    measured, verdict = claims({"general.size_label": label}, [TensorSpec("t", (256, 40), Q4_K)])["general.size_label"]
    assert measured.startswith("10.24 K parameters")
    assert verdict is holds


def test_claims_are_printed_beside_what_was_measured() -> None:
    keys = {
        "general.name": "Giant",
        "general.size_label": "2.8T",
        "quantize.imatrix.file": "giant.imatrix",
        "general.license": "other",
        "general.license.name": "giant-license",
    }
    view = opened(build_gguf(TINY[0] | keys, TINY[1]))
    text = str(Receipt.of(keep(view, list(view)[:3], block_count=1)))
    assert "general.name = Giant: 1 of 2 layers, 4 of 4 experts" in text
    assert "general.size_label = 2.8T: 544 parameters  <- no longer holds" in text
    assert "quantize.imatrix.file = giant.imatrix: made for the parent's tensors" in text
    assert "license.name" in text
    assert "giant-license" in text


def test_deletion_is_not_called_quantization() -> None:
    view = weights(Q1_0=256)
    floor = "is deletion, not quantization"
    assert floor in str(Receipt.of(view, parameters=257))
    assert floor not in str(Receipt.of(view, parameters=256))  # exactly 1.125
    assert floor not in str(Receipt.of(view))


def test_a_router_without_a_choice_is_named() -> None:
    no_choice = "the router has nothing left to choose"
    for used, named in ((4, True), (5, True), (3, False)):
        metadata = TINY[0] | {"qwen3moe.expert_used_count": used}
        assert (no_choice in str(Receipt.of(opened(build_gguf(metadata, TINY[1]))))) is named
    dense = opened(build_gguf(*synthetic(layers=1, experts=0)))
    assert no_choice not in str(Receipt.of(dense))


def test_what_was_forced_noted_dropped_or_done_by_others_is_said() -> None:
    view = opened(build_gguf(*TINY))
    made = keep(view, list(view)[:3]).evolve(fragment=True, note="groups were reset", op='"custom:mine.op"')
    text = str(Receipt.of_view(made, forced=["it would not load"]))
    assert "* Forced: it would not load" in text
    assert "* groups were reset" in text
    assert "* This is a fragment" in text
    assert "mine.op" in text


def test_a_later_quantization_is_said() -> None:
    view = opened(build_gguf(*TINY))
    made = stamp(keep(view, list(view)[:3]))
    specs = [TensorSpec(t.name, t.ne, Q8_0 if len(t.ne) > 1 else F32) for t in made.all_tensors]
    assert "quantized afterwards" in str(Receipt.of(rewritten(made, {}, specs)))
    assert "quantized afterwards" not in str(Receipt.of(made))


def transferred() -> Receipt:
    view = opened(build_gguf(*TINY))
    sources = (
        SourceTransfer("https://example.org/a", payload=1000, gap=24, header=500),
        SourceTransfer("https://example.org/b", payload=288, wasted=10),
    )
    moved = Transfer(sources, received=1822, resumed=64, requests=5, resolves=2, retries=1, seconds=0.5)
    return Receipt.of_view(keep(view, list(view)[:3], block_count=1).evolve(blocks=(0,)), transfer=moved)


def test_the_transfer_is_accounted_for() -> None:
    line = next(line for line in str(transferred()).splitlines() if line.startswith("transfer"))
    assert line.split("  ", 1)[1].strip() == (
        "1.82 kB received (payload 1.29 kB, gap 24 bytes, header 500 bytes, wasted 10 bytes), 64 bytes from an earlier run; "
        "5 requests (1 retry) in 0.5 s at 3.64 kB/s"
    )


def test_json_has_exact_figures() -> None:
    receipt = transferred()
    values = json.loads(receipt.to_json())
    assert values["file_bytes"] == values["metadata_bytes"] + values["padding_bytes"] + values["tensor_bytes"]
    assert values["real_bits"] == receipt.real
    assert values["declared_bits"] == receipt.declared
    assert values["missing"] == receipt.missing
    moved = values["transfer"]
    assert moved["payload"] + moved["gap"] + moved["header"] + moved["wasted"] == moved["received"]
    assert values["origin"]["kept_layers"] == [0]
    assert values["origin"]["source"]["parameter_count"] == 1824
    assert values["parts"][0] == {
        "tensor_class": "routed experts",
        "tensor_type": "Q8_0",
        "n_params": 256,
        "n_bytes": 272,
        "bits": 8.5,
    }
    unknown = json.loads(Receipt.of(weights(Q1_0=256)).to_json())
    assert (unknown["declared_bits"], unknown["missing"], unknown["origin"]) == (None, None, None)


def test_a_receipt_is_saved_in_the_form_of_its_suffix(tmp_path: Path) -> None:
    receipt = transferred()
    receipt.save(tmp_path / "r.json")
    receipt.save(tmp_path / "r.txt")
    receipt.save(str(tmp_path / "r.md"))
    assert json.loads((tmp_path / "r.json").read_text())["n_params"] == 544
    assert (tmp_path / "r.txt").read_text() == f"{receipt}\n"
    assert (tmp_path / "r.md").read_text() == receipt.markdown()
    with pytest.raises(ValueError, match=r"\.json, \.md or \.txt, not as 'r\.pdf'"):
        receipt.save(tmp_path / "r.pdf")


def test_markdown_has_the_same_figures_in_tables() -> None:
    receipt = transferred()
    markdown = receipt.markdown()
    assert "| routed experts | Q8_0 | 256 | 272 bytes | 8.500 |" in markdown
    assert "\n".join(["```", *last_three(receipt), "```", ""]) in markdown
    columns = {line.replace("\\|", "").count("|") for line in markdown.splitlines() if line.startswith("|")}
    assert columns == {3, 6}


def test_layers_are_shown_as_a_map() -> None:
    view = opened(build_gguf(*kimi_k3(layers=93, experts=4, used=2, width=16, vocab=300)))
    for blocks, shown in (
        (range(12), "[0-11] of 93 (12 kept)"),
        ([0, 1, 2, 92], "[0-2,92] of 93 (4 kept)"),
        (range(0, 93, 2), "[0,2,4,6,8,10,...,82,84,86,88,90,92] of 93 (47 kept)"),
    ):
        made = view.evolve(metadata=view.metadata.set({"kimi-k3.block_count": len(blocks)}), blocks=tuple(blocks))
        assert shown in str(Receipt.of(made))


def test_files_and_urls_are_measured_with_all_their_shards(tmp_path: Path) -> None:
    metadata, tensors = synthetic(layers=2, experts=4, used=2)
    shards = write_shards(tmp_path, "m", metadata, tensors, 3, no_tensor_first=True)
    params = sum(math.prod(t.ne) for t in tensors)
    local = Receipt.of(shards[1])
    assert local.file_bytes == sum(shard.stat().st_size for shard in shards)
    assert local.metadata_bytes + local.padding_bytes + local.tensor_bytes == local.file_bytes
    assert 0 <= local.padding_bytes < 32 * (len(tensors) + 2 * len(shards))
    assert local.n_params == params
    with RangeServer(tmp_path) as server:
        assert Receipt.of(server.url("m-00003-of-00003.gguf")) == local
        cut = gs.open(server.url("m-00003-of-00003.gguf")).pipe(gs.select_experts([1, 3]))
        receipt = cut.write(tmp_path / "cut.gguf")
        first = server.url("m-00001-of-00003.gguf")
    assert receipt.transfer is not None
    assert receipt.never_requested == 0  # so small a file came whole, behind its header
    assert receipt.file_bytes == (tmp_path / "cut.gguf").stat().st_size
    assert receipt.metadata_bytes + receipt.padding_bytes + receipt.tensor_bytes == receipt.file_bytes
    origin = Receipt.of(tmp_path / "cut.gguf").origin
    assert origin == receipt.origin
    assert origin is not None
    assert origin.source.parameter_count == params
    assert origin.source.url == first  # the first shard, although it has no tensor
    assert [shard["file"] for shard in origin.parent.validators] == [shard.name for shard in shards]


@pytest.mark.llama
def test_a_cut_that_llama_quantize_made_smaller_still_knows_its_first_model(llama: Path, tmp_path: Path) -> None:
    metadata, tensors = synthetic(
        layers=3, experts=4, used=2, width=128, heads=4, head_dim=32, expert_ffn=128, tensor_type=F16
    )
    params = sum(math.prod(t.ne) for t in tensors)
    (tmp_path / "whole.gguf").write_bytes(build_gguf(metadata, tensors))
    gs.open(tmp_path / "whole.gguf").pipe(gs.select_experts([3, 1]), gs.keep_layers([0, 2])).write(tmp_path / "cut.gguf")
    subprocess.run(
        [llama / "llama-quantize", tmp_path / "cut.gguf", tmp_path / "q.gguf", "Q1_0", "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    before, after = (gs.open(tmp_path / name).metadata for name in ("cut.gguf", "q.gguf"))
    ours = [key for key in before if key.startswith("ggufslice.")]
    assert len(ours) > 10
    assert {key: after.raw(key) for key in ours} == {key: before.raw(key) for key in ours}
    receipt = Receipt.of(tmp_path / "q.gguf")
    read = gguf.GGUFReader(tmp_path / "q.gguf").tensors
    n_bytes, present = sum(int(t.n_bytes) for t in read), sum(int(t.n_elements) for t in read)
    assert last_three(receipt) == [
        f"DECLARED bits/param  : {8 * n_bytes / params:.4f}   <- the tweet",
        f"REAL bits/param      : {8 * n_bytes / present:.3f}    <- divide by what you actually shipped",
        f"weight volume missing: {100 * (1 - present / params):.1f}%",
    ]
    assert receipt.requantized
    assert receipt.origin is not None
    assert receipt.origin.kept_experts == (3, 1, 3, 1)
    assert receipt.origin.kept_layers == (0, 2)
    claim = next(claim for claim in receipt.claims if claim.key == "general.file_type")
    assert claim.claimed == "Q1_0"
