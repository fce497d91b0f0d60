"""Run a program so that it can't hang, flood the disk, wait for a keyboard or leave children behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING

import attrs

from ggufslice.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Finished", "diagnose", "environment", "group", "run"]

MAX_OUTPUT = 64 << 20
_TAIL_LINES = 15
_STEP = 0.1  # seconds between looks at the size of the output

# What a shell reports for a signal is 128 more; POSIX's wait gives the negative number.
_SIGNALS = {
    signal.SIGABRT: "stopped on an assertion or an uncaught error",
    signal.SIGILL: "met an instruction that this processor doesn't have: the build is for another one",
    signal.SIGSEGV: "crashed",
    signal.SIGKILL: "was killed, most often for want of memory",
}


@attrs.frozen
class Finished:
    """A program that has ended.

    Parameters
    ----------
    command
        What was run.
    returncode
        As `subprocess` gives it: negative for a signal.
    stdout, stderr
        What it wrote; bytes that aren't UTF-8 are replaced.
    seconds
        Wall time.
    """

    command: tuple[str, ...]
    returncode: int
    stdout: str = attrs.field(repr=False)
    stderr: str = attrs.field(repr=False)
    seconds: float

    @property
    def text(self) -> str:
        """Both outputs, the error stream last."""
        return self.stdout + self.stderr

    def check(self, what: str) -> Finished:
        """Return this, or raise a `BenchError` that says `what` failed and how."""
        if self.returncode:
            raise BenchError(f"{what} failed: {diagnose(self.command[0], self.returncode, self.text)}")
        return self


def environment() -> dict[str, str]:
    """Return the environment for llama.cpp: without the variables that would change its options or hand it credentials."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LLAMA_") and name not in {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
    }


def run(command: Sequence[str | Path], *, timeout: float, max_output: int = MAX_OUTPUT) -> Finished:
    """Run a program to its end.

    Parameters
    ----------
    command
        Program and arguments.
    timeout
        Wall time in seconds after which it is killed.
    max_output
        Bytes of output after which it is killed.

    Raises
    ------
    BenchError
        It can't be started, takes too long or writes too much. A return code other than 0 is not an error here.

    Notes
    -----
    Standard input is empty. The program leads a process group of its own, which is killed when this returns, whatever the
    way: no child outlives the call.
    """
    words = tuple(map(str, command))
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with group(words, out, err) as process:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STEP)
                seconds = time.monotonic() - start
                written = os.fstat(out.fileno()).st_size + os.fstat(err.fileno()).st_size
                if written > max_output:
                    raise BenchError(
                        f"{words[0]} wrote {written} bytes of output, more than the {max_output} it may: it was ended. "
                        f"{tail(_text(err, 4096) or _text(out, 4096))}"
                    )
                if process.returncode is not None:
                    break
                if seconds > timeout:
                    raise BenchError(
                        f"{words[0]} did not end within {timeout:.0f} s: it was ended. "
                        f"{tail(_text(err, 4096) or _text(out, 4096))}"
                    )
        return Finished(words, process.returncode, _text(out), _text(err), seconds)


@contextlib.contextmanager
def group(command: Sequence[str], out: IO[bytes], err: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a process group of its own, which is ended when the context is left.

    Raises
    ------
    BenchError
        It can't be started.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - the user's own programs, no shell
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment(), start_new_session=True
        )
    except OSError as error:
        raise BenchError(_cannot_start(command[0], error)) from None
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group: nothing that llama.cpp does needs a gentle end."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says so of a group of zombies
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _cannot_start(program: str, error: OSError) -> str:
    hints = {
        "FileNotFoundError": "it isn't there, or the program loader that it names isn't",
        "PermissionError": "it may not be executed: chmod +x it, or look at the mount's noexec option",
    }
    hint = hints.get(type(error).__name__, "is it a program for this kind of machine?")
    return f"{program} can't be started ({error.strerror or error}): {hint}"


def _text(file: IO[bytes], last: int | None = None) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0 if last is None else max(0, size - last))
    return file.read().decode("utf-8", "replace")


def tail(text: str) -> str:
    """Return the last lines of a log, introduced."""
    lines = text.rstrip().splitlines()[-_TAIL_LINES:]
    return "\n".join(["The last of its output:", *lines]) if lines else "It printed nothing."


def diagnose(program: str, returncode: int, text: str) -> str:
    """Say why a program ended, from its return code and what it wrote.

    Parameters
    ----------
    program
        Its path.
    returncode
        Negative for a signal, as `subprocess` has it, or 128 and more, as a shell has it.
    text
        Its log; an assertion and the last lines of it are repeated.
    """
    if library := re.search(r"error while loading shared libraries: (\S+?):|Library not loaded: (\S+)", text):
        name = library[1] or library[2]
        return (
            f"{program} misses the shared library {name} (return code {returncode}): keep the libraries of its build beside "
            "it, or name their folder in LD_LIBRARY_PATH"
        )
    number = -returncode if returncode < 0 else returncode - 128
    meaning = next((words for known, words in _SIGNALS.items() if known == number), None)
    how = f"{program} {meaning or ('gave up' if returncode else 'ended without a result')}"
    assertion = re.search(r"^.*GGML_ASSERT.*$", text, re.MULTILINE)
    said = f": {assertion[0].strip()}" if assertion else ""
    return f"{how} (return code {returncode}){said}. {tail(text)}"
