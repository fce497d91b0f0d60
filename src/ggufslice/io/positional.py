"""Reading and writing at an offset, from several threads at once, on every platform."""

from __future__ import annotations

import os
from threading import Lock

__all__ = ["pread", "pwrite"]

_lock = Lock()


def _seek_and_read(fd: int, size: int, offset: int) -> bytes:
    with _lock:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)


def _seek_and_write(fd: int, data: bytes, offset: int) -> int:
    with _lock:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


# Windows has neither; there one position serves all threads, and a lock keeps it.
pread = getattr(os, "pread", _seek_and_read)
pwrite = getattr(os, "pwrite", _seek_and_write)
