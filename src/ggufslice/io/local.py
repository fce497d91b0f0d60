"""Local files."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, BinaryIO

import attrs

from ggufslice.errors import SourceChangedError, SourceError
from ggufslice.spans import SourceRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ggufslice.io.tally import Tally

__all__ = ["LocalSource"]

_CHUNK = 1 << 20


@attrs.define(eq=False)
class LocalSource:
    """A local file, opened for each read and closed again: it holds no handle.

    Parameters
    ----------
    ref
        Its `url` is an absolute path.
    """

    ref: SourceRef
    origin: str = attrs.field(default="", init=False)

    @property
    def path(self) -> str:
        """The file's path."""
        return self.ref.url

    def open(self) -> BinaryIO:
        """Open the file, unbuffered, after checking that it is the one that `ref` means.

        Raises
        ------
        SourceError
            It can't be opened.
        SourceChangedError
            It has another size or modification time.
        """
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115, PTH123 - the caller closes it; the path is a string
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror or error}") from None
        try:
            self._check(file)
        except BaseException:
            file.close()
            raise
        return file

    def _check(self, file: BinaryIO) -> None:
        stat = os.fstat(file.fileno())
        found = SourceRef(self.path, stat.st_size, {"mtime_ns": str(stat.st_mtime_ns)})
        if self.ref.size is None:
            self.ref = found
            return
        expected = dict(self.ref.validators)
        if stat.st_size != self.ref.size:
            raise SourceChangedError(
                f"{self.path} has {stat.st_size} bytes, but had {self.ref.size} when it was opened: open it again"
            )
        if expected.get("mtime_ns", found.validators[0][1]) != found.validators[0][1]:
            raise SourceChangedError(f"{self.path} was written to after it was opened: open it again")

    def read(self, start: int, stop: int) -> bytes:
        """Read bytes `start` to `stop` at once, clipped at the end of the file."""
        with self.open() as file:
            return self._read(file, start, min(stop, self.ref.size or 0))

    def _read(self, file: BinaryIO, start: int, stop: int) -> bytes:
        parts: list[bytes] = []
        file.seek(start)
        while start < stop:
            try:
                data = file.read(stop - start)
            except OSError as error:
                raise SourceError(f"{self.path}: reading at byte {start}: {error.strerror or error}") from None
            if not data:
                raise SourceChangedError(f"{self.path} ended at byte {start} while it was read, not at {self.ref.size}")
            parts.append(data)
            start += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def stream(self, start: int, stop: int, tally: Tally) -> AsyncGenerator[bytes]:
        """See `Source.stream`."""
        tally.requests += 1
        with self.open() as file:
            counts = tally.of(self.ref)
            stop = min(stop, self.ref.size or 0)
            while start < stop:
                data = await asyncio.to_thread(self._read, file, start, min(start + _CHUNK, stop))
                counts.received += len(data)
                yield data
                start += len(data)

    async def confirm(self, tally: Tally) -> None:  # noqa: ARG002 - part of the protocol
        """See `Source.confirm`."""
        self.open().close()
