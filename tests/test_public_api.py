"""What is public: documented, in numpydoc's form, typed as it says, and usable without what isn't installed."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mypy import api as mypy
from numpydoc.validate import validate

import ggufslice

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
MODULES = [
    "ggufslice",
    "ggufslice.bench",
    "ggufslice.bench.pictures",
    "ggufslice.lockfile",
    "ggufslice.ops",
    "ggufslice.recipe",
    "ggufslice.spans",
    "ggufslice.testing",
    "ggufslice.testing.server",
    # not ggufslice.testing.strategies: numpydoc reads source, and hypothesis makes those functions at run time
    "ggufslice.verify",
]
# What numpydoc.validate is asked for: that there is a summary, that parameters and sections are known, and that they
# say something. Not asked for: types beside parameters, which the signatures have, and their order, since some are grouped.
CODES = {
    "GL01",
    "GL03",
    "GL05",
    "GL06",
    "GL07",
    "GL08",
    "GL10",
    "SS01",
    "SS02",
    "SS03",
    "SS04",
    "PR02",
    "PR07",
    "RT03",
}


def public() -> Iterator[tuple[str, Any]]:
    """Yield each public object and public method with its dotted name, once."""
    seen = set()
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            thing = getattr(importlib.import_module(module), name)
            if id(thing) in seen or not callable(thing) or not str(thing.__module__).startswith("ggufslice"):
                continue
            seen.add(id(thing))
            yield f"{module}.{name}", thing
            if inspect.isclass(thing):
                for attribute, value in vars(thing).items():
                    if not attribute.startswith("_") and isinstance(
                        value, property | classmethod | staticmethod | type(public)
                    ):
                        yield f"{module}.{name}.{attribute}", value


def report(name: str) -> dict[str, Any]:
    """Return what numpydoc has to say of an object's docstring."""
    return dict(validate(name))  # type: ignore[no-untyped-call]  # numpydoc has no types


@pytest.mark.parametrize("name", sorted({name for name, _ in public()}))
def test_docstrings_have_numpydocs_form(name: str) -> None:
    complaints = [f"{code} {text}" for code, text in report(name)["errors"] if code in CODES]
    assert complaints == []


@pytest.mark.parametrize(
    "name", sorted({name for name, thing in public() if inspect.isfunction(thing) and thing.__annotations__})
)
def test_every_parameter_is_described_or_none_is(name: str) -> None:
    """A docstring of one sentence is enough for some functions; one that starts a list of parameters completes it."""
    errors = dict(report(name)["errors"])
    section = "Parameters\n" in report(name)["docstring"]
    assert not section or "PR01" not in errors, errors.get("PR01")


def documented() -> dict[str, set[str]]:
    """Return the names in the reference's summaries, by module."""
    found: dict[str, set[str]] = {}
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        module = ""
        listing = False
        for line in page.read_text(encoding="utf-8").splitlines():
            if directive := re.match(r"\.\. (\w+):: ?(\S*)", line):
                listing = directive[1] == "autosummary"
                module = directive[2] if directive[1] == "currentmodule" else module
            elif listing and re.fullmatch(r"   [\w.]+", line):
                found.setdefault(module, set()).add(line.strip())
            elif line.startswith("```{eval-rst}"):
                listing = False
    return found


@pytest.mark.parametrize(
    "module",
    [
        "ggufslice.bench",
        "ggufslice.lockfile",
        "ggufslice.ops",
        "ggufslice.recipe",
        "ggufslice.spans",
        "ggufslice.testing",
        "ggufslice.verify",
    ],
)
def test_the_reference_lists_what_a_module_exports(module: str) -> None:
    exported = {
        name for name in importlib.import_module(module).__all__ if callable(getattr(importlib.import_module(module), name))
    }
    assert documented()[module] == exported


def test_names_are_found_before_they_are_imported() -> None:
    code = "import ggufslice as gs; print(set(dir(gs)) == {*gs.__all__, '__version__'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_reference_lists_what_the_package_exports() -> None:
    listed = {name for name in documented()["ggufslice"] if "." not in name}
    operations = set(importlib.import_module("ggufslice.ops").__all__) & set(ggufslice.__all__)
    assert listed | operations == set(ggufslice.__all__)
    assert not listed & operations


def test_type_checkers_infer_the_public_types() -> None:
    said, errors, code = mypy.run(["--config-file", str(ROOT / "pyproject.toml"), str(ROOT / "tests" / "typing")])
    assert code == 0, said + errors


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
{code}
"""


def without(blocked: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter in which these packages can't be imported."""
    program = BLOCKED.format(blocked=blocked, code=code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("extra", "package", "code"),
    [
        ("cli", "typer", "from ggufslice.__main__ import main; sys.exit(main())"),
        ("cli", "rich", "from ggufslice.__main__ import main; sys.exit(main())"),
        ("testing", "hypothesis", "import ggufslice.testing.strategies"),
        ("card", "matplotlib", "from ggufslice.bench import pictures; pictures.card(None, 'card.svg')"),
        ("s3", "s3fs", "import ggufslice; ggufslice.open('s3://bucket/model.gguf')"),
    ],
)
def test_a_missing_extra_is_said_in_one_line(extra: str, package: str, code: str) -> None:
    done = without({package}, code)

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"pip install 'ggufslice[{extra}]'" in last
    assert package in last


def test_the_core_needs_no_extra() -> None:
    extras = {"typer", "rich", "hypothesis", "matplotlib", "s3fs"}
    code = "import ggufslice as gs, ggufslice.testing, ggufslice.bench; [getattr(gs, n) for n in gs.__all__]; print('fine')"
    done = without(extras, code)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
