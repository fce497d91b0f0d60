"""What is distributed: fragments of the changelog, wheel and sdist, and that an installed wheel works on its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ggufslice

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
FRAGMENTS = sorted(p for p in (ROOT / "changes").iterdir() if p.name != "README.md")


def run(*command: object, cwd: Path = ROOT, timeout: float = 600) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The changelog ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda p: p.name)
def test_a_fragment_is_one_sentence_of_a_known_kind(path: Path) -> None:
    kinds = {kind["directory"] for kind in PYPROJECT["tool"]["towncrier"]["type"]}
    match = re.fullmatch(r"\+[a-z0-9-]+\.(\w+)\.md", path.name)
    assert match, "fragments are called +some-words.kind.md"
    assert match[1] in kinds
    text = path.read_text(encoding="utf-8").strip()
    assert text.endswith(".")
    assert text[0].isupper() or text[0] == "`"
    assert not re.search(r"\.\s+[A-Z]", text), "one sentence"


def test_the_changelog_can_be_built() -> None:
    draft = run(sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9", "--date", "2030-01-01")
    assert "## 9.9.9 (2030-01-01)" in draft
    for path in FRAGMENTS:
        assert " ".join(path.read_text(encoding="utf-8").split()) in " ".join(draft.split())


# Dependencies ------------------------------------------------------------------------------------------


def floors(requirements: Iterable[str]) -> dict[str, str]:
    """Return package to lowest version, of requirements such as ``numpy>=1.26``."""
    found = [re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", text) for text in requirements]
    return {match[1]: match[2] for match in found if match}


def test_the_constraints_are_the_lowest_versions_allowed() -> None:
    extras = PROJECT["optional-dependencies"]
    allowed = floors([*PROJECT["dependencies"], *(r for name in ("cli", "card", "testing", "s3") for r in extras[name])])
    lines = (ROOT / "constraints-min.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {name: version.removesuffix(".*") for name, version in pinned.items()} == allowed


def test_the_version_is_said_once_and_the_same_everywhere() -> None:
    assert PROJECT["version"] == ggufslice.__version__


# Wheel and sdist ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and sdist into a folder."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder)
    return folder


@pytest.mark.matrix
def test_the_wheel_holds_the_package_alone(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert "ggufslice/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"ggufslice", f"ggufslice-{ggufslice.__version__}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.matrix
def test_the_sdist_can_be_tested_and_documented_from(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile"} <= names
    assert {"docs/conf.py", "docs/index.md", "examples/diff.py", "tests/conftest.py", "constraints-min.txt"} <= names
    assert not [name for name in names if "docs/_build" in name or "__pycache__" in name]


@pytest.mark.matrix
def test_an_installed_wheel_runs_the_demo(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    scripts = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    run(scripts / "pip", "install", "--quiet", f"{wheel}[cli]")

    said = run(scripts / "ggufslice", "demo", cwd=tmp_path)

    last = said.strip().splitlines()[-3:]
    assert last[0].startswith("DECLARED bits/param  : ")
    assert last[1].startswith("REAL bits/param      : ")
    assert last[2].startswith("weight volume missing: ")
    assert not list(tmp_path.glob("*.gguf"))
