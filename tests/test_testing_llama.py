"""llama.cpp loads and runs the synthetic models."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ggufslice.testing import build_gguf, kimi_k3, synthetic, write_shards

if TYPE_CHECKING:
    from pathlib import Path

MODELS: dict[str, Any] = {
    "qwen3moe": synthetic,
    "qwen3moe-q8_0": lambda: synthetic(width=64, tensor_type=8, experts=5, seed=1),
    "qwen3 dense": lambda: synthetic("qwen3", experts=0),
    "llama": lambda: synthetic("llama", qk_norm=False, expert_ffn=64),
    "kimi-k3 in the large one's types": lambda: kimi_k3(
        layers=8, experts=8, used=2, width=256, latent=256, expert_ffn=256, vocab=512
    ),
    "kimi-k3 narrow": lambda: kimi_k3(layers=5, experts=4, used=1, width=64, vocab=300),
}


# Its log is written by a thread that may end before the last lines: only the exit code is sure to say how it went.
def _complete(llama: Path, model: Path) -> subprocess.CompletedProcess[str]:
    command = [
        str(llama / "llama-completion"),
        "-m",
        str(model),
        "-p",
        "ab",
        "-n",
        "3",
        "-no-cnv",
        "-ngl",
        "0",
        "-t",
        "1",
        "--temp",
        "0",
    ]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=120
    )


@pytest.mark.llama
@pytest.mark.parametrize("name", MODELS)
def test_llama_runs_it(name: str, llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build_gguf(*MODELS[name]()))

    done = _complete(llama, path)

    assert done.returncode == 0, done.stderr


@pytest.mark.llama
def test_llama_tells_by_its_exit_code_what_it_cannot_load(llama: Path, tmp_path: Path) -> None:
    metadata, tensors = synthetic()
    path = tmp_path / "model.gguf"
    path.write_bytes(build_gguf(metadata, [*tensors[:-1], tensors[0]]))

    assert _complete(llama, path).returncode == 1


@pytest.mark.llama
@pytest.mark.parametrize("no_tensor_first", [False, True])
def test_llama_runs_our_shards(llama: Path, tmp_path: Path, no_tensor_first: bool) -> None:  # noqa: FBT001 - a parameter
    paths = write_shards(tmp_path, "model", *synthetic(), 3, no_tensor_first=no_tensor_first)

    done = _complete(llama, paths[0])

    assert done.returncode == 0, done.stderr
