"""What commands have in common: printing results, complaining, showing progress."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ggufslice.units import bytes_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from ggufslice.io.plan import Plan

    T = TypeVar("T")

__all__ = ["Bar", "complain", "note", "parsed", "printable", "progress_bar", "result"]


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but tab and newline


def printable(text: object) -> str:
    """Return text whose control characters are escaped: a file's names must not drive the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", str(text))


def result(text: object) -> None:
    """Print a result on stdout."""
    typer.echo(printable(text).rstrip("\n"))


def note(text: str) -> None:
    """Print something worth knowing on stderr."""
    _stderr().print(printable(text), markup=False, highlight=False, soft_wrap=True, style="dim")


def complain(text: str) -> None:
    """Print why a command failed on stderr."""
    console = _stderr()
    console.print("ggufslice: ", end="", style="bold red")
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _stderr() -> Console:
    return Console(file=sys.stderr)


def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """Parse an option's value; a ValueError is a usage error that names the option.

    Raises
    ------
    typer.BadParameter
        The value can't be parsed: the command ends with exit code 2.
    """
    try:
        return parse(text)
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


class Bar:
    """Progress of a write: bytes, rate, time left, and how much an earlier run had written.

    Parameters
    ----------
    console
        Where it goes; only notes are printed where that isn't a terminal.

    Attributes
    ----------
    n_files
        Files of the result, once it is known.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = TaskID(0)
        self.n_files = 1

    def started(self, plan: Plan, resumed: int) -> None:
        """See `ggufslice.io.progress.Progress`."""
        self.n_files = len(plan.files)
        if resumed:
            part = percent_text(resumed / (plan.tensor_bytes or 1))
            self.noted(f"going on: {bytes_text(resumed)} ({part}) are there from an earlier run")
        if self._progress:
            self._progress.start()
            self._task = self._progress.add_task("writing", total=plan.tensor_bytes, completed=resumed)

    def advanced(self, n_bytes: int) -> None:
        """See `ggufslice.io.progress.Progress`."""
        if self._progress:
            self._progress.advance(self._task, n_bytes)

    def noted(self, text: str) -> None:
        """See `ggufslice.io.progress.Progress`."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True, style="dim")

    def finished(self) -> None:
        """See `ggufslice.io.progress.Progress`."""
        if self._progress:
            self._progress.stop()


@contextmanager
def progress_bar() -> Iterator[Bar]:
    """Give a `Bar` on stderr, and take it away whatever happens."""
    bar = Bar(_stderr())
    try:
        yield bar
    finally:
        bar.finished()
