"""Asking the file system for blocks before they are written."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["FULL", "allocate", "in_memory"]

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says when there is no room."""


def allocate(fd: int, start: int, size: int) -> bool:
    """Give a range of a file its blocks; False where that can't be done.

    What was written stays.

    Raises
    ------
    OSError
        There is no room.
    """
    # Not os.posix_fallocate: where a file system can't, glibc writes to every block instead, over a network for hours.
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None) if os.name == "posix" else None
    if call is None:
        return False
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if not call(fd, 0, start, size):
        return True
    code = ctypes.get_errno()
    if code in FULL:
        raise OSError(code, os.strerror(code))
    return False


def in_memory(folder: Path) -> bool:
    """Whether files in a folder are kept in memory alone; False where that can't be told."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == number:
                return kind.startswith("tmpfs ")
    return False
