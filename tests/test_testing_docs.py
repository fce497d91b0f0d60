"""The examples in the test kit's documentation run, and importing it stays light."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import pytest

from ggufslice import testing
from ggufslice.testing import _faults, server

MODULES = ("", "._build", "._hub", "._models", "._server", "._specs", ".strategies")


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"ggufslice.testing{module}"))

    assert results.attempted > 0
    assert results.failed == 0


def test_the_package_exports_what_it_says() -> None:
    assert testing.__all__ == sorted(testing.__all__)
    assert all(hasattr(testing, name) for name in testing.__all__)


def test_importing_it_does_not_import_hypothesis() -> None:
    program = "import ggufslice.testing, sys; print('hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert done.stdout == "False\n"


def test_every_fault_is_in_the_table() -> None:
    cells = {cell for line in str(server.__doc__).splitlines() for cell in line.split("`")[1::2]}
    documented: dict[str, set[str]] = {}
    for cell in cells:
        name, _, parameters = cell.partition(":")
        documented.setdefault(name, set()).update(item.partition("=")[0] for item in parameters.split(",") if item)

    for name, fault in _faults.FAULTS.items():
        assert documented[name] == set(fault.params), name
