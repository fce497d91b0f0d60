"""The main job on a real, trained model: from shards behind HTTP to a talking slice and an honest receipt."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGUFReader

import ggufslice as gs
from ggufslice.bench._binaries import Llama
from ggufslice.bench._server import serve
from ggufslice.testing import RangeServer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.models, pytest.mark.llama]

EXPERTS = [3, 0, 31, 17, 8, 25, 12, 5, 29, 14, 1, 20, 9, 27, 6, 22]
LAYERS = [0, 1, 2, 4, 6, 7]
PARAMETERS = 28_906_752  # of tinymoe, as its makers counted


def run(*command: object) -> str:
    """Run a program with its input closed and its output kept."""
    done = subprocess.run(
        [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False
    )
    text = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    assert done.returncode == 0, text[-3000:]
    return text


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory, tinymoe: Path) -> tuple[Path, gs.Receipt, int]:
    """Tinymoe cut to 16 of 32 experts and 6 of 8 layers, over HTTP; with its receipt and the server's count of bytes."""
    out = tmp_path_factory.mktemp("cut") / "small.gguf"
    with RangeServer(tinymoe.parent) as server, gs.open(server.url(tinymoe.name)) as model:
        receipt = model.pipe(
            gs.select_experts(EXPERTS),
            gs.keep_layers(LAYERS),
            gs.set_expert_used(2),
            gs.set_metadata({"general.name": "tinymoe 6L"}),
        ).write(out)
        return out, receipt, server.bytes_sent


def test_the_cut_holds_exactly_the_named_experts_and_layers(cut: tuple[Path, gs.Receipt, int], tinymoe: Path) -> None:
    originals = {t.name: t for shard in sorted(tinymoe.parent.glob("*-of-00004.gguf")) for t in GGUFReader(shard).tensors}
    reader = GGUFReader(cut[0])
    assert len(reader.tensors) == 3 + 12 * len(LAYERS)
    for tensor in reader.tensors:
        name, data = tensor.name, tensor.data
        if name.startswith("blk."):
            _, block, rest = name.split(".", 2)
            name = f"blk.{LAYERS[int(block)]}.{rest}"
        expected = originals[name].data
        if "_exps" in name or "ffn_gate_inp" in name:
            expected = expected[EXPERTS]
        assert np.array_equal(data, expected), tensor.name


def test_only_the_bytes_that_survive_were_fetched(cut: tuple[Path, gs.Receipt, int]) -> None:
    path, receipt, sent = cut
    transfer = receipt.transfer
    assert transfer is not None
    assert transfer.payload + transfer.gap + transfer.header + transfer.wasted == transfer.received == sent
    assert transfer.wasted == 0
    assert transfer.payload == sum(t.n_bytes for t in GGUFReader(path).tensors)


def test_it_talks(cut: tuple[Path, gs.Receipt, int], llama: Path) -> None:
    run(llama / "llama-completion", "-m", cut[0], "-p", "It is a truth", "-n", 8, "-no-cnv", "--temp", 0, "-c", 128, "-t", 2)
    with serve(cut[0], ctx=256, llama=Llama(llama)) as server:
        sample = server.sample("It is a truth", 24)
    assert sample.returned == 24
    words = sample.text.split()
    assert len(set(words)) > 5, sample.text
    assert all(c.isascii() for c in sample.text), sample.text


def test_a_requantized_cut_still_knows_what_it_was(cut: tuple[Path, gs.Receipt, int], llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "small-q1.gguf"
    run(llama / "llama-quantize", "--allow-requantize", cut[0], out, "Q1_0", 2)

    receipt = gs.Receipt.of(out)

    tensors = GGUFReader(out).tensors
    n_bytes = sum(int(t.n_bytes) for t in tensors)
    present = sum(int(t.n_elements) for t in tensors)
    lines = str(receipt).splitlines()[-3:]
    assert lines[0].startswith(f"DECLARED bits/param  : {8 * n_bytes / PARAMETERS:.4f} ")
    assert lines[1].startswith(f"REAL bits/param      : {8 * n_bytes / present:.3f} ")
    assert lines[2] == f"weight volume missing: {100 * (1 - present / PARAMETERS):.1f}%"
    assert f"{PARAMETERS:,}" in str(receipt) or str(PARAMETERS) in str(receipt.to_json())
