"""The journal beside a partial result: which of its bytes are there.

A text file of lines. The first says which plan and which sources the bytes belong to; each later one lists intervals of the
result that had reached the disk when it was appended. Every line starts with a digest of itself, so a torn end is seen and
left out. Addresses are those of `Plan`: all files of the result in a row.
"""

from __future__ import annotations

import hashlib
import json
import os
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from ggufslice.errors import OutputError, SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ggufslice.spans import SourceRef

__all__ = ["Claim", "Identity", "Journal", "Ledger", "Recorded", "merged", "verified"]

_FORMAT = "ggufslice journal 1"


class Claim(NamedTuple):
    """Bytes ``start`` to ``stop`` of the result are there; with a digest of them, where one was asked for."""

    start: int
    stop: int
    digest: str | None = None


@attrs.frozen
class Identity:
    """What a partial result belongs to.

    Parameters
    ----------
    plan
        Digest of the layout and of the copy list.
    sources
        Of each source its redacted URL, size and validators.
    """

    plan: str
    sources: tuple[tuple[str, int | None, tuple[tuple[str, str], ...]], ...]

    @classmethod
    def of(cls, plan: str, refs: Iterable[SourceRef]) -> Identity:
        """Describe these sources."""
        return cls(plan, tuple((ref.display, ref.size, ref.validators) for ref in refs))

    def check(self, earlier: Identity, where: str) -> None:
        """Raise unless a partial result of `earlier` may be gone on with.

        Raises
        ------
        SourceChangedError
            A source is not the one whose bytes are there.
        OutputError
            The bytes belong to another cut.
        """
        before = {url: (size, validators) for url, size, validators in earlier.sources}
        for url, size, validators in self.sources:
            if url in before and before[url] != (size, validators):
                raise SourceChangedError(
                    f"{url} has changed since {where} was begun: it was {_text(*before[url])}, now it is "
                    f"{_text(size, validators)}; resume=False (--no-resume) starts afresh"
                )
        if self.plan != earlier.plan:
            raise OutputError(
                f"{where} holds part of another cut; finish that one, choose another path, or start afresh with "
                "resume=False (--no-resume)"
            )


def _text(size: int | None, validators: Iterable[tuple[str, str]]) -> str:
    return ", ".join([f"{size} bytes", *(f"{key} {value}" for key, value in validators)])


@attrs.frozen
class Recorded:
    """What a journal says.

    Parameters
    ----------
    identity
        What the partial result belongs to.
    claims
        What is there, in the order in which it was recorded.
    complete
        Whether all is there, and only renaming was left to do.
    """

    identity: Identity
    claims: tuple[Claim, ...]
    complete: bool


class Journal:
    """The journal file.

    Parameters
    ----------
    path
        Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Recorded | None:
        """Read what is recorded; None where there is no journal, or none whose first line can be trusted."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        entries: list[dict[str, Any]] = []
        for line in lines:
            mark, _, text = line.partition(b" ")
            if mark != _mark(text):
                break
            entries.append(json.loads(text))
        if not entries or entries[0].get("format") != _FORMAT:
            return None
        head, *rest = entries
        sources = tuple((url, size, tuple(map(tuple, validators))) for url, size, validators in head["sources"])
        return Recorded(
            Identity(head["plan"], sources),
            tuple(Claim(*claim) for entry in rest for claim in entry["claims"]),
            any(entry.get("complete", False) for entry in rest),
        )

    def begin(self, identity: Identity, claims: Sequence[Claim]) -> None:
        """Replace the journal by one with these claims."""
        head = {"format": _FORMAT, "plan": identity.plan, "sources": identity.sources}
        temporary = self.path.with_name(self.path.name + ".new")
        with temporary.open("wb") as file:
            file.write(_line(head) + (_line({"claims": claims}) if claims else b""))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    def append(self, claims: Sequence[Claim], *, complete: bool = False) -> None:
        """Add claims whose bytes are on the disk."""
        with self.path.open("ab") as file:
            file.write(_line({"claims": claims} | ({"complete": True} if complete else {})))
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Delete the journal."""
        self.path.unlink(missing_ok=True)


def _mark(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode()


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()
    return _mark(text) + b" " + text + b"\n"


class _Run:
    """Bytes that were written one behind the other since the last record."""

    __slots__ = ("digest", "start")

    def __init__(self, start: int, *, checksums: bool) -> None:
        self.start = start
        self.digest = hashlib.sha256() if checksums else None


class Ledger:
    """What was written since the last record; may be told by several threads.

    Parameters
    ----------
    checksums
        Whether to compute a digest of each run of bytes.
    """

    def __init__(self, *, checksums: bool) -> None:
        self.checksums = checksums
        self._runs: dict[int, _Run] = {}  # by where they end
        self._lock = Lock()
        self.n_bytes = 0

    def note(self, at: int, data: bytes | int) -> None:
        """Note that bytes, or so many bytes, were written to address `at`."""
        size = data if isinstance(data, int) else len(data)
        with self._lock:
            run = self._runs.pop(at, None) or _Run(at, checksums=self.checksums)
        if run.digest and not isinstance(data, int):
            run.digest.update(data)
        with self._lock:
            self._runs[at + size] = run
            self.n_bytes += size

    def take(self) -> list[Claim]:
        """Return what was noted since the last call, by address."""
        with self._lock:
            runs, self._runs = self._runs, {}
        return sorted(Claim(run.start, stop, run.digest.hexdigest() if run.digest else None) for stop, run in runs.items())


def verified(claims: Iterable[Claim], read: Callable[[int, int], Iterable[bytes]]) -> list[Claim]:
    """Return the claims that hold: those without a digest, and those whose bytes, as `read` gives them, have it.

    Parameters
    ----------
    claims
        As recorded.
    read
        Gives the bytes of an interval of the partial result, in chunks.
    """
    held = []
    for claim in claims:
        if claim.digest is not None:
            digest = hashlib.sha256()
            for chunk in read(claim.start, claim.stop):
                digest.update(chunk)
            if digest.hexdigest() != claim.digest:
                continue
        held.append(claim)
    return held


def merged(claims: Iterable[Claim]) -> list[tuple[int, int]]:
    """Return the intervals that claims cover together: ascending, apart from each other."""
    out: list[tuple[int, int]] = []
    for start, stop, _ in sorted(claims):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        else:
            out.append((start, stop))
    return out
