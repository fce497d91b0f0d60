"""What the servers speak about: a request as logged, the content behind a URL, and a reply ready to send."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Content: TypeAlias = bytes | Path

_FLIP = bytes(255 - byte for byte in range(256))
_READ = 1 << 20


@attrs.frozen
class Request:
    """A request as the server saw it.

    Attributes
    ----------
    method
        ``GET``, ``HEAD`` and so on.
    path
        The request's target as received: faults, query and escapes included.
    headers
        By lower-case name; read-only.
    status
        Of the reply.
    sent
        Bytes of the reply's body handed to the connection so far, without the framing of chunks. When the client hangs
        up, up to the last MiB of them may not have left.
    """

    method: str
    path: str
    headers: Mapping[str, str] = attrs.field(hash=False)
    status: int
    sent: int = 0

    @property
    def range(self) -> tuple[int, int | None] | None:
        """First and last byte asked for, both inclusive; the last is None in ``bytes=5-``. None without such a range."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        return (int(match[1]), int(match[2]) if match[2] else None) if match else None


@attrs.frozen
class Piece:
    """Bytes `start` to `stop` of a content; `flipped` ones have every bit inverted."""

    content: Content
    start: int
    stop: int
    flipped: bool = False

    def chunks(self, size: int = _READ) -> Iterator[bytes | memoryview]:
        """Yield the bytes, at most `size` at once."""
        if isinstance(self.content, bytes):
            view = memoryview(self.content)
            for start in range(self.start, self.stop, size):
                chunk = view[start : min(start + size, self.stop)]
                yield bytes(chunk).translate(_FLIP) if self.flipped else chunk
            return
        with self.content.open("rb") as file:
            file.seek(self.start)
            left = self.stop - self.start
            while left and (data := file.read(min(size, left))):
                left -= len(data)
                yield data.translate(_FLIP) if self.flipped else data


@attrs.frozen(kw_only=True)
class Entity:
    """The content behind a URL, with what its headers will say."""

    content: Content
    size: int
    etag: str | None
    modified: str | None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    ranges: bool = True
    flipped: bool = False

    def piece(self, start: int = 0, stop: int | None = None) -> Piece:
        """Take a part, or everything."""
        return Piece(self.content, start, self.size if stop is None else stop, self.flipped)


@attrs.frozen(kw_only=True)
class Reply:
    """A reply ready to send.

    Attributes
    ----------
    framing
        How the body's end is told: ``length``, ``chunked``, or ``close`` (of the connection).
    limit, ending
        After so many bytes of the body the connection ends like this instead.
    pace
        Send (bytes, seconds): so many bytes, then a pause.
    """

    status: int
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: tuple[Piece, ...] = ()
    framing: Literal["length", "chunked", "close"] = "length"
    limit: int | None = None
    ending: Literal["close", "reset", "stall"] = "close"
    pace: tuple[int, float] | None = None

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(piece.stop - piece.start for piece in self.body)

    def with_headers(self, **headers: str | None) -> Reply:
        """Set headers (``content_range="..."``); None removes one."""
        changed = dict(self.headers)
        for name, value in headers.items():
            title = name.replace("_", "-").title()
            changed.pop(title, None)
            if value is not None:
                changed[title] = value
        return attrs.evolve(self, headers=changed)


def text_reply(status: int, text: str = "", headers: Mapping[str, str] | None = None) -> Reply:
    """Make a reply that says something."""
    data = text.encode()
    kind = {"Content-Type": "text/plain; charset=utf-8"} if text else {}
    return Reply(status=status, headers={**kind, **(headers or {})}, body=(Piece(data, 0, len(data)),))


def entity_reply(entity: Entity, method: str, headers: Mapping[str, str]) -> Reply:
    """Answer a request as a good server does: conditions, then one range or everything.

    Parameters
    ----------
    entity
        What the URL stands for.
    method
        ``GET``, or ``HEAD``, which ignores ranges (RFC 9110, 14.2).
    headers
        The request's, by lower-case name.
    """
    head = {"Content-Type": "application/octet-stream", **entity.headers, "Accept-Ranges": "bytes"}
    if not entity.ranges:
        del head["Accept-Ranges"]
    if entity.etag is not None:
        head["Etag"] = entity.etag
    if entity.modified is not None:
        head["Last-Modified"] = entity.modified
    strong = entity.etag is not None and not entity.etag.startswith("W/")
    wanted = headers.get("if-match")
    if wanted not in {None, "*"} and not (strong and entity.etag in re.split(r",\s*", str(wanted))):
        return text_reply(412, "the content has another ETag")
    whole = Reply(status=200, headers=head, body=(entity.piece(),))
    condition = headers.get("if-range")
    if condition is not None and condition != entity.modified and not (strong and condition == entity.etag):
        return whole
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
    if method != "GET" or not entity.ranges or match is None or not (match[1] or match[2]):
        return whole
    if match[1]:
        start, stop = int(match[1]), min(int(match[2]) + 1 if match[2] else entity.size, entity.size)
    else:
        start, stop = max(0, entity.size - int(match[2])), entity.size
    if start >= stop:
        return Reply(status=416, headers={"Content-Range": f"bytes */{entity.size}"})
    return part_reply(whole, entity, start, stop)


def part_reply(whole: Reply, entity: Entity, start: int, stop: int) -> Reply:
    """Make the 206 for bytes `start` to `stop` (exclusive)."""
    part = attrs.evolve(whole, status=206, body=(entity.piece(start, stop),))
    return part.with_headers(content_range=f"bytes {start}-{stop - 1}/{entity.size}")
