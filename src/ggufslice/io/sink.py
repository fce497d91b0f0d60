"""The files of a result, while they are made and when they are done.

Bytes go to ``NAME.part`` beside the final name. The header is written last, so what a crash leaves is never taken for a
GGUF, and the final name appears by a rename of a file that was read back and compared with the plan.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Self

from ggufslice.errors import FormatError, OutputError
from ggufslice.header import HeaderParser, pad
from ggufslice.io.allocation import FULL, allocate
from ggufslice.io.positional import pread, pwrite
from ggufslice.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from ggufslice.io.layout import PlannedFile

__all__ = ["Sink", "check_target", "output_errors", "relatives", "shard_paths"]

_SHARD = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_CHUNK = 8 << 20
_STEP = 128 << 20  # of allocation, during which nothing is written


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into an `OutputError` that says what to do."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in FULL:
            hint = "make room and write again: it goes on where it stopped"
        elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            hint = "choose a path that can be written to"
        else:
            hint = "what is there is kept: write again to go on"
        raise OutputError(f"{path} can't be written: {reason}; {hint}") from error


def shard_paths(path: Path, count: int) -> tuple[Path, ...]:
    """Return the final path of each file of a result.

    Raises
    ------
    OutputError
        There is no name, or it says that it is one shard of several, which llama.cpp believes.
    """
    if not path.name:
        raise OutputError(f"{path} is a folder; name a file in it")
    match = _SHARD.fullmatch(path.name)
    if match and (count > 1 or int(match["count"]) != 1 or int(match["number"]) != 1):
        what = f"a result of {count} shards" if count > 1 else "a single file"
        raise OutputError(
            f"{path} is named like one shard of a set, but this is {what}, and llama.cpp goes by the name; write to "
            f"{match['prefix']}.gguf" + (", the numbers are added" if count > 1 else "")
        )
    if count == 1:
        return (path,)
    stem = path.name.removesuffix(".gguf")
    return tuple(path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))


def relatives(path: Path) -> list[Path]:
    """Return the shards beside `path` that belong to a set of its name, whatever their count."""
    stem = path.name.removesuffix(".gguf")
    return sorted(other for other in path.parent.iterdir() if (m := _SHARD.fullmatch(other.name)) and m["prefix"] == stem)


def check_target(path: Path, finals: Sequence[Path], inputs: Iterable[str], *, overwrite: bool) -> None:
    """Check that a result may go where it is to go.

    Parameters
    ----------
    path
        As the user gave it.
    finals
        Final path of each file.
    inputs
        Paths of the local files that the result is made of.
    overwrite
        Whether files that are there may be replaced.

    Raises
    ------
    OutputError
        An input would be overwritten, a file is there, or there is no such folder.
    """
    if not path.parent.is_dir():
        raise OutputError(f"there is no folder {path.parent}; make it first")
    there = [final for final in finals if os.path.lexists(final)]
    if len(finals) > 1:
        there = list(dict.fromkeys([*there, *relatives(path)]))
    read = {(stat.st_dev, stat.st_ino): name for name in inputs if (stat := _stat(name))}
    for target in (*there, *map(part_of, finals)):
        stat = _stat(target)
        if stat and (stat.st_dev, stat.st_ino) in read:
            raise OutputError(
                f"{target} is an input ({read[stat.st_dev, stat.st_ino]}): writing it would destroy what is read; "
                "choose another path"
            )
        if target.is_dir():
            raise OutputError(f"{target} is a folder; name a file in it")
    if there and not overwrite:
        raise OutputError(f"{there[0]} exists; choose another path or pass overwrite=True (--overwrite)")


def _stat(path: str | Path) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - a str or a Path
    except OSError:
        return None


def part_of(final: Path) -> Path:
    """Return the path that a file has until it is complete."""
    return final.with_name(final.name + ".part")


class Sink:
    """The files of a result, open for writing by address.

    Parameters
    ----------
    finals
        Final path of each file.
    files
        What is planned for each.
    """

    def __init__(self, finals: Sequence[Path], files: Sequence[PlannedFile]) -> None:
        self.path = finals[0]
        self._finals = finals
        self._files = files
        self._parts = [part_of(final) for final in finals]
        self._fds: list[int] = []
        self._stack = ExitStack()
        self._allocating = Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._allocating:
            self._closed = True
        self._stack.close()

    def finished(self) -> bool:
        """Whether every file is there complete, under its final name or as a partial file that only lacks it."""
        try:
            for part, final, file in zip(self._parts, self._finals, self._files, strict=True):
                _compare(part if part.exists() else final, file)
        except OutputError:
            return False
        return True

    def begun(self) -> bool:
        """Whether there is any partial file."""
        return any(map(_stat, self._parts))

    def exists(self) -> bool:
        """Whether all partial files are there, with the planned sizes."""
        stats = map(_stat, self._parts)
        return all(s and s.st_size == f.layout.n_bytes for s, f in zip(stats, self._files, strict=True))

    def open(self, *, fresh: bool) -> None:
        """Make the partial files, or open those that are there, and make sure that there is room.

        Raises
        ------
        OutputError
            They can't be made, or there is not enough space.
        """
        if fresh:
            self.discard()
        self._check_space()
        for part, file in zip(self._parts, self._files, strict=True):
            with output_errors(part):
                fd = os.open(part, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o666)
                self._stack.callback(os.close, fd)
                self._fds.append(fd)
                os.ftruncate(fd, file.layout.n_bytes)

    def allocate(self) -> None:
        """Ask for the blocks of the partial files, until all are there or the sink is closed.

        Meant to run beside the transfer. Where the disk is memory, it takes a good part of the time that writing does: that
        much is spared threads that copy, but an event loop only waits for its turn at the file.

        Raises
        ------
        OutputError
            There is no room.
        """
        for fd, file in zip(self._fds, self._files, strict=True):
            size = file.layout.n_bytes
            for start in range(0, size, _STEP):
                with self._allocating, output_errors(self.path):
                    if self._closed or not allocate(fd, start, min(_STEP, size - start)):
                        return

    def discard(self) -> None:
        """Delete the partial files."""
        for part in self._parts:
            with output_errors(part):
                part.unlink(missing_ok=True)

    def _check_space(self) -> None:
        if not hasattr(os, "statvfs"):
            return
        folder = self.path.parent
        with output_errors(folder):
            found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        held = sum(min(stat.st_blocks * 512, stat.st_size) for stat in map(_stat, self._parts) if stat)
        need = self._files[-1].stop - held
        if need > free:
            raise OutputError(
                f"{folder} has {bytes_text(free)} free, but {bytes_text(need)} more are needed for {self.path.name}; "
                "make room, or choose another folder"
            )

    def place(self, at: int) -> tuple[int, int]:
        """Return the descriptor and the offset that an address stands for."""
        for fd, file in zip(self._fds, self._files, strict=True):
            if at < file.stop:
                return fd, at - file.start
        raise ValueError(f"address {at} is behind the result")

    def write(self, at: int, data: bytes) -> None:
        """Write bytes at an address.

        Raises
        ------
        OutputError
            They can't be written.
        """
        fd, offset = self.place(at)
        with output_errors(self.path):
            written = pwrite(fd, data, offset)
            while written < len(data):
                written += pwrite(fd, data[written:], offset + written)

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes between two addresses of one file; short where the file is."""
        while start < stop:
            fd, offset = self.place(start)
            data = pread(fd, min(_CHUNK, stop - start), offset)
            if not data:
                return
            yield data
            start += len(data)

    def sync(self) -> None:
        """Bring what was written to the disk."""
        with output_errors(self.path):
            for fd in self._fds:
                getattr(os, "fdatasync", os.fsync)(fd)

    def complete(self) -> None:
        """Write the headers, and read them back.

        Raises
        ------
        OutputError
            They can't be written, or a file isn't what was planned.
        """
        for file in self._files:
            self.write(file.start, file.layout.head)
        with output_errors(self.path):
            for fd in self._fds:
                os.fsync(fd)
        for part, file in zip(self._parts, self._files, strict=True):
            _compare(part, file)

    def publish(self) -> None:
        """Give the files their final names, the first one last; those that an earlier try has renamed have theirs.

        Raises
        ------
        OutputError
            A file can't be renamed.
        """
        self._stack.close()
        for part, final in reversed(list(zip(self._parts, self._finals, strict=True))):
            with output_errors(final):
                if part.exists():
                    part.replace(final)
        _sync_folder(self.path.parent)


def _compare(path: Path, file: PlannedFile) -> None:
    """Parse a file's header anew and compare it with the plan."""
    head = file.layout.head
    try:
        with output_errors(path), path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            parser = HeaderParser(str(path), size=size, budget=max(len(head), 1 << 20))
            while parser.missing:
                parser.feed(handle.read(max(parser.missing, 1 << 16)) or b"\0" * parser.missing)
        header = parser.header
    except FormatError as error:
        raise OutputError(f"{path} does not read back as a GGUF: {error}; the disk or its driver lost data") from error
    found = [(t.name, t.ne, t.tensor_type, header.data_start + t.offset, t.n_bytes) for t in header.tensors]
    planned = [
        # Of a type that isn't known, padding can't be told from the tensor.
        (t.name, t.ne, t.tensor_type, at, t.n_bytes if t.tensor_type.known else pad(t.n_bytes, header.alignment))
        for t, at in zip(file.tensors, file.layout.offsets, strict=True)
    ]
    if size != file.layout.n_bytes or header.records != file.records or found != planned:
        raise OutputError(f"{path} does not read back as it was planned; the disk or its driver lost data")


def _sync_folder(folder: Path) -> None:
    """Bring the renames to the disk, where folders can be synced."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)
