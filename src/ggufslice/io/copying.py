"""Copying from local files.

The kernel copies where that may move no bytes at all, or no more than once: on file systems without a disk of their own
(network, memory, btrfs: their device has the major number 0), and where source and destination lie alike on the grid of
blocks, which xfs can share. Elsewhere `copy_file_range` moves page by page, and reading and writing is faster (on ext4 by a
third; in memory it is slower by a sixth).
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from threading import Event, Lock
from typing import TYPE_CHECKING

from ggufslice.errors import SourceChangedError, SourceError
from ggufslice.io.allocation import FULL
from ggufslice.io.positional import pread
from ggufslice.io.sink import output_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ggufslice.io.journal import Ledger
    from ggufslice.io.local import LocalSource
    from ggufslice.io.sink import Sink
    from ggufslice.spans import SourceRef

__all__ = ["Copier"]

_PART = 8 << 20  # bytes of one step
_BLOCK = 2 << 20  # bytes that are read and written at once
_GRID = 4096  # the block size of file systems that share blocks


class Copier:
    """Copies spans of local files; several threads may `work` at once.

    Parameters
    ----------
    copies
        The file, first and last byte, and the address that they go to.
    sink
        The result.
    ledger
        Told what was written.
    """

    def __init__(self, copies: Iterable[tuple[LocalSource, int, int, int]], sink: Sink, ledger: Ledger) -> None:
        self._work = _parts(copies)
        self._sink = sink
        self._ledger = ledger
        # The kernel shows us no bytes to compute a digest of.
        self._in_kernel = hasattr(os, "copy_file_range") and not ledger.checksums
        self._grid = _GRID if self._in_kernel and os.major(sink.path.parent.stat().st_dev) else 1
        self._lock = Lock()
        # The system lets one thread at a time write to a file, and the others wait for that in a busy loop.
        self._writing = Lock()
        self._stop = Event()
        self.moved: Counter[SourceRef] = Counter()

    def stop(self) -> None:
        """Let the threads end after their present step."""
        self._stop.set()

    def work(self) -> None:
        """Copy until nothing is left.

        Raises
        ------
        SourceError
            A file can't be read, ended early or has changed.
        OutputError
            The result can't be written.
        """
        files: dict[SourceRef, int] = {}
        with ExitStack() as stack:
            while not self._stop.is_set():
                with self._lock:
                    step = next(self._work, None)
                if step is None:
                    return
                source, start, stop, at = step
                if source.ref not in files:
                    files[source.ref] = stack.enter_context(source.open()).fileno()
                self._copy(source, files[source.ref], start, stop, at)

    def _copy(self, source: LocalSource, fd: int, start: int, stop: int, at: int) -> None:
        while start < stop:
            done = self._by_kernel(fd, start, stop - start, at) or self._by_hand(source, fd, start, stop - start, at)
            start += done
            at += done
            with self._lock:
                self.moved[source.ref] += done

    def _by_kernel(self, fd: int, start: int, size: int, at: int) -> int:
        """Return how many bytes the kernel copied; 0 where it can't."""
        out, offset = self._sink.place(at)
        if not self._in_kernel or (start - offset) % self._grid:
            return 0
        try:
            done = os.copy_file_range(fd, out, size, start, offset)
        except OSError as error:
            # Reading and writing tell which side failed, and they work between any two file systems.
            if error.errno in FULL:
                with output_errors(self._sink.path):
                    raise
            self._in_kernel = False
            return 0
        self._ledger.note(at, done)
        return done

    def _by_hand(self, source: LocalSource, fd: int, start: int, size: int, at: int) -> int:
        try:
            data = pread(fd, min(size, _BLOCK), start)
        except OSError as error:
            raise SourceError(f"{source.path}: reading at byte {start}: {error.strerror or error}") from error
        if not data:
            raise SourceChangedError(f"{source.path} ended at byte {start} while it was read: open it again")
        with self._writing:
            self._sink.write(at, data)
        self._ledger.note(at, data)
        return len(data)


def _parts(copies: Iterable[tuple[LocalSource, int, int, int]]) -> Iterator[tuple[LocalSource, int, int, int]]:
    """Cut copies into steps that threads can share."""
    for source, start, stop, at in copies:
        for begin in range(start, stop, _PART):
            yield source, begin, min(begin + _PART, stop), at + begin - start
