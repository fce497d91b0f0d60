"""The range server, its faults and its log, seen through http.client."""

from __future__ import annotations

import gzip
import http.client
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import attrs
import pytest

from ggufslice.testing import RangeServer
from rawhttp import fetch

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Serve

DATA = bytes(range(256)) * 40
FLIPPED = bytes(255 - byte for byte in DATA)


@pytest.fixture(params=["memory", "folder"])
def server(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> RangeServer:
    if request.param == "memory":
        return serve({"m.gguf": DATA, "a/b c.gguf": b"spaced"}, other=serve({"m.gguf": DATA}))
    (tmp_path / "a").mkdir()
    (tmp_path / "m.gguf").write_bytes(DATA)
    (tmp_path / "a" / "b c.gguf").write_bytes(b"spaced")
    return serve(tmp_path, other=serve(tmp_path))


def test_a_good_server(server: RangeServer) -> None:
    url = server.url("m.gguf")
    whole, part, tail = fetch(url), fetch(url, "10-19"), fetch(url, "-5")
    size = len(DATA)

    assert (whole.status, whole.body, whole.headers["accept-ranges"]) == (200, DATA, "bytes")
    assert (part.status, part.body, part.headers["content-range"]) == (206, DATA[10:20], f"bytes 10-19/{size}")
    assert (tail.status, tail.body) == (206, DATA[-5:])
    assert fetch(url, "10230-").body == DATA[10230:]
    assert fetch(url, f"{size - 2}-{size + 9}").headers["content-range"] == f"bytes {size - 2}-{size - 1}/{size}"
    assert (fetch(url, f"{size}-").status, fetch(url, f"{size}-").headers["content-range"]) == (416, f"bytes */{size}")
    head = fetch(url, "0-4", method="HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, str(size), b"")
    assert part.headers["etag"] == whole.headers["etag"]
    assert fetch(server.url("a/b%20c.gguf")).body == b"spaced"
    assert fetch(server.url("none")).status == 404
    assert fetch(server.url("../conftest.py")).status == 404
    assert fetch(server.url("%2e%2e/%2e%2e/etc/passwd")).status == 404


def test_conditions(server: RangeServer) -> None:
    url = server.url("m.gguf")
    etag, modified = (fetch(url).headers[name] for name in ("etag", "last-modified"))

    assert fetch(url, "0-3", headers={"If-Match": etag}).status == 206
    assert fetch(url, "0-3", headers={"If-Match": f'"x", {etag}'}).status == 206
    assert fetch(url, "0-3", headers={"If-Match": '"x"'}).status == 412
    assert fetch(server.url("~weak-etag/m.gguf"), "0-3", headers={"If-Match": f"W/{etag}"}).status == 412
    assert fetch(url, "0-3", headers={"If-Range": etag}).status == 206
    assert fetch(url, "0-3", headers={"If-Range": modified}).status == 206
    assert fetch(url, "0-3", headers={"If-Range": '"x"'}).status == 200


def test_connections_are_kept_and_requests_logged(server: RangeServer) -> None:
    parts = urlsplit(server.url())
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    connection.request("GET", "/m.gguf?x=1", headers={"Range": "bytes=5-", "Authorization": "Bearer t", "Cookie": "c=1"})
    connection.getresponse().read()
    first = connection.sock
    connection.request("GET", "/m.gguf", headers={"Range": "bytes=5-8"})
    connection.getresponse().read()
    assert connection.sock is first
    connection.close()

    one, two = server.requests
    assert (one.method, one.path, one.range, one.status, one.sent) == ("GET", "/m.gguf?x=1", (5, None), 206, len(DATA) - 5)
    assert (one.headers["authorization"], one.headers["cookie"]) == ("Bearer t", "c=1")
    assert (two.range, two.sent) == ((5, 8), 4)
    assert server.bytes_sent == len(DATA) - 1
    server.reset()
    assert server.requests == ()
    assert server.bytes_sent == 0


@attrs.frozen
class Range:
    """A fault, and what `bytes=100-199` gives."""

    fault: str
    status: int
    content_range: str | None
    body: bytes


SIZE = len(DATA)
RANGES = [
    Range("ignore-range", 200, None, DATA),
    Range("ignore-range:above=99", 200, None, DATA),
    Range("ignore-range:above=100", 206, f"bytes 100-199/{SIZE}", DATA[100:200]),
    Range("shift", 206, f"bytes 99-198/{SIZE}", DATA[99:199]),
    Range("shift:by=7", 206, f"bytes 107-206/{SIZE}", DATA[107:207]),
    Range("cap:n=10", 206, f"bytes 100-109/{SIZE}", DATA[100:110]),
    Range("cap:n=1000", 206, f"bytes 100-199/{SIZE}", DATA[100:200]),
    Range("whole-206", 206, f"bytes 0-{SIZE - 1}/{SIZE}", DATA),
    Range("no-content-range", 206, None, DATA[100:200]),
    Range("wrong-total", 206, f"bytes 100-199/{SIZE + 1}", DATA[100:200]),
    Range("unknown-total", 206, "bytes 100-199/*", DATA[100:200]),
    Range("chunked", 206, f"bytes 100-199/{SIZE}", DATA[100:200]),
    Range("rate:bytes_per_s=100000", 206, f"bytes 100-199/{SIZE}", DATA[100:200]),
    Range("drip:n=50,every=0.001", 206, f"bytes 100-199/{SIZE}", DATA[100:200]),
    Range("swap", 206, f"bytes 100-199/{SIZE}", FLIPPED[100:200]),
    Range("overlong:by=3", 206, f"bytes 100-199/{SIZE}", DATA[100:200] + b"\xee" * 3),
    Range("overlong:by=3,length=no", 206, f"bytes 100-199/{SIZE}", DATA[100:200] + b"\xee" * 3),
    Range("cut:n=30,length=no", 206, f"bytes 100-199/{SIZE}", DATA[100:130]),
    Range("shift:by=5/~cap:n=4/~unknown-total", 206, "bytes 105-108/*", DATA[105:109]),
    Range("chunked/~cap:n=9", 206, f"bytes 100-108/{SIZE}", DATA[100:109]),
]


@pytest.mark.parametrize("case", RANGES, ids=lambda case: case.fault)
def test_faulty_ranges(case: Range, server: RangeServer) -> None:
    got = fetch(server.url(f"~{case.fault}/m.gguf"), "100-199")

    assert (got.status, got.headers.get("content-range"), got.body, got.error) == (
        case.status, case.content_range, case.body, None,
    )  # fmt: skip
    assert ("content-length" in got.headers) == ("length=no" not in case.fault and "chunked" not in case.fault)
    assert (got.headers.get("transfer-encoding") == "chunked") == ("chunked" in case.fault)
    assert server.requests[0].sent == len(case.body)


def test_multipart(server: RangeServer) -> None:
    got = fetch(server.url("~multipart/m.gguf"), "100-199")
    boundary = got.headers["content-type"].partition("boundary=")[2].encode()

    assert got.status == 206
    assert "content-range" not in got.headers
    assert got.headers["content-type"].startswith("multipart/byteranges;")
    assert got.body.split(b"--" + boundary)[1].endswith(b"\r\n\r\n" + DATA[100:200] + b"\r\n")


@pytest.mark.parametrize("n", [0, 1, 99])
def test_bodies_that_end_early(n: int, server: RangeServer) -> None:
    cut = fetch(server.url(f"~cut:n={n}/m.gguf"), "100-199")
    chunked = fetch(server.url(f"~cut:n={n}/~chunked/m.gguf"), "100-199")
    reset = fetch(server.url(f"~reset:n={n}/m.gguf"), "100-199")

    assert (cut.body, cut.error, cut.headers["content-length"]) == (DATA[100 : 100 + n], http.client.IncompleteRead, "100")
    assert (chunked.body, chunked.error) == (DATA[100 : 100 + n], http.client.IncompleteRead)
    assert reset.error is ConnectionResetError
    assert DATA[100 : 100 + n].startswith(reset.body)


def test_a_stall_lasts_until_the_server_stops() -> None:
    with RangeServer({"m.gguf": DATA}) as server:
        parts = urlsplit(server.url())
        connection = socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=20)
        connection.sendall(b"GET /~stall:n=5/m.gguf HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n")
        received = b""
        while not received.endswith(DATA[:5]):
            received += connection.recv(100)
        assert fetch(server.url("m.gguf"), "0-1").body == DATA[:2]
    assert connection.recv(100) == b""
    connection.close()


def test_a_client_may_leave_a_stall(server: RangeServer) -> None:
    assert fetch(server.url("~stall:n=5/m.gguf"), "0-9", read=5).body == DATA[:5]
    assert server.requests[0].sent == 5


def test_statuses_and_when_to_come_back(server: RangeServer) -> None:
    url = server.url("~status:code=503,retry_after=2,times=2/m.gguf")

    assert [fetch(url).status for _ in range(3)] == [503, 503, 200]
    assert [fetch(server.url("~status:code=404,after=1/m.gguf")).status for _ in range(3)] == [200, 404, 404]
    assert [fetch(server.url("~status:code=500,after=1,times=1/m.gguf")).status for _ in range(3)] == [200, 500, 200]
    server.reset()
    assert fetch(url).headers["retry-after"] == "2"
    assert fetch(server.url("~status:code=429,retry_after=7,form=date/m.gguf")).headers["retry-after"].endswith(" GMT")
    assert (
        fetch(server.url("~status:code=429,retry_after=7,form=ratelimit/m.gguf")).headers["ratelimit"]
        == '"resolvers";r=0;t=7'
    )
    assert fetch(server.url("~status:code=416/m.gguf"), "0-9").headers["content-range"] == f"bytes */{SIZE}"
    for code in (400, 401, 403, 410, 502, 504):
        assert fetch(server.url(f"~status:code={code}/m.gguf")).status == code


def test_counters_belong_to_a_path_and_body_faults_count_gets(server: RangeServer) -> None:
    url = server.url("~cut:n=1,times=1/m.gguf")

    assert fetch(url, method="HEAD").status == 200
    assert [len(fetch(url, "0-9").body) for _ in range(2)] == [1, 10]
    assert len(fetch(server.url("~cut:n=1,times=1/~cap:n=10/m.gguf"), "0-99").body) == 1
    both = server.url("~status:code=500,times=1/~cut:n=1,times=1/m.gguf")
    assert [(got.status, len(got.body)) for got in (fetch(both, "0-9") for _ in range(3))][1:] == [(206, 1), (206, 10)]


def test_validators(server: RangeServer) -> None:
    good = fetch(server.url("m.gguf"))
    changed = [fetch(server.url("~new-etag:after=1/m.gguf")) for _ in range(2)]
    swapped = [fetch(server.url("~swap:after=1/m.gguf")) for _ in range(2)]
    kept = fetch(server.url("~swap:etag=keep/m.gguf"))

    assert [got.body for got in changed] == [DATA, DATA]
    assert changed[0].headers["etag"] == good.headers["etag"] != changed[1].headers["etag"]
    assert [got.body for got in swapped] == [DATA, FLIPPED]
    assert swapped[0].headers["etag"] != swapped[1].headers["etag"]
    assert (kept.body, kept.headers["etag"]) == (FLIPPED, good.headers["etag"])
    assert fetch(server.url("~weak-etag/m.gguf")).headers["etag"] == f"W/{good.headers['etag']}"
    assert "etag" not in fetch(server.url("~no-etag/m.gguf")).headers
    assert "last-modified" in fetch(server.url("~no-etag/m.gguf")).headers
    assert "last-modified" not in fetch(server.url("~no-etag:modified=no/m.gguf")).headers


def test_a_file_that_changes_gets_another_etag(serve: Serve) -> None:
    files: dict[str, bytes | Path] = {"m": b"one"}
    server = serve(files)
    first = fetch(server.url("m"))
    files["m"] = b"two"
    second = fetch(server.url("m"))

    assert (first.body, second.body) == (b"one", b"two")
    assert first.headers["etag"] != second.headers["etag"]


def test_gzip(server: RangeServer) -> None:
    packed = gzip.compress(DATA, mtime=0)
    url = server.url("~gzip/m.gguf")
    got = fetch(url, headers={"Accept-Encoding": "gzip, br"})

    assert (got.headers["content-encoding"], got.body) == ("gzip", packed)
    assert fetch(url, "0-9", headers={"Accept-Encoding": "gzip"}).body == packed[:10]
    assert fetch(url, "0-9", headers={"Accept-Encoding": "identity"}).body == DATA[:10]
    assert (
        fetch(server.url("~gzip:always=yes,ranges=no/m.gguf"), "0-9", headers={"Accept-Encoding": "identity"}).body == packed
    )
    assert fetch(server.url("~gzip/m.gguf"), method="HEAD", headers={"Accept-Encoding": "gzip"}).headers[
        "content-length"
    ] == str(len(packed))


def test_head_and_tokens(server: RangeServer) -> None:
    assert fetch(server.url("~no-head/m.gguf"), method="HEAD").status == 405
    assert fetch(server.url("~no-head:code=403/m.gguf"), method="HEAD").status == 403
    assert fetch(server.url("~no-head/m.gguf")).status == 200
    assert fetch(server.url("~auth:token=t/m.gguf")).status == 401
    assert fetch(server.url("~auth:token=t/m.gguf"), headers={"Authorization": "Bearer t"}).status == 200


def test_redirects_keep_the_faults_behind_them(server: RangeServer) -> None:
    for to, start in (("relative", "/"), ("same", server.url()), ("other", "http://127.0.0.1:")):
        url = server.url(f"~redirect:to={to}/~cap:n=3/m.gguf?x=%22")
        got = fetch(url, "0-9")
        target = urljoin(url, got.headers["location"])

        assert got.status == 302
        assert got.headers["location"].startswith(start)
        assert target.endswith("/~cap:n=3/m.gguf?x=%22")
        assert target.startswith(server.url()) == (to != "other")
        assert fetch(target, "0-9").body == DATA[:3]
    assert fetch(server.url("~redirect:code=307/m.gguf")).status == 307


@pytest.mark.parametrize("style", ["expires", "amz"])
def test_signed_links_expire(style: str, serve: Serve) -> None:
    cdn = serve({"m.gguf": DATA})
    origin = serve({}, other=cdn)

    def link(more: str = "") -> str:
        got = fetch(origin.url(f"~sign:style={style}{more}/m.gguf"))
        assert got.status == 302
        return got.headers["location"]

    first, limited = link(), link(",uses=2")
    assert first.startswith(cdn.url())
    assert first != link()
    assert ("X-Amz-Expires=3600&" in first) == (style == "amz")
    assert ("Expires=" in first) == (style == "expires") or style == "amz"
    assert [fetch(limited, "0-1").status for _ in range(3)] == [206, 206, 403]
    assert fetch(first, "0-1", headers={"Authorization": "Bearer t"}).status == 400
    assert fetch(first.replace("%3B%20", ";%20"), "0-1").status == 403
    assert fetch(cdn.url("~signed/m.gguf")).status == 403
    cdn.advance(3500)
    assert fetch(first, "0-1").body == DATA[:2]
    cdn.advance(200)
    assert fetch(first, "0-1").status == 403
    origin.advance(3700)
    assert fetch(link(), "0-1").status == 206


def test_misspelt_faults_are_told(server: RangeServer) -> None:
    assert b"no fault is called 'cutt'; there are status" in fetch(server.url("~cutt/m.gguf")).body
    got = fetch(server.url("~cut:m=1/m.gguf"))
    assert (got.status, b"has no parameter 'm'; it has after, times, n" in got.body) == (500, True)
    assert fetch(server.url("~cut:n=x/m.gguf")).status == 500
    with RangeServer({}) as alone:
        assert b"there is no other origin" in fetch(alone.url("~redirect:to=other/m")).body


def test_escaped_faults_are_understood(server: RangeServer) -> None:
    assert fetch(server.url("%7Ecap%3An%3D3/m.gguf"), "0-9").body == DATA[:3]


def test_a_server_that_is_not_running_has_no_url() -> None:
    with pytest.raises(RuntimeError, match="isn't running"):
        RangeServer({}).url("m.gguf")


def test_the_command_serves_a_folder_until_interrupted(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(DATA)
    command = [sys.executable, "-W", "error", "-m", "ggufslice.testing.server", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert fetch(f"{url}m.gguf", "3-4").body == DATA[3:5]
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "", "")


def test_the_command_names_a_folder_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ggufslice.testing.server", str(tmp_path / "none"), "--port", "0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "none") in done.stderr
