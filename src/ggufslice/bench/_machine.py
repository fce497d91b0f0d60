"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ggufslice.bench._process import run
from ggufslice.errors import BenchError

if TYPE_CHECKING:
    from ggufslice.bench._binaries import Llama

__all__ = ["Machine"]

_NVIDIA = ("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits")


@attrs.frozen
class Machine:
    """A machine, as far as it says what it is; None where it doesn't.

    Parameters
    ----------
    host
        Name in the network.
    system
        Operating system, release and processor architecture.
    cpu
        Model of the processor.
    cpu_count
        Processors that this process may use.
    memory_bytes
        Memory of the system.
    gpus
        Devices that llama-bench lists, in its words; empty where it can only use the processor.
    driver
        Version of the NVIDIA driver.
    unified_memory
        Whether GPU and processor share the memory; None where there is no GPU or it isn't known.
    llama_version
        What llama-bench says of itself, also where that is ``unknown``; None where it wasn't run.
    load
        Running or waiting processes, mean of the last minute, before the measurement: that of an idle machine is near 0.
    """

    host: str
    system: str
    cpu: str | None
    cpu_count: int
    memory_bytes: int | None
    gpus: tuple[str, ...]
    driver: str | None
    unified_memory: bool | None
    llama_version: str | None
    load: float | None

    @classmethod
    def of(cls, llama: Llama | None) -> Machine:
        """Ask this machine; without llama.cpp, what it says of itself alone."""
        gpus = llama.devices() if llama else ()
        nvidia = _nvidia() if gpus else None
        return cls(
            host=platform.node(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            cpu=_cpu(),
            cpu_count=_cpu_count(),
            memory_bytes=_memory(),
            gpus=gpus,
            driver=nvidia[0] if nvidia else None,
            unified_memory=_unified(nvidia) if gpus else None,
            llama_version=llama.version() if llama else None,
            load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        )

    @property
    def words(self) -> str:
        """One line: processor or GPU, and memory."""
        memory = f"{self.memory_bytes / 2**30:.0f} GiB" if self.memory_bytes else "memory unknown"
        unified = {True: " unified", False: "", None: ""}[self.unified_memory]
        return f"{' + '.join(self.gpus) or self.cpu or self.system}, {memory}{unified}"


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str | None:
    """Return the processor's model: x86 has it in /proc/cpuinfo, aarch64 only in what lscpu makes of the part numbers."""
    if sys.platform != "linux":
        return platform.processor() or None
    info = Path("/proc/cpuinfo")
    text = info.read_text("utf-8", "replace") if info.exists() else ""
    models = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if not models and shutil.which("lscpu"):
        models = re.findall(r"^Model name:\s*(.+)$", run(["lscpu"], timeout=10).stdout, re.MULTILINE)
    return " + ".join(dict.fromkeys(model.strip() for model in models)) or None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _nvidia() -> list[str] | None:
    """Return driver and memory of the first NVIDIA GPU, as nvidia-smi words them."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        lines = run(["nvidia-smi", *_NVIDIA], timeout=30).check("asking nvidia-smi").stdout.splitlines()
    except BenchError:
        return None
    return [part.strip() for part in lines[0].split(",")][1:] if lines else None


def _unified(nvidia: list[str] | None) -> bool | None:
    """Tell whether the GPU has no memory of its own: Apple's have none, and of NVIDIA's integrated ones (GB10 and its
    kin) nvidia-smi states no size.
    """  # noqa: D205 - one sentence
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return True
    return not nvidia[1].isdigit() if nvidia else None
