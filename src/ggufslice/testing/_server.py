"""The range server; its faults are described in `ggufslice.testing.server`."""

from __future__ import annotations

import hashlib
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

import attrs

from ggufslice.testing._faults import Visit, parse_path
from ggufslice.testing._http import Content, Entity, Piece, Reply, Request, entity_reply, text_reply

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

_SENDFILE = 1 << 20
_LINGER = struct.Struct("ii")
_EPOCH = formatdate(0, usegmt=True)  # contents in memory have no time of change


class RangeServer:
    """A loopback HTTP server that answers byte ranges, keeps a log, and misbehaves where a path asks for it.

    Use it as a context manager. Several can run at once: each port is an origin of its own. The faults are in the table of
    `ggufslice.testing.server`.

    Parameters
    ----------
    root
        A folder to serve, or a mapping of names to bytes (or paths), which may change while the server runs.
    other
        The server that redirects ``to=other`` lead to; it must run by then.
    port
        0 takes a free one.

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> with RangeServer({"a.gguf": b"GGUF and more"}) as server:
    ...     with urlopen(server.url("a.gguf")) as reply:
    ...         data = reply.read()
    ...     server.bytes_sent == len(data)
    True
    """

    def __init__(
        self, root: str | os.PathLike[str] | Mapping[str, Content], *, other: RangeServer | None = None, port: int = 0
    ) -> None:
        self._root = root if isinstance(root, Mapping) else Path(root).resolve(strict=True)
        self._other = other
        self._port = port
        self._lock = threading.Lock()
        self._log: list[Request] = []
        self._counts: Counter[object] = Counter()
        self._etags: dict[str, tuple[bytes, str]] = {}
        self._ahead = 0.0
        self._http: _HTTPServer | None = None

    def __enter__(self) -> Self:
        """Start to listen on 127.0.0.1."""
        self._http = _HTTPServer(("127.0.0.1", self._port), self)
        # The poll interval is how long a stop may take.
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop: close every connection, stalled ones too."""
        if self._http is not None:
            self._http.stop()
            self._http = None

    def url(self, path: str = "") -> str:
        """Return the URL of a path, which may start with faults.

        Raises
        ------
        RuntimeError
            The server isn't running.
        """
        if self._http is None:
            raise RuntimeError("the server isn't running: use it as a context manager")
        return f"http://127.0.0.1:{self._http.server_address[1]}/{path.removeprefix('/')}"

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests so far, in the order in which their replies started."""
        with self._lock:
            return tuple(self._log)

    @property
    def bytes_sent(self) -> int:
        """Bytes of all bodies handed to connections, faulty replies' included."""
        return sum(request.sent for request in self.requests)

    def reset(self) -> None:
        """Forget the log, and start the counters of `times`, `after` and `uses` anew."""
        with self._lock:
            self._log.clear()
            self._counts.clear()

    def advance(self, seconds: float) -> None:
        """Put the server's clock forward, so that signed links expire without anyone waiting."""
        self._ahead += seconds

    def find(self, visit: Visit) -> Entity | Reply:
        """Look up what the path behind all faults (`Visit.rest`) stands for."""
        name = unquote(visit.rest).removeprefix("/")
        if isinstance(self._root, Mapping):
            content = self._root.get(name)
        else:
            file = (self._root / name).resolve()
            content = file if file.is_relative_to(self._root) and file.is_file() else None
        return text_reply(404, f"there is no {name}") if content is None else self.entity(name, content)

    def entity(self, name: str, content: Content) -> Entity:
        """Describe a content, with a strong ETag."""
        if isinstance(content, Path):
            stat = content.stat()
            etag = f'"{stat.st_size:x}-{stat.st_mtime_ns:x}-{stat.st_ino:x}"'
            modified = formatdate(stat.st_mtime, usegmt=True)
            return Entity(content=content, size=stat.st_size, etag=etag, modified=modified)
        known = self._etags.get(name)
        if known is None or known[0] is not content:
            known = (content, f'"{hashlib.sha1(content, usedforsecurity=False).hexdigest()}"')
            self._etags[name] = known
        return Entity(content=content, size=len(content), etag=known[1], modified=_EPOCH)

    def reply(self, method: str, target: str, headers: Mapping[str, str]) -> Reply:
        """Answer a request: faults on the content, a good server's answer, then faults on that."""
        path = target.partition("?")[0]
        try:
            return self._reply(method, target, path, headers)
        except ValueError as error:
            return text_reply(500, f"{path}: {error}")

    def _reply(self, method: str, target: str, path: str, headers: Mapping[str, str]) -> Reply:
        segments, plain = parse_path(path)
        visit = Visit(
            method=method,
            target=target,
            headers=headers,
            rest=plain,
            now=time.time() + self._ahead,
            here=self.url().rstrip("/"),
            other=self._other.url().rstrip("/") if self._other else None,
            count=self._count,
        )
        found = self.find(visit)
        late = []
        for segment, rest in segments:
            visit = attrs.evolve(visit, rest=rest)
            if segment.fault.before is None:
                late.append((segment, visit))
            elif segment.acts(visit):
                result = segment.fault.before(found, segment.params, visit)
                if isinstance(result, Reply) and result is not found:
                    return result
                found = result
        if isinstance(found, Reply):
            return found
        reply = entity_reply(found, method, headers)
        for segment, visit in late:
            if segment.fault.after is not None and reply.status in {200, 206} and segment.acts(visit):
                reply = segment.fault.after(reply, found, segment.params, visit)
        return reply

    def _count(self, key: object) -> int:
        with self._lock:
            self._counts[key] += 1
            return self._counts[key] - 1

    def start_log(self, request: Request) -> int:
        """Log a request, and return its place for `add_sent`."""
        with self._lock:
            self._log.append(request)
            return len(self._log) - 1

    def add_sent(self, request: Request, place: int, sent: int) -> None:
        """Say how much of a logged request's body is sent."""
        with self._lock:
            # After a reset the place may belong to another request.
            if place < len(self._log) and self._log[place].headers is request.headers:
                self._log[place] = attrs.evolve(request, sent=sent)


class _HTTPServer(ThreadingHTTPServer):
    """Threads for connections, all of which `stop` ends."""

    daemon_threads = False  # the threads are joined when the server closes
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], owner: RangeServer) -> None:
        self.owner = owner
        self.closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connections_lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        if _LINGER.unpack(request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.size))[0]:
            request.close()  # as a reset: an orderly shutdown first would send the end of the stream
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet: clients that hang up are what this server is for."""

    def stop(self) -> None:
        """Close everything and wait for the threads."""
        self.closing.set()
        self.shutdown()
        with self._connections_lock:
            for connection in self._connections:
                _hang_up(connection)
        self.server_close()


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client did it before us


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HTTPServer

    def log_message(self, *_args: object) -> None:
        """Stay quiet: the log is `RangeServer.requests`."""

    def do_GET(self) -> None:
        """Answer."""
        owner = self.server.owner
        headers = MappingProxyType({name.lower(): value for name, value in self.headers.items()})
        reply = owner.reply(self.command, self.path, headers)
        request = Request(method=self.command, path=self.path, headers=headers, status=reply.status)
        place = owner.start_log(request)
        sent = 0

        def count(n_bytes: int) -> None:
            nonlocal sent
            sent += n_bytes
            owner.add_sent(request, place, sent)

        try:
            self._send(reply, count)
        except OSError:
            self.close_connection = True  # the client hung up

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def _send(self, reply: Reply, count: Callable[[int], None]) -> None:
        lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}", f"Date: {formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        if reply.framing == "length":
            lines.append(f"Content-Length: {reply.size}")
        elif reply.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        else:
            lines.append("Connection: close")
            self.close_connection = True
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if self.command == "HEAD":
            return
        left = reply.size if reply.limit is None else min(reply.limit, reply.size)
        whole = reply.limit is None
        for piece in reply.body:
            part = attrs.evolve(piece, stop=min(piece.stop, piece.start + left))
            left -= part.stop - part.start
            self._send_piece(part, reply, count)
        if whole:
            if reply.framing == "chunked":
                self.connection.sendall(b"0\r\n\r\n")
            return
        self.close_connection = True
        if reply.ending == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))
        elif reply.ending == "stall":
            self._stall()

    def _send_piece(self, piece: Piece, reply: Reply, count: Callable[[int], None]) -> None:
        """Send bytes, each counted before it goes: a client that has it finds it in the log."""
        if isinstance(piece.content, Path) and not (piece.flipped or reply.pace or reply.framing == "chunked"):
            with piece.content.open("rb") as file:
                for start in range(piece.start, piece.stop, _SENDFILE):
                    n_bytes = min(_SENDFILE, piece.stop - start)
                    count(n_bytes)
                    self.connection.sendfile(file, start, n_bytes)
            return
        begun, due = time.monotonic(), 0.0
        for chunk in piece.chunks(reply.pace[0]) if reply.pace else piece.chunks():
            count(len(chunk))
            if reply.framing == "chunked":
                self.connection.sendall(b"".join([b"%x\r\n" % len(chunk), chunk, b"\r\n"]))
            else:
                self.connection.sendall(chunk)
            if reply.pace:
                due += reply.pace[1]
                if self.server.closing.wait(max(0.0, begun + due - time.monotonic())):
                    return

    def _stall(self) -> None:
        """Send nothing more until the client hangs up or the server stops."""
        while not self.server.closing.is_set():
            if select.select([self.connection], [], [], 0.05)[0] and not self.connection.recv(1):
                return
