"""Verify that a cut holds what it says: against its source, byte for byte, or against its lock.

Against the source, the header is worked out again from the source's header and the operations that the file names, and
tensor bytes are read again and compared. Against a lock, checksums are compared and nothing is fetched.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ggufslice.errors import FormatError, SourceError, redact_url
from ggufslice.io.layout import lay_out
from ggufslice.io.open import open as open_model
from ggufslice.io.read import read_pieces
from ggufslice.io.shards import SPLIT_KEYS
from ggufslice.lockfile import Lock
from ggufslice.provenance import PREFIX, Origin, source_refs, stamp
from ggufslice.recipe import ops_of
from ggufslice.spans import Literal, Remap, Span
from ggufslice.units import bytes_text
from ggufslice.view import GGUF

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

    from ggufslice.spans import Piece
    from ggufslice.values import Record

__all__ = ["Difference", "Verification", "verify"]

_CHUNK = 1 << 20
_BATCH = 32  # chunks that are read from the source at a time
_SHOWN = 8  # differences after which reading on tells nothing new
# What can't be worked out again is taken as it is: who wrote the file, and, when it is compared with another copy of its
# source than the one that it names, where that one was.
_VERSION = PREFIX + "version"
_PLACES = tuple(PREFIX + key for key in ("source.url", "source.revision", "parent.url", "parent.validators"))


@attrs.frozen
class Difference:
    """Something in which a file is not what it should be.

    Parameters
    ----------
    what
        A tensor, a metadata key, the tensor table.
    start
        The first differing byte, counted from the start of the file; None where there is no such place.
    detail
        What was found, what was expected.
    """

    what: str
    start: int | None
    detail: str

    def __str__(self) -> str:
        at = "" if self.start is None else f" at byte {self.start}"
        return f"{self.what}{at}: {self.detail}"


@attrs.frozen
class Verification:
    """What was compared, and what it proves.

    Parameters
    ----------
    path
        The name of the file; its redacted URL where it isn't local.
    against
        The source or the lock.
    method
        ``"sample"``, ``"full"`` or ``"lock"``.
    compared_bytes, total_bytes
        Tensor bytes compared, and all (of a lock: bytes of the file).
    seed
        Of the random choice, so that it can be repeated; None without one.
    differences
        What is not as it should be; the first few.
    """

    path: str
    against: str
    method: str
    compared_bytes: int
    total_bytes: int
    seed: int | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.differences

    @property
    def proves(self) -> str:
        """What a result without differences proves."""
        if self.method == "lock":
            return "every byte is as it was when the lock was made"
        share = (
            "every tensor byte"
            if self.method == "full"
            else f"{bytes_text(self.compared_bytes)} of tensor bytes, chosen at random,"
        )
        return f"the header is what the source's header and the named operations give, and {share} is the source's"

    @property
    def leaves_open(self) -> str:
        """What a result without differences doesn't prove."""
        if self.method == "lock":
            return "whether the lock was made of the source that it names: only a comparison with the source shows that"
        part = self.compared_bytes / self.total_bytes if self.total_bytes else 1.0
        unread = f"the other {bytes_text(self.total_bytes - self.compared_bytes)} of tensor bytes; " if part < 1 else ""
        return f"{unread}whether the source is the publisher's: its address and validators are taken as the file states them"

    def __str__(self) -> str:
        how = {"lock": "checksums", "full": "all tensor bytes", "sample": f"a random sample, seed {self.seed}"}[self.method]
        amount = f"{bytes_text(self.compared_bytes)} of {bytes_text(self.total_bytes)}"
        head = f"{self.path} against {self.against}: {how}, {amount} compared"
        if self.ok:
            return f"{head}\nno difference\nproves      {self.proves}\nleaves open {self.leaves_open}"
        return "\n".join([head, "DIFFERENT: the first that was found", *map(str, self.differences)])


def verify(
    path: str | PathLike[str],
    *,
    source: str | PathLike[str] | GGUF | None = None,
    lock: str | PathLike[str] | None = None,
    sample: int = 64,
    full: bool = False,
    seed: int | None = None,
) -> Verification:
    """Compare a cut with its source or its lock.

    Parameters
    ----------
    path
        The cut: a path or URL of a file that `GGUF.write` made.
    source
        Where its source is; None takes the address that the file states, and of a local source looks for its name beside the
        cut.
    lock
        A lock: then the checksums of a local file are compared, and no source is opened.
    sample
        How many chunks of at most 1 MiB to compare, chosen at random.
    full
        Compare all.
    seed
        Of the random choice; None makes one up.

    Raises
    ------
    FormatError
        Not a cut, one that was quantized since, one whose operations can't be repeated, or a lock that was tampered with.
    SourceError
        The source can't be read, or a file that isn't local is to be compared with a lock.
    """
    path = os.fspath(path)
    remote = "://" in path
    name = redact_url(path)
    if lock is not None:
        if remote:
            raise SourceError(f"{name}: only a local file is compared with a lock; fetch it, or compare it with its source")
        return _against_lock(Path(path), Path(lock))
    with contextlib.ExitStack() as stack:
        cut = stack.enter_context(open_model(path))
        origin = _origin(cut, name)
        if isinstance(source, GGUF):
            parent = source
        else:
            folder = None if remote else Path(path).parent
            parent = stack.enter_context(open_model(_address(origin, name, folder) if source is None else source))
        expected = _expected(parent, cut, origin, name)
        differences = list(_header_differences(cut, expected))
        compared = 0
        seed = None if full else secrets.randbits(32) if seed is None else seed
        if _rows(cut) == _rows(expected):
            chunks = list(_chunks(cut, expected))
            if seed is not None:
                chosen = random.Random(seed).sample(range(len(chunks)), min(sample, len(chunks)))  # noqa: S311 - no secret
                chunks = [chunks[i] for i in sorted(chosen)]
            compared, found = _compare(chunks)
            differences += found
        refs = source_refs(parent)
    return Verification(
        path=name if remote else Path(path).name,
        against=refs[0].display if refs else "a source without tensors",
        method="full" if full else "sample",
        compared_bytes=compared,
        total_bytes=cut.tensor_bytes,
        seed=seed,
        differences=tuple(differences),
    )


def _against_lock(path: Path, lock_path: Path) -> Verification:
    lock = Lock.load(lock_path)
    try:
        size = path.stat().st_size
        found = [
            Difference(span.what, span.start, f"bytes {span.start} to {span.stop} don't have the checksum of the lock")
            for span, _ in zip(lock.differences(path), range(_SHOWN), strict=False)
        ]
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    if size != lock.size:
        found.insert(0, Difference("the file", min(size, lock.size), f"has {size} bytes, the lock says {lock.size}"))
    return Verification(path.name, lock_path.name, "lock", size, lock.size, None, tuple(found))


def _origin(cut: GGUF, name: str) -> Origin:
    origin = Origin.of(cut)
    if origin is None or not origin.recipe:
        raise FormatError(f"{name} has no ggufslice.recipe: it is not a cut that ggufslice wrote")
    if origin.parent.types is not None and not origin.parent.still_holds(cut):
        raise FormatError(
            f"{name}: its tensors have other types than when it was cut, so it was quantized since and no byte of it is the "
            "source's; verify the cut that it was made of, or that one's lock"
        )
    return origin


def _address(origin: Origin, name: str, folder: Path | None) -> str | Path:
    """Return where the source is: as stated, or beside a local cut."""
    url = origin.parent.url
    if url is None:
        raise SourceError(f"{name} doesn't say what it was cut from: name its source (source=, --source)")
    if "://" in url:
        return url
    if folder is None or not (folder / url).exists():
        where = "" if folder is None else ", which isn't beside it"
        raise SourceError(f"{name} was cut from a local file {url}{where}: say where it is (source=, --source)")
    return folder / url


def _expected(parent: GGUF, cut: GGUF, origin: Origin, name: str) -> GGUF:
    """Apply the operations that led from this parent to the cut, and stamp the result as the cut says it was."""
    before = Origin.of(parent)
    done = before.recipe if before else ()
    if origin.recipe[: len(done)] != done:
        raise FormatError(
            f"{name}: its operations begin with others than the source's own: this source isn't what it was cut from"
        )
    try:
        ops = ops_of(origin.recipe[len(done) :])
    except ValueError as error:
        raise FormatError(f"{name}: its operations can't be repeated: {error}") from None
    view = stamp(parent.pipe(*ops), forced=origin.forced)
    keys = {_VERSION}
    if cut.metadata.get(PREFIX + "parent.url") != view.metadata.get(PREFIX + "parent.url"):
        keys |= set(_PLACES)
    stated = {record.key: record for record in cut.metadata.records if record.key in keys}
    records = [stated.get(record.key, record) for record in view.metadata.records if record.key not in SPLIT_KEYS]
    return GGUF(attrs.evolve(view.metadata, records=records), view.all_tensors, view.version, view.lineage)


def _header_differences(cut: GGUF, expected: GGUF) -> Iterator[Difference]:
    found, wanted = ({r.key: r for r in view.metadata.records if r.key not in SPLIT_KEYS} for view in (cut, expected))
    for key in dict.fromkeys((*wanted, *found)):
        if (a := found.get(key)) != (b := wanted.get(key)):
            yield Difference(f"metadata key {key}", None, f"is {_said(a)}, and should be {_said(b)}")
    rows, wanted_rows = _rows(cut), _rows(expected)
    if rows != wanted_rows:
        first = next(pair for pair in zip_longest(rows, wanted_rows) if pair[0] != pair[1])
        yield Difference(
            "tensor table", None, f"{len(rows)} rows for {len(wanted_rows)}; {first[0]} where {first[1]} should be"
        )
    files = source_refs(cut)
    if list(found.values()) == list(wanted.values()) and rows == wanted_rows and len(files) == 1:
        head = lay_out(expected, None)[0].layout.head
        there = read_pieces([Span(files[0], 0, min(len(head), files[0].size or len(head)))])
        if there != head:
            yield Difference("the header", _first_difference(there, head), "is not what the operations give")


def _rows(view: GGUF) -> list[tuple[str, tuple[int, ...], str]]:
    return [(t.name, t.ne, t.tensor_type.name) for t in view.all_tensors]


def _said(record: Record | None) -> str:
    return "absent" if record is None else f"{record.type}:{record.value!r:.60}"


@attrs.frozen
class _Chunk:
    """Bytes of the cut, and what they should be."""

    what: str
    place: Span
    piece: Piece


def _chunks(cut: GGUF, expected: GGUF) -> Iterator[_Chunk]:
    """Yield all tensor bytes in chunks, and the padding behind each tensor."""
    spans = [(tensor, [p for p in cut[tensor.name].pieces if isinstance(p, Span)]) for tensor in expected.all_tensors]
    placed = [(tensor, pieces[0]) for tensor, pieces in spans if pieces]
    for i, (tensor, place) in enumerate(placed):
        at = place.start
        for piece in tensor.pieces:
            for first in range(0, len(piece), _CHUNK):
                part = piece.cut(first, min(first + _CHUNK, len(piece)))
                yield _Chunk(f"tensor {tensor.name}", Span(place.source, at, at + len(part)), part)
                at += len(part)
        following = placed[i + 1][1] if i + 1 < len(placed) else None
        end = following.start if following and following.source == place.source else place.source.size or at
        if end > at:
            yield _Chunk(f"padding behind {tensor.name}", Span(place.source, at, end), Literal(bytes(end - at)))


def _compare(chunks: Sequence[_Chunk]) -> tuple[int, list[Difference]]:
    found: list[Difference] = []
    compared = 0
    for first in range(0, len(chunks), _BATCH):
        batch = chunks[first : first + _BATCH]
        all_ours, all_wanted = read_pieces([c.place for c in batch]), read_pieces([c.piece for c in batch])
        at = 0
        for chunk in batch:
            ours, wanted = (data[at : at + len(chunk.piece)] for data in (all_ours, all_wanted))
            at += len(chunk.piece)
            compared += len(chunk.piece) if chunk.what.startswith("tensor") else 0
            if ours != wanted:
                i = _first_difference(ours, wanted)
                detail = f"has {ours[i : i + 1].hex()}, {_where(chunk.piece, i)} has {wanted[i : i + 1].hex()}"
                found.append(Difference(chunk.what, chunk.place.start + i, detail))
        if len(found) >= _SHOWN:
            break
    return compared, found[:_SHOWN]


def _where(piece: Piece, i: int) -> str:
    if isinstance(piece, Literal):
        return "what was written there"
    span = piece.span if isinstance(piece, Remap) else piece
    return f"byte {span.start + i} of {span.source.display}"


def _first_difference(a: bytes, b: bytes) -> int:
    return next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
