"""llama-bench: what is read of its output, and what isn't believed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from _fakes import fake
from ggufslice import BenchError
from ggufslice.bench import Bench, Llama, bench

if TYPE_CHECKING:
    from pathlib import Path


def row(p: int, n: int, **fields: Any) -> dict[str, Any]:
    return {
        "build_commit": "unknown",
        "backends": "CPU",
        "devices": "auto",
        "model_filename": "/home/somebody/model.gguf",
        "model_size": 1000,
        "model_n_params": 500,
        "n_gpu_layers": 99,
        "n_prompt": p,
        "n_gen": n,
        "avg_ts": 100.0,
        "stddev_ts": 5.0,
        "samples_ts": [95.0, 100.0, 105.0],
        **fields,
    }


PREFILL, DECODE = row(8, 0), row(0, 4, avg_ts=20.0, stddev_ts=1.0, samples_ts=[19.0, 21.0])


def printing(*lines: object, end: str = "") -> str:
    """A body that prints these lines; values are JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return f"for line in {texts!r}: print(line)\nsys.stdout.flush()\n{end}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def measured(model: Path, body: str, *, devices: str = "  (none)", **options: Any) -> Bench:
    fake(model.parent, "llama-bench", body, devices=devices)
    return bench(model, **({"p": 8, "n": 4} | options), llama=Llama(model.parent))


def test_records_are_read_by_field_name(model: Path) -> None:
    made = measured(model, printing(PREFILL, DECODE))

    assert made.prefill is not None
    assert made.decode is not None
    assert (made.prefill.tokens, made.prefill.per_second, made.prefill.spread) == (8, 100.0, 0.05)
    assert (made.decode.tokens, made.decode.per_second, made.decode.spread) == (4, 20.0, 0.05)
    assert (made.backends, made.model_bytes, made.model_params, made.warnings) == ("CPU", 1000, 500, ())
    assert [r["avg_ts"] for r in made.raw] == [100.0, 20.0]
    assert {r["model_filename"] for r in made.raw} == {"model.gguf"}, "of a path the name is kept alone"


def test_all_options_are_explicit(model: Path) -> None:
    fake(model.parent, "llama-bench", "open(sys.argv[0] + '.words', 'w').write(' '.join(sys.argv[1:]))")

    with pytest.raises(BenchError, match="gave no prefill and no decode row"):
        bench(model, p=8, n=4, r=2, llama=Llama(model.parent))

    words = (model.parent / "llama-bench.words").read_text()
    assert words == f"-m {model} -p 8 -n 4 -r 2 -ngl 99 -ctk f16 -ctv f16 -o jsonl"


def test_noise_between_the_rows_is_passed_over(model: Path) -> None:
    noise = ["ggml_cuda_init: found 1 devices", "[", '{"not": "a row"}', "{broken", "", "null", "\x1b[0m{}"]

    made = measured(model, printing(*noise, PREFILL, *noise, DECODE, *noise))

    assert len(made.raw) == 2


def test_fields_that_are_missing_are_not_made_up(model: Path) -> None:
    sparse = {"n_prompt": 0, "n_gen": 4, "avg_ts": 20}

    made = measured(model, printing(sparse), p=0)

    assert made.prefill is None
    assert made.decode is not None
    assert (made.decode.per_second, made.decode.deviation, made.decode.samples) == (20.0, None, ())
    assert (made.backends, made.devices, made.model_bytes) == ("not stated", "not stated", None)


def test_a_crash_behind_the_rows_is_kept_as_a_warning(model: Path) -> None:
    made = measured(model, printing(PREFILL, DECODE, end="os.kill(os.getpid(), signal.SIGSEGV)"))

    assert made.decode is not None
    assert len(made.warnings) == 1
    assert "llama-bench crashed (return code -11)" in made.warnings[0]


def test_a_crash_before_the_last_row_is_an_error(model: Path) -> None:
    with pytest.raises(
        BenchError, match=r"gave no decode row of -p 8 -n 4 for .*model\.gguf: .*crashed \(return code -11\)"
    ):
        measured(model, printing(PREFILL, end="os.kill(os.getpid(), signal.SIGSEGV)"))


def test_an_assertion_is_repeated(model: Path) -> None:
    body = "print('ggml.c:7: GGML_ASSERT(x) failed', file=sys.stderr, flush=True)\nos.abort()"

    with pytest.raises(BenchError, match=r"stopped on an assertion .*return code -6\): ggml\.c:7: GGML_ASSERT\(x\) failed"):
        measured(model, body)


@pytest.mark.parametrize("speed", [0, -1, None, "20", True, float("inf"), float("nan")])
def test_what_can_not_be_a_speed_is_none(model: Path, speed: Any) -> None:
    with pytest.raises(BenchError, match="gave no decode row"):
        measured(model, printing(PREFILL, row(0, 4, avg_ts=speed)))


def test_rows_of_another_test_are_not_taken(model: Path) -> None:
    with pytest.raises(BenchError, match="gave no prefill row"):
        measured(model, printing(row(512, 0), DECODE))


def test_a_single_repetition_has_no_spread(model: Path) -> None:
    made = measured(model, printing(PREFILL, row(0, 4, stddev_ts=0.0, samples_ts=[100.0])), r=1)

    assert made.decode is not None
    assert made.decode.spread is None
    assert str(made.decode) == "100.00 tokens/s (one repetition)"


def test_a_cpu_without_a_device_named_is_no_error(model: Path) -> None:
    assert measured(model, printing(PREFILL, DECODE), ngl=99).backends == "CPU"


def test_another_number_of_offloaded_layers_is_an_error(model: Path) -> None:
    with pytest.raises(BenchError, match=r"asked for -ngl 99 and ran with 0"):
        measured(model, printing(PREFILL, row(0, 4, n_gpu_layers=0)))


def test_a_device_that_is_not_there_is_an_error_before_anything_runs(model: Path) -> None:
    with pytest.raises(BenchError, match=r"has no device CUDA0; it has none: this build can only use the CPU"):
        measured(model, printing(PREFILL, DECODE), device="CUDA0")
    with pytest.raises(BenchError, match=r"has no device CUDA0; it has Vulkan0"):
        measured(model, printing(PREFILL, DECODE), device="CUDA0", devices="  Vulkan0: AMD (1 MiB, 1 MiB free)")


CUDA = "  CUDA0: NVIDIA GB10 (122570 MiB, 100000 MiB free)"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"devices": "Vulkan0", "backends": "Vulkan"}, r"was asked to run on CUDA0, and ran on Vulkan0"),
        ({"devices": "CUDA0", "backends": "CPU"}, r"only its CPU backend was there: was a backend library not loaded\?"),
    ],
)
def test_another_place_than_the_one_asked_for_is_an_error(model: Path, fields: dict[str, str], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        measured(model, printing(row(8, 0, **fields), row(0, 4, **fields)), device="CUDA0", devices=CUDA)


def test_the_device_asked_for_is_recorded(model: Path) -> None:
    fields = {"devices": "CUDA0", "backends": "CUDA"}

    made = measured(model, printing(row(8, 0, **fields), row(0, 4, **fields)), device="CUDA0", devices=CUDA)

    assert (made.devices, made.backends) == ("CUDA0", "CUDA")
    assert made.flags.endswith("-dev CUDA0")


def test_a_run_that_takes_too_long_is_ended(model: Path) -> None:
    with pytest.raises(BenchError, match="did not end within"):
        measured(model, "time.sleep(600)", timeout=0.5)


def test_a_model_that_is_not_there_and_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"none\.gguf: no such model file"):
        bench(tmp_path / "none.gguf")
    with pytest.raises(ValueError, match="nothing to measure with p=0, n=0"):
        bench(tmp_path / "none.gguf", p=0, n=0)


@pytest.mark.llama
@pytest.mark.models
def test_the_real_one(zoo: Path, llama: Path) -> None:
    made = bench(zoo / "qwen3moe.gguf", p=8, n=4, r=2, device="none", llama=Llama(llama))

    assert made.prefill is not None
    assert made.decode is not None
    assert len(made.decode.samples) == 2
    assert (made.backends, made.devices) == ("CPU", "none")
    assert made.model_bytes is not None
