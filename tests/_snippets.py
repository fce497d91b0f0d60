"""Find the snippets of a Markdown page, and run them as a reader would: one after another, in one folder.

===================== =====================================================================================================
```` ```python ````   executed; all Python of a page shares its names
```` ```pycon ````    a session: output is compared, ``...`` stands for anything
```` ```console ````  commands behind ``$``, in one shell; output behind a command is compared, as above
```` ```sh ````       commands alone; the page ends where one fails
```` ```toml ````     and other files: written to the name in ``:caption:``
others                not executed
===================== =====================================================================================================

A comment before a snippet says what it needs. ``<!-- prelude: NAME -->`` sets something up, such as a stand-in for a server;
``<!-- needs: llama -->`` asks for a fixture; ``<!-- fails: 2 -->`` expects the exit code of the last command;
``<!-- not run: REASON -->`` leaves the snippet out.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Self

import attrs

LANGUAGES = {"python", "pycon", "console", "sh", "toml", "json"}
_TEXT = {"text", "make", "yaml", "markdown", "diff"}
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")
_COMMENT = re.compile(r"^\s*<!-- (?P<what>prelude|needs|fails|not run): (?P<value>.+?) -->$")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_NOT_HERE = re.compile(r"^(pip|uv|git|cd ggufslice|make) ")  # the tests of packaging install; these change the machine


@attrs.frozen
class Snippet:
    """A fenced block: where it is, what it is, and what the comments before it ask for."""

    page: str
    line: int
    language: str
    code: str
    caption: str | None
    asks: tuple[tuple[str, str], ...]


def snippets(path: Path) -> list[Snippet]:
    """Return the snippets of a page, in order.

    A fence in a language that this module neither runs nor knows to be text is an error, so that nothing slips through.
    """
    found = []
    asks: list[tuple[str, str]] = []
    lines = iter(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        if comment := _COMMENT.match(line):
            asks.append((comment["what"], comment["value"]))
        elif fence := _FENCE.match(line):
            block = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                block.append(inner)
            language, _, argument = fence["info"].strip().partition(" ")
            if language == "{code-block}":
                language = argument
            caption = None
            while block and (option := re.match(r" *:(\w+): *(.*)", block[0])):
                caption = option[2] if option[1] == "caption" else caption
                block.pop(0)
            if not language.startswith("{"):
                assert language in LANGUAGES | _TEXT, f"{path.name}:{number}: a snippet in the language {language!r}"
            code = textwrap.dedent("\n".join(block)) + "\n"
            found.append(Snippet(path.name, number, language, code, caption, tuple(asks)))
            asks = []
    return found


class Shell:
    """A shell that a page's commands run in, so that what one sets the next one sees."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["/bin/bash", "--norc"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the shell and what it left running."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def run(self, command: str) -> tuple[int, str]:
        """Run a command; return its exit code and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\nprintf '\\n~~done %d\\n' $?\n")
        self._process.stdin.flush()
        out: list[str] = []
        for line in self._process.stdout:
            if line.startswith("~~done "):
                return int(line.split()[1]), "".join(out).removesuffix("\n")
            out.append(line)
        raise AssertionError(f"the shell ended in {command!r}:\n{''.join(out)}")


@attrs.define
class Page:
    """A page that is being run, in `folder`."""

    folder: Path
    shell: Shell
    replace: dict[str, str] = attrs.field(factory=dict)
    names: dict[str, Any] = attrs.field(factory=lambda: {"__name__": "__main__"})

    def run(self, snippet: Snippet) -> None:
        """Run one snippet, and check what it shows."""
        code = snippet.code
        for old, new in self.replace.items():
            code = re.sub(rf"\b{old}\b", new, code)
        where = f"{snippet.page}:{snippet.line}"
        expected_code = int(dict(snippet.asks).get("fails", 0))
        if snippet.caption:
            (self.folder / snippet.caption).write_text(code, encoding="utf-8")
        elif snippet.language == "python":
            exec(compile("\n" * snippet.line + code, snippet.page, "exec"), self.names)  # noqa: S102 - the page's own code
        elif snippet.language == "pycon":
            self._session(code, where, snippet.line)
        elif snippet.language in ("console", "sh"):
            for command, shown in _commands(code, prompts=snippet.language == "console"):
                self._command(command, shown, where, expected_code)

    def _session(self, code: str, where: str, line: int) -> None:
        test = doctest.DocTestParser().get_doctest(code, self.names, where, where, line)
        runner = doctest.DocTestRunner(optionflags=_FLAGS, verbose=False)
        report: list[str] = []
        runner.run(test, out=report.append, clear_globs=False)
        assert not report, "".join(report)
        self.names.update(test.globs)

    def _command(self, command: str, shown: str, where: str, expected_code: int) -> None:
        if _NOT_HERE.match(command):
            return
        code, printed = self.shell.run(command)
        assert code == expected_code, f"{where}: {command}\nexit code {code}, not {expected_code}:\n{printed}"
        if shown.strip():
            same = doctest.OutputChecker().check_output(shown, printed, _FLAGS)
            assert same, f"{where}: {command}\n--- the page shows\n{shown}\n--- it printed\n{printed}"


def _commands(code: str, *, prompts: bool) -> list[tuple[str, str]]:
    """Return the commands of a snippet, each with the output that is shown behind it."""
    found: list[tuple[str, str]] = []
    going_on = False
    for line in code.splitlines():
        starts = line.startswith("$ ") if prompts else bool(line.strip()) and not line.startswith("#")
        if going_on:
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        elif starts:
            found.append((line.removeprefix("$ ") if prompts else line, ""))
        elif prompts and found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
            continue
        going_on = (starts or going_on) and line.endswith("\\")
    return found


def environment(home: Path) -> dict[str, str]:
    """Return an environment for commands: our own programs first, no colours, nothing of the caller's configuration."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "AWS_", "GGUFSLICE_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return keep | {"PATH": path, "HOME": str(home), "NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}
