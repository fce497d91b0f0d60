"""Running programs: they can't hang, flood the disk, wait for a keyboard or leave children behind."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from _fakes import gone
from ggufslice import BenchError
from ggufslice.bench._process import diagnose, run

if TYPE_CHECKING:
    from pathlib import Path


def script(folder: Path, text: str, name: str = "llama-thing") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_output_and_return_code_are_kept_apart(tmp_path: Path) -> None:
    done = run([script(tmp_path, "echo out; echo err >&2; printf '\\377' ; exit 3"), "-x"], timeout=60)

    assert (done.stdout, done.stderr, done.returncode) == ("out\n\N{REPLACEMENT CHARACTER}", "err\n", 3)
    assert done.command[1:] == ("-x",)


def test_standard_input_is_empty(tmp_path: Path) -> None:
    assert run([script(tmp_path, "cat; echo end")], timeout=60).stdout == "end\n"


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    program = script(tmp_path, "echo waiting for you; exec sleep 600")

    with pytest.raises(BenchError, match=r"llama-thing did not end within 0 s: it was ended.*\nwaiting for you"):
        run([program], timeout=0.3)


def test_a_program_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    program = script(tmp_path, "exec yes '>'")

    with pytest.raises(BenchError, match=r"bytes of output, more than the 100000 it may: it was ended") as caught:
        run([program], timeout=600, max_output=100_000)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("ending", ["exit 0", "exec sleep 600"])
def test_no_child_outlives_the_call(tmp_path: Path, ending: str) -> None:
    program = script(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; {ending}")

    if ending == "exit 0":
        run([program], timeout=60)
    else:
        with pytest.raises(BenchError):
            run([program], timeout=0.5)

    assert gone(int((tmp_path / "pid").read_text()))


def test_an_environment_that_would_change_options_or_hold_credentials_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLAMA_ARG_N_GPU_LAYERS", "LLAMA_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "KEPT"):
        monkeypatch.setenv(name, "here")

    words = run([script(tmp_path, "env")], timeout=60).stdout.splitlines()

    assert "KEPT=here" in words
    assert [word for word in words if word.startswith(("LLAMA_", "HF_", "HUGGING"))] == []


def test_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"llama-none can't be started \(No such file or directory\): it isn't there"):
        run([tmp_path / "llama-none"], timeout=60)


def test_a_program_without_its_interpreter(tmp_path: Path) -> None:
    path = tmp_path / "llama-thing"
    path.write_text("#!/nowhere/interpreter\n")
    path.chmod(0o755)

    with pytest.raises(BenchError, match=r"or the program loader that it names isn't"):
        run([path], timeout=60)


def test_a_program_that_may_not_be_executed(tmp_path: Path) -> None:
    path = script(tmp_path, "")
    path.chmod(stat.S_IRUSR)

    with pytest.raises(BenchError, match=r"may not be executed: chmod \+x"):
        run([path], timeout=60)


def test_a_program_for_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "llama-thing"
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xff\xff" + bytes(100))
    path.chmod(0o755)

    with pytest.raises(BenchError, match=r"Exec format error\): is it a program for this kind of machine\?"):
        run([path], timeout=60)


def test_a_missing_library() -> None:
    log = "/opt/llama-bench: error while loading shared libraries: libggml.so.0: cannot open shared object file"

    assert "/opt/llama-bench misses the shared library libggml.so.0 (return code 127)" in diagnose(
        "/opt/llama-bench", 127, log
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-6, "stopped on an assertion or an uncaught error"),
        (134, "stopped on an assertion or an uncaught error"),
        (-11, "crashed"),
        (-4, "an instruction that this processor doesn't have"),
        (137, "was killed, most often for want of memory"),
        (1, "gave up"),
    ],
)
def test_what_a_return_code_means(code: int, said: str) -> None:
    log = "loading\n/src/ggml.c:12: GGML_ASSERT(n > 0) failed\nmore\n"

    text = diagnose("llama-bench", code, log)

    assert said in text
    assert f"return code {code}): /src/ggml.c:12: GGML_ASSERT(n > 0) failed." in text
    assert text.endswith("loading\n/src/ggml.c:12: GGML_ASSERT(n > 0) failed\nmore")


def test_a_silent_end_is_said() -> None:
    assert diagnose("llama-bench", 0, "\n") == "llama-bench ended without a result (return code 0). It printed nothing."


def test_only_the_end_of_a_long_log_is_repeated() -> None:
    assert diagnose("x", 1, "\n".join(map(str, range(1000)))).splitlines()[1:] == [str(n) for n in range(985, 1000)]
