"""Locks: proof that a run of a recipe made the same bytes, without the model being published.

A lock holds what identifies the source (commit, ETags, sizes), a checksum for every span of the result and a digest of the
whole. Whoever has the recipe and the lock can make the result again and see that it is the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice._records import load, plain
from ggufslice.errors import FormatError, OutputError, SourceChangedError
from ggufslice.io.layout import lay_out
from ggufslice.provenance import source_refs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

    from ggufslice.spans import SourceRef
    from ggufslice.view import GGUF

__all__ = ["Lock", "LockedSource", "LockedSpan"]

_VERSION = 1
_BLOCK = 1 << 22


@attrs.frozen
class LockedSource:
    """A file of the source.

    Parameters
    ----------
    address
        Where it was, without credentials and query; of a local file its name.
    size
        Bytes, where known.
    validators
        What the place where it is says of its content, such as ``etag`` and ``commit``.
    """

    address: str
    size: int | None
    validators: dict[str, str]


@attrs.frozen
class LockedSpan:
    """Bytes of the result that come from one place.

    Parameters
    ----------
    tensor
        The tensor that they belong to; empty for the header and its padding.
    start, stop
        Where they are in the result.
    sha256
        Their checksum.
    """

    tensor: str
    start: int
    stop: int
    sha256: str

    @property
    def what(self) -> str:
        """What they are, in words."""
        return f"tensor {self.tensor}" if self.tensor else "the header"


@attrs.frozen(kw_only=True)
class Lock:
    """What a run of a recipe made, and of what.

    Parameters
    ----------
    recipe
        The recipe, as it describes itself.
    source
        The files that the bytes came from.
    licence
        ``general.license*`` of the source.
    file
        The result's file name.
    size
        Its bytes.
    sha256
        Its digest.
    spans
        Its parts, gapless: a checksum for each.
    """

    recipe: dict[str, Any]
    source: tuple[LockedSource, ...]
    licence: dict[str, str]
    file: str
    size: int
    sha256: str
    spans: tuple[LockedSpan, ...] = attrs.field(repr=False)

    @classmethod
    def of(cls, recipe: dict[str, Any], view: GGUF, path: Path) -> Lock:
        """Make the lock of a file.

        Parameters
        ----------
        recipe
            As it describes itself.
        view
            What was written, with the sources of its bytes.
        path
            The file.
        """
        size = path.stat().st_size
        whole = hashlib.sha256()
        spans = []
        with path.open("rb") as file:
            for name, start, stop in _parts(view, path, size):
                part = hashlib.sha256()
                for block in _blocks(file.read, stop - start):
                    part.update(block)
                    whole.update(block)
                spans.append(LockedSpan(name, start, stop, part.hexdigest()))
        return cls(
            recipe=recipe,
            source=tuple(
                LockedSource(_address(ref), ref.size, {k: v for k, v in ref.validators if k != "mtime_ns"})
                for ref in source_refs(view.base)
            ),
            licence={k: str(v) for k, v in view.metadata.items() if k.startswith("general.license")},
            file=path.name,
            size=size,
            sha256=whole.hexdigest(),
            spans=tuple(spans),
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Lock:
        """Read a lock.

        Raises
        ------
        FormatError
            Not a lock, one of a newer version, or one that was changed after it was written.
        """
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FormatError(f"{path} can't be read as a lock: {error}") from None
        if not isinstance(data, dict) or data.get("lock") != _VERSION:
            raise FormatError(f"{path} is not a lock of version {_VERSION}")
        stated = data.pop("checksum", None)
        if stated != _checksum(data):
            raise FormatError(
                f"{path} was changed after it was written: its checksum is {stated}, and its content's {_checksum(data)}"
            )
        del data["lock"]
        return load(cls, data, str(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the lock as JSON, with a checksum of its own."""
        data = {"lock": _VERSION, **plain(self)}
        data["checksum"] = _checksum(data)
        Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    def check_source(self, view: GGUF) -> None:
        """Refuse a source that can't be the one of the lock.

        Raises
        ------
        SourceChangedError
            It has other files or sizes, or at the same address other ETags or another commit. At another address, as of a
            mirror, ETags say nothing; whether the bytes are the same shows when they are there.
        """
        now = source_refs(view.base)
        if len(now) != len(self.source):
            raise SourceChangedError(f"the lock was made of {len(self.source)} files, and the source has {len(now)}")
        for ref, then in zip(now, self.source, strict=True):
            if None not in (ref.size, then.size) and ref.size != then.size:
                raise SourceChangedError(f"{ref.display} has {ref.size} bytes, and had {then.size} when the lock was made")
            found = dict(ref.validators) if _address(ref) == then.address else {}
            for name, value in then.validators.items():
                if found.get(name, value) != value:
                    raise SourceChangedError(
                        f"{ref.display}: its {name} is {found[name]}, and was {value} when the lock was made"
                    )

    def compare(self, other: Lock) -> str:
        """Refuse another run's result that isn't this one's; return in words in what they are the same.

        Raises
        ------
        OutputError
            They differ; the message names the first span that does.

        Notes
        -----
        A cut names its source, so cuts of two copies of a source at different addresses differ in their headers.
        """
        if self.sha256 == other.sha256:
            return f"has the digest of the lock: {self.sha256}"
        mine = {(s.tensor, s.start, s.stop): s.sha256 for s in self.spans}
        differing = [s for s in other.spans if mine.get((s.tensor, s.start, s.stop)) != s.sha256]
        moved = [s.address for s in self.source] != [s.address for s in other.source]
        weights = [[(s.tensor, s.stop - s.start, s.sha256) for s in lock.spans if s.tensor] for lock in (self, other)]
        if moved and weights[0] == weights[1]:
            return "has the tensor bytes of the lock; its header differs, as it names another place of the source"
        raise OutputError(
            f"{other.file} is not what the lock says: its digest is {other.sha256}, the lock's {self.sha256}; "
            f"{len(differing)} of {len(other.spans)} spans differ, the first is {differing[0].what if differing else 'none'}"
        )

    def differences(self, path: str | PathLike[str]) -> Iterator[LockedSpan]:
        """Yield the spans in which a file isn't what the lock says, and at last, if the whole isn't either, the header.

        Raises
        ------
        OSError
            The file can't be read.
        """
        whole = hashlib.sha256()
        found = False
        with Path(path).open("rb") as file:
            for span in self.spans:
                part = hashlib.sha256()
                for block in _blocks(file.read, span.stop - span.start):
                    part.update(block)
                    whole.update(block)
                if part.hexdigest() != span.sha256:
                    found = True
                    yield span
        if not found and whole.hexdigest() != self.sha256:
            yield LockedSpan("", 0, self.size, self.sha256)


def _address(ref: SourceRef) -> str:
    return ref.display if "://" in ref.display else Path(ref.display).name


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _blocks(read: Any, size: int) -> Iterator[bytes]:
    while size > 0:
        block = read(min(size, _BLOCK))
        if not block:
            return
        size -= len(block)
        yield block


def _parts(view: GGUF, path: Path, size: int) -> Iterable[tuple[str, int, int]]:
    """Yield name, start and stop of the parts of a written file: the header, then every piece with the padding behind it."""
    (file,) = lay_out(view, None)
    if file.layout.n_bytes != size:
        raise OutputError(f"{path} has {size} bytes, and the plan {file.layout.n_bytes}")
    starts = [("", 0)]
    for tensor, offset in zip(file.tensors, file.layout.offsets, strict=True):
        at = offset
        for piece in tensor.pieces:
            starts.append((tensor.name, at))
            at += len(piece)
    stops = [start for _, start in starts[1:]] + [size]
    for (name, start), stop in zip(starts, stops, strict=True):
        yield name, start, stop
