"""What snippets of the documentation find in place: small models, and stand-ins for services on the network.

A prelude gets the folder that snippets run in and a stack to clean up with, and returns environment variables.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import fsspec
from moto.server import ThreadedMotoServer

from ggufslice.testing import HubServer, TensorSpec, build_gguf, kimi_k3, split_gguf, synthetic, write_shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

__all__ = ["PRELUDES"]

NAME = {"general.name": "Example"}
Q4_0, Q8_0 = 2, 8


def model(folder: Path, _stack: ExitStack) -> dict[str, str]:
    """``model.gguf``: four layers of eight experts."""
    (folder / "model.gguf").write_bytes(build_gguf(*synthetic(metadata=NAME)))
    return {}


def bench(folder: Path, _stack: ExitStack) -> dict[str, str]:
    """``model.gguf``: eight layers of 16 experts, wide enough to be quantized."""
    keys, tensors = synthetic(layers=8, experts=16, width=256, expert_ffn=256, tensor_type=Q8_0, metadata=NAME)
    (folder / "model.gguf").write_bytes(build_gguf(keys, tensors))
    return {}


def imatrix(folder: Path, stack: ExitStack) -> dict[str, str]:
    """``model.gguf`` and an importance matrix of it: how many tokens each expert of each layer saw."""
    model(folder, stack)
    tensors = []
    for block in range(4):
        seen = [100 * ((expert * 3 + block) % 8) + 7 for expert in range(8)]
        for part in ("gate", "up", "down"):
            name = f"blk.{block}.ffn_{part}_exps.weight"
            tensors.append(TensorSpec(f"{name}.in_sum2", (32, 8)))
            tensors.append(TensorSpec(f"{name}.counts", (1, 8), data=struct.pack("<8f", *seen)))
    keys = {
        "general.type": "imatrix",
        "imatrix.datasets": ["calibration.txt"],
        "imatrix.chunk_count": 1,
        "imatrix.chunk_size": 512,
    }
    (folder / "model.imatrix.gguf").write_bytes(build_gguf(keys, tensors))
    return {}


def hybrid(folder: Path, _stack: ExitStack) -> dict[str, str]:
    """Two models of eight layers of which every fourth is special: by a period in the file, and by the loader alone."""
    interval = {"qwen3next.full_attention_interval": 4}
    (folder / "qwen3next.gguf").write_bytes(build_gguf(*synthetic("qwen3next", layers=8, metadata=interval)))
    (folder / "smollm3.gguf").write_bytes(build_gguf(*synthetic("smollm3", layers=8, experts=0)))
    return {}


def quants(folder: Path, _stack: ExitStack) -> dict[str, str]:
    """One model in two quants, and one with and one without an MTP block."""
    for name, kind in (("q4_0", Q4_0), ("q8_0", Q8_0)):
        (folder / f"model-{name}.gguf").write_bytes(build_gguf(*synthetic(tensor_type=kind, metadata=NAME)))
    (folder / "no-mtp.gguf").write_bytes(build_gguf(*synthetic("glm4moe", layers=4)))
    (folder / "with-mtp.gguf").write_bytes(build_gguf(*synthetic("glm4moe", layers=4, mtp=1)))
    return {}


def hub(_folder: Path, stack: ExitStack) -> dict[str, str]:
    """A Hugging Face Hub with ``org/Model-GGUF``: a quant in three shards, another one in a file."""
    keys, tensors = synthetic(metadata=NAME)
    files = {f"Q4_K_M/Model-Q4_K_M-{i:05d}-of-00003.gguf": shard for i, shard in enumerate(split_gguf(keys, tensors, 3), 1)}
    files["Model-Q8_0.gguf"] = build_gguf(keys, tensors)
    server = stack.enter_context(HubServer({"org/Model-GGUF": files}))
    return {"HF_ENDPOINT": server.url().rstrip("/")}


def k3(folder: Path, stack: ExitStack) -> dict[str, str]:
    """A Hugging Face Hub with a model of Kimi-K3's shape, very narrow, in 14 shards."""
    shards = write_shards(folder, "Kimi-K3-UD-IQ1_S", *kimi_k3(width=16, vocab=512), 14)
    server = stack.enter_context(HubServer({"org/Kimi-K3-GGUF": {f"UD-IQ1_S/{path.name}": path for path in shards}}))
    return {"HF_ENDPOINT": server.url().rstrip("/")}


def s3(_folder: Path, stack: ExitStack) -> dict[str, str]:
    """An S3 service with a model in the bucket ``models``."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    stack.callback(server.stop)
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    options = {"key": "key", "secret": "secret", "endpoint_url": endpoint, "skip_instance_cache": True}
    bucket = fsspec.filesystem("s3", **options)  # type: ignore[no-untyped-call]
    bucket.mkdir("models")
    bucket.pipe("models/example/model.gguf", build_gguf(*synthetic(metadata=NAME)))
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


PRELUDES: dict[str, Callable[[Path, ExitStack], dict[str, str]]] = {
    "bench": bench,
    "model": model,
    "imatrix": imatrix,
    "hybrid": hybrid,
    "quants": quants,
    "hub": hub,
    "k3": k3,
    "s3": s3,
}
