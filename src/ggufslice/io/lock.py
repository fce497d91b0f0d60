"""One writer for one output: a lock file.

A file made with ``O_EXCL``, and not `flock`, which some network file systems grant to everyone. It names the process, so
that the lock of one that is gone can be told and taken over.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ggufslice.errors import OutputError
from ggufslice.io.sink import output_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["locked"]

_held: set[str] = set()  # what this process wrote into its locks: a pid alone may be an earlier process's


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`.

    Raises
    ------
    OutputError
        Another writer holds it.
    """
    content = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"
    while not _create(path, content):
        owner = _read(path)
        if owner is None:
            continue  # released in between
        if _alive(owner) or not _discard(path, owner):
            raise _busy(path, owner)
    _held.add(content)
    try:
        yield
    finally:
        _held.discard(content)
        with output_errors(path):
            path.unlink(missing_ok=True)


def _busy(path: Path, owner: str) -> OutputError:
    host, pid, _ = (*owner.split(), "?", "?", "?")[:3]
    return OutputError(
        f"another process writes this output (process {pid} on {host}, by {path}); wait for it, or remove that file if it "
        "is not running"
    )


def _create(path: Path, content: str) -> bool:
    """Make the lock file; False where there is one already."""
    with output_errors(path):
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(fd, "w") as file:
            file.write(content)
    # Between making and writing it the file was empty, and may have been taken for one that a killed process left.
    return _read(path) == content


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _alive(owner: str) -> bool:
    """Tell whether the writer may still run; one on another host always may."""
    host, pid, _ = (*owner.split(), "", "", "")[:3]
    if not pid.isdecimal():
        return False  # killed between making and writing the file
    if host != socket.gethostname():
        return True
    if int(pid) == os.getpid():
        return owner in _held
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _discard(path: Path, owner: str) -> bool:
    """Remove the lock of `owner`; False where it turned out to be another's."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return True
    if _read(aside) == owner:
        aside.unlink()
        return True
    aside.rename(path)
    return False
