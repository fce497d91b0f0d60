"""Results as a measurement would have left them, made by hand."""

from __future__ import annotations

from typing import Any

import attrs

from ggufslice.bench import Bench, Fetched, Figures, Machine, Results, Sample, Speed, Step, judge

TEXT = "the of and a" * 5


def speed(per_second: float, deviation: float | None = 0.1) -> Speed:
    return Speed(128, per_second, deviation, (per_second, per_second))


def sample(**changes: Any) -> Sample:
    made = Sample(
        prompt="Write one sentence about quantization:",
        text=TEXT,
        tokens=tuple(range(48)),
        asked=48,
        returned=48,
        temperature=0.0,
        stop="limit",
        prompt_tokens=8,
        prompt_per_second=900.0,
        per_second=81.3,
        flags="-ngl 99",
    )
    return attrs.evolve(made, **changes)


MACHINE = Machine(
    host="example-host",
    system="Linux 6.11 aarch64",
    cpu="Cortex-X925",
    cpu_count=20,
    memory_bytes=128 * 2**30,
    gpus=("CUDA0: NVIDIA GB10 (122570 MiB, 100000 MiB free)",),
    driver="580.95.05",
    unified_memory=True,
    llama_version="0.6.0 (build 11434, commit abcdef0)",
    load=0.03,
)


def figures(
    tensor_bytes: int,
    n_params: int,
    *,
    layers: int = 12,
    token_bytes: int | None = None,
    source_params: int = 2_800_000_000_000,
) -> Figures:
    return Figures(
        layers=layers,
        source_layers=93,
        experts=16,
        source_experts=896,
        experts_used=2,
        file_bytes=tensor_bytes + 5_000_000,
        tensor_bytes=tensor_bytes,
        token_bytes=tensor_bytes,
        n_params=n_params,
        source_params=source_params,
        declared=8 * tensor_bytes / source_params,
        real=8 * tensor_bytes / n_params,
        missing=1 - n_params / source_params,
    )


def bench(prefill: float, decode: float, f: Figures) -> Bench:
    raw = ({"avg_ts": prefill, "stddev_ts": 0.1}, {"avg_ts": decode, "stddev_ts": 0.1})
    return Bench(
        speed(prefill), speed(decode), "CUDA", "auto", f.tensor_bytes, f.n_params, "-p 128 -n 128 -r 3 -ngl 99", (), raw
    )


def step(name: str, f: Figures, prefill: float, decode: float, **changes: Any) -> Step:
    made = Step(
        name=name,
        key="0",
        file=f"kimi-k3-{name}-Q1_0.gguf",
        vocabulary=163_840,
        figures=f,
        quantized=None,
        bench=bench(prefill, decode, f),
        sample=sample(),
        perplexity=None,
        gate=judge(sample(), vocabulary=163_840, experimental=True),
        machine=MACHINE,
    )
    return attrs.evolve(made, **changes)


L93 = step("L93", figures(15_640_000_000, 104_800_000_000, layers=93), 300.0, 11.27)
L12 = step("L12", figures(3_010_000_000, 15_600_000_000), 1806.63, 83.65)


def results(*steps: Step, **changes: Any) -> Results:
    made = Results(
        name="Kimi-K3, 16 of 896 experts",
        intent="experimental",
        source="hf://unsloth/Kimi-K3-GGUF/UD-IQ1_S/Kimi-K3-UD-IQ1_S-00001-of-00014.gguf",
        revision="0123456789abcdef",
        licence={"general.license": "other", "general.license.name": "kimi-k3"},
        recipe={"bench": {"bandwidth": 273.0}},
        fetched=Fetched(received=56_100_000_000, never_requested=537_900_000_000, requests=4416, seconds=462.0),
        steps=steps or (L93, L12),
        ggufslice="0.1.0",
    )
    return attrs.evolve(made, **changes)
