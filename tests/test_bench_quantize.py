"""llama-quantize: what was asked, what came out, and that nothing else gets the final name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from _fakes import fake
from ggufslice import BenchError, OutputError, Receipt, select_experts
from ggufslice import open as open_model
from ggufslice.bench import Fallback, Llama, quantize
from ggufslice.bench._quantize import asked_type, log_entries
from ggufslice.testing import TensorSpec, build_gguf, synthetic

if TYPE_CHECKING:
    from pathlib import Path

F16, F32, Q8_0 = 1, 0, 8
HELP = """usage: llama-quantize [--help] [--allow-requantize]
   8  or  Q8_0    :  7.96G
  40  or  Q1_0    :  1.125 bpw quantization
  15  or  Q4_K    : alias for Q4_K_M
  24  or  IQ1_S   :  1.56 bpw quantization
          COPY    : only copy tensors
"""


def tensors(row: int = 128, kind: int = F16) -> list[TensorSpec]:
    return [TensorSpec("token_embd.weight", (row, 64), kind), TensorSpec("output_norm.weight", (row,), F32)]


@pytest.fixture
def src(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(build_gguf({"general.architecture": "llama"}, tensors()))
    return path


def quantized(src: Path, body: str, type_: str = "Q8_0", *, help_text: str = HELP, **options: Any) -> Any:
    fake(src.parent, "llama-quantize", body, help_text=help_text, help_code=1)
    fake(src.parent, "llama-bench", "")
    return quantize(src, src.parent / "out.gguf", type_, llama=Llama(src.parent), **options)


def writing(path: Path, folder: Path) -> str:
    """A body that copies a file that a test made to where the result goes."""
    kept = folder / "made"
    shutil.copy(path, kept)
    return f"import shutil\nshutil.copy({str(kept)!r}, sys.argv[-2])"


def made(src: Path, *specs: TensorSpec) -> str:
    path = src.parent / "result"
    path.write_bytes(build_gguf({"general.architecture": "llama"}, specs))
    return writing(path, src.parent)


def leftovers(src: Path) -> list[str]:
    return sorted(p.name for p in src.parent.iterdir() if "out" in p.name or "partial" in p.name)


def test_the_result_gets_its_name_when_it_is_what_was_asked_for(src: Path) -> None:
    report = quantized(src, made(src, *tensors(kind=Q8_0)))

    assert (report.path, report.type, report.tensors) == ("out.gguf", "Q8_0", 2)
    assert report.types == {"Q8_0": 128 * 64, "F32": 128}
    assert (report.fallbacks, report.fallback_share) == ((), 0)
    assert leftovers(src) == ["out.gguf"]


def test_options_and_the_order_of_the_arguments(src: Path) -> None:
    body = f"open({str(src.parent / 'words')!r}, 'w').write('|'.join(sys.argv[1:]))\n{made(src, *tensors(kind=Q8_0))}"

    report = quantized(src, body, "q8_0", allow_requantize=True, tensor_types={"ffn_down": "Q8_0", "attn": "f16"})

    words = (src.parent / "words").read_text().split("|")
    assert words[:5] == ["--allow-requantize", "--tensor-type", "ffn_down=q8_0", "--tensor-type", "attn=f16"]
    assert words[5] == str(src)
    assert words[-1] == "Q8_0", "the type is last: a number behind it would be threads, one before it the file"
    assert len(words) == 8
    assert report.flags == "--allow-requantize --tensor-type ffn_down=q8_0 --tensor-type attn=f16 Q8_0"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(0)", r"ended well and wrote no file"),
        ("open(sys.argv[-2], 'wb').write(b'GGUF'); print('disk full', file=sys.stderr); sys.exit(1)", r"disk full"),
        ("open(sys.argv[-2], 'wb').write(b'GGUF'); os.abort()", r"stopped on an assertion"),
        ("open(sys.argv[-2], 'wb').write(b'GGUF')", r"partial: the fixed part would end at byte 24, but the file has 4"),
        ("time.sleep(600)", r"did not end within 1 s: it was ended\. It printed nothing\."),
    ],
)
def test_a_failure_leaves_nothing(src: Path, body: str, said: str) -> None:
    with pytest.raises((BenchError, ValueError), match=said):
        quantized(src, body, timeout=1 if "sleep" in body else None)
    assert leftovers(src) == []


def test_a_stale_result_is_never_taken_for_a_new_one(src: Path) -> None:
    (src.parent / "out.gguf").write_bytes(b"stale")

    with pytest.raises(OutputError, match=r"out\.gguf is there already; overwrite=True \(--overwrite\) replaces it"):
        quantized(src, "sys.exit(1)")
    with pytest.raises(BenchError, match="gave up"):
        quantized(src, "sys.exit(1)", overwrite=True)
    assert (src.parent / "out.gguf").read_bytes() == b"stale"


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        (tensors(kind=Q8_0)[:1], r"has 1 tensors of 2: output_norm\.weight is missing"),
        ([*tensors(kind=Q8_0), TensorSpec("more.weight", (32,), F32)], r"a tensor that the source hasn't: more\.weight"),
        ([TensorSpec("token_embd.weight", (128, 32), Q8_0), tensors()[1]], r"has the shape \(128, 32\) after"),
        (tensors(), r"no tensor of the result is Q8_0: Q8_0 was asked for, and there are F16, F32"),
    ],
)
def test_a_result_that_is_not_what_was_asked_for_is_thrown_away(src: Path, specs: list[TensorSpec], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        quantized(src, made(src, *specs))
    assert leftovers(src) == []


def test_a_type_other_than_the_one_that_was_announced_is_thrown_away(src: Path) -> None:
    log = "[   1/   2] token_embd.weight  - [128, 64, 1, 1], type = f16, converting to q1_0 .. size = 1 -> 2"

    with pytest.raises(BenchError, match=r"token_embd\.weight is Q8_0 in the quantized file; llama-quantize said Q1_0"):
        quantized(src, f"print({log!r}, file=sys.stderr)\n{made(src, *tensors(kind=Q8_0))}")


def test_a_type_that_it_does_not_list(src: Path) -> None:
    with pytest.raises(BenchError, match=r"has no type 'Q9_9'; it has Q8_0, Q1_0, Q4_K, IQ1_S, COPY"):
        quantized(src, "", "Q9_9")


@pytest.mark.parametrize("alignment", [64, 16])
def test_an_alignment_that_it_would_break_is_refused(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build_gguf({"general.architecture": "llama", "general.alignment": alignment}, tensors()))

    with pytest.raises(
        BenchError, match=rf"alignment is {alignment}.*set_metadata\(\{{'general.alignment': 32\}}\) .* first"
    ):
        quantized(path, "")


def test_a_file_that_is_read_is_not_written_to(src: Path) -> None:
    with pytest.raises(OutputError, match="is a file that is read"):
        quantize(src, src, "Q8_0", overwrite=True, llama=Llama(src.parent))


def test_a_folder_that_is_not_there(src: Path) -> None:
    with pytest.raises(OutputError, match="is no folder"):
        quantize(src, src.parent / "none" / "out.gguf", "Q8_0", llama=Llama(src.parent))


def imatrix(path: Path, **entries: tuple[int, ...]) -> Path:
    specs = [TensorSpec(f"{name.replace('_w', '.weight')}.in_sum2", ne, F32) for name, ne in entries.items()]
    path.write_bytes(build_gguf({"general.type": "imatrix"}, specs))
    return path


def test_an_imatrix_that_does_not_fit_is_refused(src: Path) -> None:
    folder = src.parent
    (folder / "old.dat").write_bytes(b"\x02\0\0\0")
    for path, said in (
        (folder / "none.gguf", "no such importance matrix"),
        (folder / "old.dat", r"is no importance matrix in the GGUF form; llama-imatrix --in-file old\.dat -o new\.gguf"),
        (imatrix(folder / "other.gguf", blk_w=(128,)), "names none of the model's 2 tensors"),
        (
            imatrix(folder / "large.gguf", token_embd_w=(256,)),
            r"token_embd\.weight \(has 256 values, the tensor needs 128\)",
        ),
    ):
        with pytest.raises(BenchError, match=said):
            quantized(src, made(src, *tensors(kind=Q8_0)), imatrix=path)


def test_an_imatrix_of_the_experts_before_a_cut_is_refused(tmp_path: Path) -> None:
    metadata, specs = synthetic(layers=1, experts=4, used=2)
    (tmp_path / "whole.gguf").write_bytes(build_gguf(metadata, specs))
    with open_model(tmp_path / "whole.gguf") as model:
        model.pipe(select_experts(2)).write(tmp_path / "cut.gguf")
    name = "blk.0.ffn_up_exps.weight"
    width = next(s for s in specs if s.name == name).ne[0]
    matrix = tmp_path / "im.gguf"
    matrix.write_bytes(build_gguf({"general.type": "imatrix"}, [TensorSpec(f"{name}.in_sum2", (width, 4), F32)]))

    with pytest.raises(BenchError, match=rf"{name} \(has {4 * width} values, the tensor needs {2 * width}\).*slice_imatrix"):
        quantized(tmp_path / "cut.gguf", "", imatrix=matrix)


def test_a_build_without_a_dry_run_reports_fallbacks_from_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    specs = [TensorSpec("a.weight", (256, 2), F16), TensorSpec("b.weight", (96, 4), F16)]
    path.write_bytes(build_gguf({"general.architecture": "llama"}, specs))
    q4_k, q5_0 = 12, 6

    report = quantized(
        path, made(path, TensorSpec("a.weight", (256, 2), q4_k), TensorSpec("b.weight", (96, 4), q5_0)), "Q4_K"
    )

    (fallback,) = report.fallbacks
    assert fallback == Fallback("b.weight", 96, 256, "Q4_K", "Q5_0")
    assert report.fallback_share == 384 / 896
    assert str(report).endswith("1 tensor fell back, 42.9% of the parameters")


@pytest.mark.parametrize(
    ("name", "tensor_type"),
    [
        ("Q4_K_M", "Q4_K"),
        ("q2_k_s", "Q2_K"),
        ("IQ4_XS", "IQ4_XS"),
        ("IQ2_M", "IQ2_S"),
        ("MXFP4_MOE", "MXFP4"),
        ("Q1_0", "Q1_0"),
    ],
)
def test_the_type_that_a_quantization_is_named_after(name: str, tensor_type: str) -> None:
    asked = asked_type(name)

    assert asked is not None
    assert asked.name == tensor_type
    assert asked_type("COPY") is None


def test_what_a_log_announces() -> None:
    log = (
        "[   1/  99] output.weight - [ 256, 4096, 1, 1], type = f16, converting to q6_K .. size = 2.00 MiB -> 0.82 MiB\n"
        "[   2/  99] output_norm.weight - [ 256, 1, 1, 1], type = f32, size = 0.001 MiB\n"
        "[   3/  99] token_embd.weight - [ 256, 4096, 1, 1], type = f16, \n====== did not find weights\n"
        "converting to q2_K .. size = 2.00 MiB\n"
        "[  87/  99] blk.6.ffn_up_exps.weight  - [ 256, 128, 32, 1], type = f16, size = 2.00 MiB -> 0.56 MiB (q4_K)\n"
    )

    assert log_entries(log) == {
        "output.weight": "q6_K",
        "output_norm.weight": None,
        "token_embd.weight": "q2_K",
        "blk.6.ffn_up_exps.weight": "q4_K",
    }


@pytest.mark.llama
@pytest.mark.models
class TestWithTheRealOne:
    def test_fallbacks_are_counted_with_their_share(self, tinymoe: Path, llama: Path, tmp_path: Path) -> None:
        report = quantize(tinymoe, tmp_path / "q4.gguf", "Q4_K_M", llama=Llama(llama))

        assert report.tensors == 99
        assert [f.tensor for f in report.fallbacks] == [f"blk.{i}.ffn_down_exps.weight" for i in range(8)]
        assert {(f.row, f.block) for f in report.fallbacks} == {(128, 256)}
        assert report.fallback_share == 8 * 32 * 256 * 128 / 28_906_752
        assert sum(report.types.values()) == 28_906_752
        with open_model(tmp_path / "q4.gguf") as made:
            assert {made[f.tensor].tensor_type.name for f in report.fallbacks} == {f.got for f in report.fallbacks}

    def test_rows_that_q1_0_can_not_hold_are_named_before_anything_is_written(
        self, zoo: Path, llama: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(
            BenchError, match=r"Q1_0 has blocks of 128.*blk\.0\.ffn_down\.weight \(192\).*--tensor-type"
        ) as caught:
            quantize(zoo / "kimi-k3.gguf", tmp_path / "q1.gguf", "Q1_0", allow_requantize=True, llama=Llama(llama))
        assert "and 29 others" in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_another_type_for_those_rows_helps(self, zoo: Path, llama: Path, tmp_path: Path) -> None:
        rows = "ffn_(down|gate_exps|up_exps|down_exps|routed_up|down_shexp)"

        report = quantize(
            zoo / "kimi-k3.gguf",
            tmp_path / "q1.gguf",
            "Q1_0",
            allow_requantize=True,
            tensor_types={rows: "q8_0"},
            llama=Llama(llama),
        )

        assert report.types["Q1_0"] > 0
        receipt = Receipt.of(tmp_path / "q1.gguf")
        assert {p.tensor_type: p.n_params for p in receipt.types} == report.types

    def test_a_tensor_type_that_is_none_is_named(self, tinymoe: Path, llama: Path, tmp_path: Path) -> None:
        with pytest.raises(BenchError, match=r"has no tensor type 'zork' \(tensor_types, --tensor-type\)$"):
            quantize(tinymoe, tmp_path / "q.gguf", "Q8_0", tensor_types={"ffn_down": "zork"}, llama=Llama(llama))
        assert list(tmp_path.iterdir()) == []

    def test_requantizing_is_asked_for(self, zoo: Path, llama: Path, tmp_path: Path) -> None:
        with pytest.raises(BenchError, match=r"tensors are quantized already, such as .*\(Q8_0\): allow_requantize=True"):
            quantize(zoo / "kimi-k3.gguf", tmp_path / "q4.gguf", "Q4_0", llama=Llama(llama))

    def test_the_narrowest_types_want_importances(self, tinymoe: Path, llama: Path, tmp_path: Path) -> None:
        with pytest.raises(BenchError, match=r"IQ1_S needs an importance matrix with entries for all its tensors"):
            quantize(tinymoe, tmp_path / "iq1.gguf", "IQ1_S", llama=Llama(llama))

        report = quantize(
            tinymoe, tmp_path / "iq1.gguf", "IQ1_S", imatrix=tinymoe.with_name("tinymoe.imatrix.gguf"), llama=Llama(llama)
        )

        assert report.types["IQ1_S"] > 0
