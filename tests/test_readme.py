"""The README's first two shell blocks work from a fresh clone: continuous integration runs them as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)]


def test_the_first_block_runs_the_demo_and_the_second_the_tests() -> None:
    assert len(BLOCKS) >= 2
    demo, tests = BLOCKS[:2]
    assert demo[0] == tests[0] == "python3 -m venv .venv"  # each works alone
    assert demo[-1] == ".venv/bin/ggufslice demo"
    assert tests[-1] == ".venv/bin/pytest"


def test_the_extras_exist_and_the_command_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(re.findall(r"\.\[(\w+)\]", README)) <= set(project["optional-dependencies"])
    module, _, function = project["scripts"]["ggufslice"].partition(":")
    code = f"import sys; from {module} import {function}; sys.argv = ['ggufslice', '--version']; sys.exit({function}())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("ggufslice ")


def test_ci_runs_the_blocks_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    extract = re.search(r"awk -v wanted=\"\$1\" '(.*)' README\.md", script.read_text(encoding="utf-8"))
    assert extract is not None
    for n, block in enumerate(BLOCKS[:2], 1):
        done = subprocess.run(
            ["awk", "-v", f"wanted={n}", extract[1], "README.md"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == block


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [t for t in targets if "://" not in t and not (ROOT / t).exists()] == []
