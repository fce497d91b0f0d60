"""Profiles of hypothesis, and fixtures for the models, the binaries and the servers that tests need."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import HealthCheck, settings

from ggufslice.testing import RangeServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}

# The machine may be busy: how long an example takes says nothing.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, max_examples=50, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if _IN_CI else "default"))


def _missing(what: str) -> None:
    """Skip on a developer's machine; in CI a test that can't run is a failure."""
    if _IN_CI:
        pytest.fail(f"{what}, and CI must run this test")
    pytest.skip(what)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of the shared test models."""
    folder = os.environ.get("GGUFSLICE_SHARED")
    if not folder:
        _missing("GGUFSLICE_SHARED isn't set")
    return Path(str(folder))


@pytest.fixture(scope="session")
def zoo(shared: Path) -> Path:
    """Return the folder of small random models of many architectures."""
    return shared / "models" / "zoo"


@pytest.fixture(scope="session")
def tinymoe(shared: Path) -> Path:
    """Return the first of four shards of the trained model; texts and imatrix files are beside it."""
    return shared / "models" / "tinymoe" / "tinymoe-f16-00001-of-00004.gguf"


@pytest.fixture(scope="session")
def llama() -> Path:
    """Return the folder of llama.cpp's binaries."""
    folder = os.environ.get("GGUFSLICE_LLAMA_DIR")
    found = Path(folder) if folder else Path(shutil.which("llama-quantize") or "missing").parent
    if not (found / "llama-quantize").exists():
        _missing("llama.cpp's binaries are neither in GGUFSLICE_LLAMA_DIR nor on PATH")
    return found


class Serve(Protocol):
    """Start a server that runs until the test ends."""

    def __call__(
        self, root: str | os.PathLike[str] | Mapping[str, bytes | Path], *, other: RangeServer | None = None
    ) -> RangeServer:
        """Serve a folder or a mapping of names to contents."""


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a `RangeServer`; several can run at once."""
    with ExitStack() as stack:

        def start(
            root: str | os.PathLike[str] | Mapping[str, bytes | Path], *, other: RangeServer | None = None
        ) -> RangeServer:
            return stack.enter_context(RangeServer(root, other=other))

        yield start
