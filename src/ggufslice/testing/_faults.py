"""The ways in which a server misbehaves, and how a path names them; the table for users is in `ggufslice.testing.server`."""

from __future__ import annotations

import calendar
import gzip
import hashlib
import hmac
import re
import secrets
import time
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, unquote

import attrs

from ggufslice.testing._http import Entity, Piece, Reply, part_reply, text_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Params: TypeAlias = dict[str, Any]

_ENDLESS = 1 << 62
_KEY = b"signs the links of the stand-in servers"


@attrs.frozen(kw_only=True)
class Visit:
    """The request that a fault looks at.

    Attributes
    ----------
    target
        As received, query included.
    rest
        The path behind the fault, with its slash and without the query.
    now
        The server's time, in seconds since the epoch.
    here, other
        URLs of this origin and of the other one, if there is one.
    count
        Count a key, and return how often it was counted before.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    rest: str
    now: float
    here: str
    other: str | None
    count: Callable[[object], int]

    def origin(self, to: str) -> str:
        """Resolve ``relative``, ``same`` or ``other`` to what a Location starts with."""
        if to == "other" and self.other is None:
            raise ValueError("there is no other origin: RangeServer(root, other=another)")
        return {"relative": "", "same": self.here, "other": str(self.other)}[to]


@attrs.frozen
class Fault:
    """A kind of misbehaviour: its parameters with their defaults, and what it does to the content or to the reply."""

    params: Mapping[str, Any]
    before: Callable[[Entity | Reply, Params, Visit], Entity | Reply] | None = None
    after: Callable[[Reply, Entity, Params, Visit], Reply] | None = None


@attrs.frozen
class Segment:
    """A fault as a path names it: ``~cut:n=1000,times=3``."""

    key: str
    fault: Fault
    params: Params

    def acts(self, visit: Visit) -> bool:
        """Count the request, and tell whether `after` and `times` let the fault act on it."""
        if self.fault.after is not None and visit.method != "GET":
            return False
        number = visit.count(self.key)
        return bool(self.params["after"] <= number < self.params["after"] + self.params["times"])


def parse_path(path: str) -> tuple[list[tuple[Segment, str]], str]:
    """Take the leading fault segments off a path.

    Parameters
    ----------
    path
        As received, without the query.

    Returns
    -------
    tuple of list and str
        Each fault with the path behind it, and the path behind all; both with their escapes.

    Raises
    ------
    ValueError
        There is no such fault, or it has no such parameter.
    """
    found: list[tuple[Segment, str]] = []
    rest = path
    while unquote(rest).startswith("/~"):
        first, slash, behind = rest[1:].partition("/")
        name, _, text = unquote(first)[1:].partition(":")
        if name not in FAULTS:
            raise ValueError(f"no fault is called {name!r}; there are {', '.join(FAULTS)}")
        params = {"after": 0, "times": _ENDLESS, **FAULTS[name].params}
        for item in filter(None, text.split(",")):
            key, _, value = item.partition("=")
            if key not in params:
                raise ValueError(f"fault {name!r} has no parameter {key!r}; it has {', '.join(params)}")
            params[key] = type(params[key])(value)
        rest = slash + behind or "/"
        found.append((Segment(f"{path}#{len(found)}", FAULTS[name], params), rest))
    return found, rest


def _status(found: Entity | Reply, params: Params, visit: Visit) -> Reply:
    headers = {}
    if params["retry_after"] >= 0:
        seconds = params["retry_after"]
        name, value = {
            "seconds": ("Retry-After", str(seconds)),
            "date": ("Retry-After", formatdate(visit.now + seconds, usegmt=True)),
            "ratelimit": ("RateLimit", f'"resolvers";r=0;t={seconds}'),
        }[params["form"]]
        headers[name] = value
    if params["code"] == 416 and isinstance(found, Entity):
        headers["Content-Range"] = f"bytes */{found.size}"
    return text_reply(params["code"], f"a {params['code']}, as the path asks", headers)


def _auth(found: Entity | Reply, params: Params, visit: Visit) -> Entity | Reply:
    if visit.headers.get("authorization") == f"Bearer {params['token']}":
        return found
    return text_reply(401, "a token is needed", {"WWW-Authenticate": "Bearer"})


def _no_head(found: Entity | Reply, params: Params, visit: Visit) -> Entity | Reply:
    return text_reply(params["code"], "no HEAD here", {"Allow": "GET"}) if visit.method == "HEAD" else found


def _redirect(_found: Entity | Reply, params: Params, visit: Visit) -> Reply:
    query = visit.target.partition("?")[2]
    location = visit.origin(params["to"]) + visit.rest + (f"?{query}" if query else "")
    return text_reply(params["code"], "", {"Location": location})


def _sign(_found: Entity | Reply, params: Params, visit: Visit) -> Reply:
    to = params["to"] or ("other" if visit.other else "same")
    path = (f"/~signed:uses={params['uses']}" if params["uses"] else "/~signed") + visit.rest
    link = signed_link(path, visit.now, params["seconds"], params["style"])
    return text_reply(302, "", {"Location": visit.origin(to) + link})


def signed_link(path: str, now: float, seconds: int, style: str) -> str:
    """Sign a path for so many seconds.

    Parameters
    ----------
    path
        The path, escaped, with a ``~signed`` segment that will check the signature.
    now
        The time, in seconds since the epoch.
    seconds
        How long the link is good.
    style
        ``expires``: the query has ``Expires=EPOCH``, as CloudFront writes it. ``amz``: ``X-Amz-Date`` and
        ``X-Amz-Expires``, as S3 does.
    """
    # Two links made in the same second differ, and the escapes break the signature if a client writes them in another way.
    nonce = f"response-content-disposition=inline%3B%20filename%3D%22m.gguf%22&nonce={secrets.token_hex(4)}"
    if style == "amz":
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        link = f"{path}?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date={date}&X-Amz-Expires={seconds}&{nonce}&X-Amz-Signature="
    else:
        link = f"{path}?Expires={int(now + seconds)}&{nonce}&Key-Pair-Id=K2TEST&Signature="
    return link + _signature(link)


def _signature(link: str) -> str:
    return hmac.new(_KEY, link.encode(), hashlib.sha256).hexdigest()


def _signed(found: Entity | Reply, params: Params, visit: Visit) -> Entity | Reply:
    if "authorization" in visit.headers:
        return text_reply(400, "Only one auth mechanism allowed")
    link, mark, signature = visit.target.partition("Signature=")
    if signature != _signature(link + mark):
        return text_reply(403, "SignatureDoesNotMatch")
    query = parse_qs(link.partition("?")[2])
    if "Expires" in query:
        end = float(query["Expires"][0])
    else:
        start = calendar.timegm(time.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ"))
        end = start + float(query["X-Amz-Expires"][0])
    if visit.now >= end or (params["uses"] and visit.count(signature) >= params["uses"]):
        return text_reply(403, "Request has expired")
    return found


def _new_etag(found: Entity | Reply, _params: Params, _visit: Visit) -> Entity | Reply:
    if isinstance(found, Reply) or found.etag is None:
        return found
    return attrs.evolve(found, etag=f'{found.etag[:-1]}-changed"')


def _swap(found: Entity | Reply, params: Params, visit: Visit) -> Entity | Reply:
    if isinstance(found, Reply):
        return found
    found = attrs.evolve(found, flipped=True)
    return found if params["etag"] == "keep" else _new_etag(found, params, visit)


def _weak_etag(found: Entity | Reply, _params: Params, _visit: Visit) -> Entity | Reply:
    return found if isinstance(found, Reply) else attrs.evolve(found, etag=found.etag and f"W/{found.etag}")


def _no_etag(found: Entity | Reply, params: Params, _visit: Visit) -> Entity | Reply:
    if isinstance(found, Reply):
        return found
    return attrs.evolve(found, etag=None, modified=None if params["modified"] == "no" else found.modified)


def _gzip(found: Entity | Reply, params: Params, visit: Visit) -> Entity | Reply:
    accepted = "gzip" in visit.headers.get("accept-encoding", "")
    if isinstance(found, Reply) or not (accepted or params["always"] == "yes"):
        return found
    data = gzip.compress(found.content.read_bytes() if isinstance(found.content, Path) else found.content, mtime=0)
    headers = {**found.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return attrs.evolve(found, content=data, size=len(data), headers=headers, ranges=params["ranges"] == "yes")


def _ignore_range(found: Entity | Reply, params: Params, visit: Visit) -> Entity | Reply:
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", visit.headers.get("range", ""))
    asked = int(match[2]) - int(match[1]) + 1 if match else _ENDLESS
    if isinstance(found, Reply) or asked <= params["above"]:
        return found
    return attrs.evolve(found, ranges=False)


def _bounds(reply: Reply) -> tuple[int, int]:
    return reply.body[0].start, reply.body[0].stop


def _shift(reply: Reply, entity: Entity, params: Params, _visit: Visit) -> Reply:
    start, stop = (min(max(0, bound + params["by"]), entity.size) for bound in _bounds(reply))
    return part_reply(reply, entity, start, stop) if reply.status == 206 else reply


def _cap(reply: Reply, entity: Entity, params: Params, _visit: Visit) -> Reply:
    start, stop = _bounds(reply)
    return part_reply(reply, entity, start, min(stop, start + params["n"])) if reply.status == 206 else reply


def _whole_206(reply: Reply, entity: Entity, _params: Params, _visit: Visit) -> Reply:
    return part_reply(reply, entity, 0, entity.size) if reply.status == 206 else reply


def _multipart(reply: Reply, entity: Entity, _params: Params, _visit: Visit) -> Reply:
    if reply.status != 206:
        return reply
    start, stop = _bounds(reply)
    boundary = "THIS_STRING_SEPARATES"
    part = f"--{boundary}\r\nContent-Range: bytes {start}-{stop - 1}/{entity.size}\r\n\r\n".encode()
    end = f"\r\n--{boundary}--\r\n".encode()
    body = (Piece(part, 0, len(part)), *reply.body, Piece(end, 0, len(end)))
    kind = f"multipart/byteranges; boundary={boundary}"
    return attrs.evolve(reply, body=body).with_headers(content_range=None, content_type=kind)


def _no_content_range(reply: Reply, _entity: Entity, _params: Params, _visit: Visit) -> Reply:
    return reply.with_headers(content_range=None)


def _total(text: Callable[[Entity, Params], str]) -> Callable[[Reply, Entity, Params, Visit], Reply]:
    def change(reply: Reply, entity: Entity, params: Params, _visit: Visit) -> Reply:
        start, stop = _bounds(reply)
        stated = f"bytes {start}-{stop - 1}/{text(entity, params)}"
        return reply.with_headers(content_range=stated) if reply.status == 206 else reply

    return change


def _cut(reply: Reply, _entity: Entity, params: Params, _visit: Visit) -> Reply:
    framing = reply.framing if params["length"] == "yes" else "close"
    return attrs.evolve(reply, limit=params["n"], ending="close", framing=framing)


def _overlong(reply: Reply, _entity: Entity, params: Params, _visit: Visit) -> Reply:
    extra = Piece(b"\xee" * params["by"], 0, params["by"])
    framing = reply.framing if params["length"] == "yes" else "close"
    return attrs.evolve(reply, body=(*reply.body, extra), framing=framing)


def _reset(reply: Reply, _entity: Entity, params: Params, _visit: Visit) -> Reply:
    return attrs.evolve(reply, limit=params["n"], ending="reset")


def _stall(reply: Reply, _entity: Entity, params: Params, _visit: Visit) -> Reply:
    return attrs.evolve(reply, limit=params["n"], ending="stall")


def _drip(reply: Reply, _entity: Entity, params: Params, _visit: Visit) -> Reply:
    return attrs.evolve(reply, pace=(params["n"], params["every"]))


def _rate(reply: Reply, _entity: Entity, params: Params, _visit: Visit) -> Reply:
    ticks = 100  # a second
    return attrs.evolve(reply, pace=(max(1, params["bytes_per_s"] // ticks), 1 / ticks))


def _chunked(reply: Reply, _entity: Entity, _params: Params, _visit: Visit) -> Reply:
    return attrs.evolve(reply, framing="chunked")


FAULTS: Mapping[str, Fault] = {
    "status": Fault({"code": 503, "retry_after": -1, "form": "seconds"}, before=_status),
    "auth": Fault({"token": ""}, before=_auth),
    "no-head": Fault({"code": 405}, before=_no_head),
    "redirect": Fault({"to": "same", "code": 302}, before=_redirect),
    "sign": Fault({"to": "", "uses": 0, "seconds": 3600, "style": "expires"}, before=_sign),
    "signed": Fault({"uses": 0}, before=_signed),
    "new-etag": Fault({}, before=_new_etag),
    "swap": Fault({"etag": "new"}, before=_swap),
    "weak-etag": Fault({}, before=_weak_etag),
    "no-etag": Fault({"modified": "yes"}, before=_no_etag),
    "gzip": Fault({"always": "no", "ranges": "yes"}, before=_gzip),
    "ignore-range": Fault({"above": 0}, before=_ignore_range),
    "shift": Fault({"by": -1}, after=_shift),
    "cap": Fault({"n": 1 << 20}, after=_cap),
    "whole-206": Fault({}, after=_whole_206),
    "multipart": Fault({}, after=_multipart),
    "no-content-range": Fault({}, after=_no_content_range),
    "wrong-total": Fault({"add": 1}, after=_total(lambda entity, params: str(entity.size + params["add"]))),
    "unknown-total": Fault({}, after=_total(lambda _entity, _params: "*")),
    "cut": Fault({"n": 0, "length": "yes"}, after=_cut),
    "overlong": Fault({"by": 1, "length": "yes"}, after=_overlong),
    "reset": Fault({"n": 0}, after=_reset),
    "stall": Fault({"n": 0}, after=_stall),
    "drip": Fault({"n": 1, "every": 1.0}, after=_drip),
    "rate": Fault({"bytes_per_s": 30_000_000}, after=_rate),
    "chunked": Fault({}, after=_chunked),
}
"""Every fault by name."""
