"""Every snippet of the documentation and of the README does what it shows."""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from _preludes import PRELUDES
from _snippets import Page, Shell, environment, snippets

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)])


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_snippets_do_what_they_show(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    found = snippets(path)
    if not any(s.language in ("python", "pycon", "console", "sh") for s in found):
        return
    env: dict[str, str] = {}
    if any(("needs", "llama") in s.asks for s in found):
        env["GGUFSLICE_LLAMA_DIR"] = str(request.getfixturevalue("llama"))
    for key in [k for k in os.environ if k.startswith(("HF_", "AWS_", "GGUFSLICE_"))]:
        monkeypatch.delenv(key)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        for what, name in (ask for s in found for ask in s.asks):
            if what == "prelude":
                env |= PRELUDES[name](tmp_path, stack)
        for key, value in env.items():
            monkeypatch.setenv(key, value)
        shell = stack.enter_context(Shell(tmp_path, environment(tmp_path) | env))
        page = Page(tmp_path, shell, replace={"8000": str(_free_port())})
        for snippet in found:
            if "not run" not in dict(snippet.asks):
                page.run(snippet)


def _free_port() -> int:
    """Return a port with as many digits as the one on the pages: a URL's length is in the size of what is written."""
    for port in range(9000, 10000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@pytest.mark.parametrize(
    ("section", "command"),
    [
        ("inspect", "inspect model.gguf"),
        ("plan", "plan model.gguf --experts 4"),
        ("receipt, build, demo", "build model.gguf out.gguf --experts 4"),
        ("receipt, build, demo", "receipt model.gguf"),
    ],
)
def test_the_keys_of_json_are_documented(section: str, command: str, tmp_path: Path) -> None:
    """The first column of a section's table names exactly the keys that the command prints."""
    page = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    table = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    documented = {key for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    with ExitStack() as stack:
        PRELUDES["model"](tmp_path, stack)
        code, printed = stack.enter_context(Shell(tmp_path, environment(tmp_path))).run(
            f"ggufslice {command} --json 2>/dev/null"
        )
    assert code == 0
    assert set(json.loads(printed)) == documented
