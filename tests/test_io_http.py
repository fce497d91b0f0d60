"""Reading over HTTP: what is asked, which replies are believed, what is tried again."""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from typing import TYPE_CHECKING

import aiohttp
import attrs
import pytest

import ggufslice as gs
from ggufslice.io import retry, sessions
from ggufslice.io.loop import run
from ggufslice.io.retry import Persistence, Retry, fetch, stream_span
from ggufslice.io.sources import Access, make_source
from ggufslice.io.tally import Tally
from ggufslice.spans import SourceRef
from ggufslice.testing import RangeServer, build_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from conftest import Serve
    from ggufslice.io.sources import Source

FAST = gs.TransferOptions(backoff=0.0, read_timeout=0.4, connect_timeout=5.0, max_wait=2.0)
DATA = bytes(i * 7 % 251 for i in range(100_000))


@pytest.fixture
def server(serve: Serve) -> RangeServer:
    return serve({"m.bin": DATA})


def source_at(url: str, *, size: int | None = len(DATA), options: gs.TransferOptions = FAST) -> Source:
    """Return the source of a file whose size is known already, as after opening."""
    return make_source(SourceRef(url, size), Access(options=options))


def read(source: Source, start: int, stop: int, *, options: gs.TransferOptions = FAST) -> tuple[bytes, Tally]:
    tally = Tally()
    return run(fetch(source, start, stop, options, tally)), tally


def test_each_request_is_a_ranged_get_for_the_bytes_as_they_are(server: RangeServer) -> None:
    data, tally = read(source_at(server.url("m.bin")), 10, 30)

    assert data == DATA[10:30]
    (request,) = server.requests
    assert (request.method, request.range, request.status) == ("GET", (10, 29), 206)
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"].startswith("ggufslice/")
    assert not {"cookie", "authorization", "if-match"} & set(request.headers)
    assert (tally.requests, tally.retries, tally.transfer().received) == (1, 0, 20)


def test_a_connection_may_bring_more_at_a_time_than_the_loop_asks_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Spy(socket.socket):
        def recv(self, size: int, flags: int = 0) -> bytes:
            asked.append(size)
            return super().recv(size, flags)

    monkeypatch.setattr("socket.socket", Spy)
    data = DATA * 40  # more than aiohttp takes in before it is read
    source = source_at(serve({"m.bin": data}).url("m.bin"), size=len(data))
    assert read(source, 0, len(data))[0] == data
    assert max(asked) == sessions.RECEIVED


def test_connections_are_used_again(server: RangeServer) -> None:
    source = source_at(server.url("m.bin"))
    for _ in range(3):
        read(source, 0, 50_000)

    assert len(server.requests) == 3
    (pool,) = (s.client.connector for s in sessions._sessions.values() if source in s.users)
    assert isinstance(pool, aiohttp.TCPConnector)
    assert [len(idle) for idle in pool._conns.values()] == [1]


@attrs.frozen
class Survived:
    """Something that goes wrong on the way to 60,000 bytes, and what it costs."""

    id: str
    fault: str
    requests: int
    retries: int
    received: int = 60_000


@pytest.mark.parametrize(
    "case",
    [
        # The reply states all bytes and then the connection closes: go on from there.
        Survived("cut", "~cut:n=10000,times=3", 4, 3),
        Survived("cut-without-length", "~cut:n=10000,times=3,length=no", 4, 3),
        # Five in a row are no end when each brings something.
        Survived("many-cuts", "~cut:n=5000,times=9", 10, 9),
        # Nor does progress long ago count against a reply that brings nothing.
        Survived("cuts-then-nothing", "~cut:n=5000,times=6/~cut:n=0,after=6,times=2", 9, 8),
        Survived("nothing-at-first", "~cut:n=0,times=4", 5, 4),
        Survived("capped", "~cap:n=25000", 3, 2),
        Survived("stalled", "~stall:n=7000,times=1", 2, 1),
        Survived("busy", "~status:code=503,times=4", 5, 4),
        Survived("gateway", "~status:code=502,times=1", 2, 1),
        Survived("timeout", "~status:code=408,times=1", 2, 1),
        Survived("early", "~status:code=425,times=1", 2, 1),
        Survived("throttled", "~status:code=429,times=2,retry_after=0", 3, 2),
        Survived("throttled-date", "~status:code=429,times=1,retry_after=0,form=date", 2, 1),
        Survived("other-range", "~shift:by=-1,times=2", 3, 2),
        Survived("no-content-range", "~no-content-range:times=1", 2, 1),
        Survived("whole-as-206", "~whole-206:times=1", 2, 1),
        Survived("unsatisfiable-once", "~status:code=416,times=1", 2, 1),
        Survived("chunked", "~chunked", 1, 0),
        Survived("unknown-total", "~unknown-total", 1, 0),
        Survived("weak-etag", "~weak-etag", 1, 0),
        Survived("compresses-if-allowed", "~gzip:ranges=no", 1, 0),
        Survived("head-refused", "~no-head", 1, 0),
    ],
    ids=lambda case: case.id,
)
def test_survives(server: RangeServer, case: Survived) -> None:
    data, tally = read(source_at(server.url(f"{case.fault}/m.bin")), 20_000, 80_000)

    assert data == DATA[20_000:80_000]
    assert len(server.requests) == case.requests
    assert (tally.requests, tally.retries) == (case.requests, case.retries)
    # No byte is asked for again once it is here; the bodies of refusals aren't the file's.
    assert sum(c.received - c.wasted for c in [tally.of(SourceRef(server.url(f"{case.fault}/m.bin")))]) == case.received


def test_a_reset_connection_loses_nothing_that_arrived(server: RangeServer) -> None:
    data, tally = read(source_at(server.url("~reset:n=30000,times=2/m.bin")), 0, 90_000)

    assert data == DATA[:90_000]
    assert tally.transfer().received == 90_000


@attrs.frozen
class Refused:
    """A reply that can't be used, and what is said about it."""

    id: str
    fault: str
    error: type[Exception]
    says: str
    requests: int


@pytest.mark.parametrize(
    "case",
    [
        Refused("no-ranges", "~ignore-range", gs.RangeNotSupportedError, "200 with 100000 bytes", 1),
        Refused("compressed-whole", "~gzip:always=yes,ranges=no", gs.RangeNotSupportedError, "'gzip'", 1),
        Refused("multipart", "~multipart", gs.RangeNotSupportedError, "multipart", 1),
        Refused("other-range", "~shift:by=-1", gs.RangeNotSupportedError, "bytes 19999-79998/100000", 5),
        Refused("whole-as-206", "~whole-206", gs.RangeNotSupportedError, "bytes 0-99999/100000", 5),
        Refused("no-content-range", "~no-content-range", gs.RangeNotSupportedError, "no Content-Range", 5),
        Refused("length-disagrees", "~overlong:by=3", gs.RangeNotSupportedError, "60003 bytes", 5),
        Refused("too-much", "~overlong:by=3,length=no", gs.RangeNotSupportedError, "more than the bytes 20000-79999", 1),
        Refused("other-size", "~wrong-total:add=1", gs.SourceChangedError, "100001 bytes, but had 100000", 1),
        Refused("precondition", "~status:code=412", gs.SourceChangedError, "412", 1),
        Refused("unauthorized", "~status:code=401", gs.AuthError, "Authorization", 1),
        Refused("forbidden", "~status:code=403", gs.AuthError, "403", 1),
        Refused("missing", "~status:code=404", gs.SourceError, "no such file", 1),
        Refused("teapot", "~status:code=418", gs.SourceError, "418", 1),
        Refused("busy", "~status:code=503", gs.SourceError, r"503 \(5 times in a row\)", 5),
        Refused("unsatisfiable", "~status:code=416", gs.SourceError, "416", 2),
        Refused("nothing", "~cut:n=0", gs.SourceError, "0 of 60000 bytes", 5),
        Refused("silent", "~stall:n=0", gs.SourceError, "stalled", 5),
        Refused("long-wait", "~status:code=429,retry_after=3600", gs.SourceError, "wait 3600 s", 1),
        Refused("long-wait-ratelimit", "~status:code=429,retry_after=99,form=ratelimit", gs.SourceError, "wait 100 s", 1),
    ],
    ids=lambda case: case.id,
)
def test_refuses(server: RangeServer, case: Refused) -> None:
    options = attrs.evolve(FAST, read_timeout=0.1)
    with pytest.raises(case.error, match=case.says) as failure:
        read(source_at(server.url(f"{case.fault}/m.bin"), options=options), 20_000, 80_000, options=options)

    assert "/m.bin" in str(failure.value)
    assert len(server.requests) == case.requests


def test_a_reply_with_everything_is_not_drained(serve: Serve) -> None:
    big = bytes(50_000_000)
    server = serve({"m.bin": big})

    tally = Tally()
    with pytest.raises(gs.RangeNotSupportedError):
        run(fetch(source_at(server.url("~ignore-range/m.bin"), size=len(big)), 0, 100, FAST, tally))
    assert tally.transfer().received == 0
    # What the server got rid of is what fits into the buffers of a connection.
    assert server.bytes_sent < len(big)


def test_not_a_byte_behind_the_range_is_passed_on(server: RangeServer) -> None:
    source, tally = source_at(server.url("~overlong:by=3,length=no/m.bin")), Tally()
    passed = 0

    async def stream() -> None:
        nonlocal passed
        async for chunk in source.stream(20_000, 80_000, tally):
            passed += len(chunk)

    with pytest.raises(gs.RangeNotSupportedError, match="more than the bytes"):
        run(stream())
    transfer = tally.transfer()
    assert passed <= 60_000
    assert passed + transfer.wasted == transfer.received


def test_a_200_for_the_whole_file_is_the_whole_file(server: RangeServer) -> None:
    data, _ = read(source_at(server.url("~ignore-range/m.bin")), 0, len(DATA))

    assert data == DATA


def test_a_size_that_is_not_known_is_learned(server: RangeServer) -> None:
    source = source_at(server.url("m.bin"), size=None)
    data, _ = read(source, 99_990, 200_000)

    assert data == DATA[99_990:]
    assert source.ref.size == len(DATA)
    assert set(dict(source.ref.validators)) == {"etag"}


def test_a_file_without_a_known_size_ends_where_it_ends(server: RangeServer) -> None:
    source = source_at(server.url("~unknown-total/m.bin"), size=None)
    data, _ = read(source, 0, 200_000)

    assert data == DATA
    assert source.ref.size == len(DATA)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("~new-etag:after=1", "etag"),
        ("~swap:after=1", "etag"),
        ("~weak-etag/~swap:after=1", "etag"),
        ("~weak-etag:after=1/~swap:after=1", "etag"),
        ("~weak-etag:times=1/~swap:after=1", "etag"),
        ("~no-etag:after=1/~swap:after=1", "etag is not stated"),
        ("~no-etag:times=1/~no-etag:modified=no,after=1/~swap:after=1", "last-modified is not stated"),
        ("~no-etag/~swap:after=1", ""),
    ],
)
def test_a_file_that_was_replaced_is_noticed(server: RangeServer, fault: str, says: str) -> None:
    source = source_at(server.url(f"{fault}/m.bin"), size=None)
    read(source, 0, 10)
    if not says:  # nothing tells, and the contents are as long: that can't be noticed
        assert read(source, 0, 10)[0] != DATA[:10]
        return
    with pytest.raises(gs.SourceChangedError, match=says):
        read(source, 0, 10)


def test_the_validators_of_a_reference_hold_in_another_process_too(server: RangeServer) -> None:
    ref = SourceRef(server.url("m.bin"), len(DATA), {"etag": "of-another-file"})
    with pytest.raises(gs.SourceChangedError, match="of-another-file"):
        read(make_source(ref, Access(options=FAST)), 0, 10)


def test_a_slow_reply_is_asked_for_again_and_given_up_at_last(server: RangeServer) -> None:
    options = attrs.evolve(FAST, min_rate=100_000, rate_window=0.05, attempts=2)
    source = source_at(server.url("~drip:n=10,every=0.02/m.bin"), options=options)

    with pytest.raises(gs.SourceError, match="min_rate"):
        read(source, 0, 50_000, options=options)
    assert len(server.requests) == 2


def test_a_slow_reply_is_fine_when_the_user_says_so(server: RangeServer) -> None:
    options = attrs.evolve(FAST, min_rate=0, rate_window=0.05)
    data, _ = read(source_at(server.url("~drip:n=10,every=0.02/m.bin"), options=options), 0, 100, options=options)

    assert data == DATA[:100]
    assert len(server.requests) == 1


def test_events_tell_a_controller_what_happened(server: RangeServer) -> None:
    events: list[str] = []

    async def drain(path: str) -> None:
        source = source_at(server.url(path))
        async for _ in stream_span(source, 1000, 2000, FAST, Tally(), events.append):
            pass

    for fault in ("~status:code=429,times=1", "~cut:n=10,times=1", "~stall:n=10,times=1", "~shift:times=1"):
        run(drain(f"{fault}/m.bin"))

    assert events == ["throttled", "reset", "timeout", "refused"]


def test_a_pause_that_a_server_asks_for_holds_for_all_spans_of_its_origin(server: RangeServer) -> None:
    # One of two sources is told to wait; the other, which starts later, waits as well.
    first = source_at(server.url("~status:code=429,times=1,retry_after=1/m.bin"))
    second = source_at(server.url("m.bin"))

    async def both() -> list[bytes]:
        one = asyncio.create_task(fetch(first, 0, 10, FAST, Tally()))
        while not server.requests:  # noqa: ASYNC110 - the server is in other threads
            await asyncio.sleep(0.01)
        return [await fetch(second, 0, 10, FAST, Tally()), await one]

    assert run(both()) == [DATA[:10], DATA[:10]]
    assert server.requests[0].status == 429
    assert [request.status for request in server.requests[1:]] == [206, 206]


@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_that_is_asked_for_is_added_to_the_pause(status: int) -> None:
    origin, tally = f"http://{status}.example", Tally()
    before = time.monotonic()
    run(Persistence(origin, "m", FAST, tally).failed(Retry("busy", status=status, after=1.5)))
    assert retry._pauses[origin] >= before + 1.5
    assert tally.retries == 1


class Silent:
    """A source whose attempts end without a byte and without a word."""

    origin = "silent"

    def __init__(self) -> None:
        self.ref = SourceRef("silent://m", 100)
        self.attempts = 0

    async def stream(self, *_span: object) -> AsyncGenerator[bytes]:
        self.attempts += 1
        for chunk in list[bytes]():
            yield chunk

    async def confirm(self, tally: Tally) -> None: ...


def test_replies_without_a_byte_end_at_last() -> None:
    source = Silent()
    with pytest.raises(gs.RangeNotSupportedError, match="empty"):
        read(source, 0, 10)
    assert source.attempts == FAST.attempts


# Redirects


@pytest.fixture
def two(serve: Serve) -> tuple[RangeServer, RangeServer]:
    other = serve({"m.bin": DATA})
    return serve({"m.bin": DATA}, other=other), other


def with_headers(url: str, headers: dict[str, str]) -> Source:
    access = Access(url=url, storage_options={"headers": headers}, options=FAST)
    return make_source(SourceRef(url, len(DATA)), access)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("to", ["relative", "same"])
def test_a_redirect_within_the_origin_keeps_credentials(server: RangeServer, to: str, code: int) -> None:
    url = server.url(f"~redirect:to={to},code={code}/~auth:token=t0k/m.bin")
    source = with_headers(url, {"Authorization": "Bearer t0k"})

    assert read(source, 0, 10)[0] == DATA[:10]
    assert read(source, 10, 20)[0] == DATA[10:20]
    # The way is walked once.
    assert [request.status for request in server.requests] == [code, 206, 206]


def test_a_redirect_to_another_origin_drops_credentials_and_keeps_the_range(two: tuple[RangeServer, RangeServer]) -> None:
    server, other = two
    source = with_headers(
        server.url("~redirect:to=other/m.bin"), {"Authorization": "Bearer t0k", "Cookie": "id=t0k", "X-Key": "t0k"}
    )

    data, tally = read(source, 0, 10)
    assert data == DATA[:10]
    assert "t0k" in server.requests[0].headers["authorization"]
    assert "t0k" not in str(other.requests)
    assert (other.requests[0].range, tally.requests, tally.resolves) == ((0, 9), 1, 1)


def test_credentials_do_not_return_to_the_origin_once_they_were_dropped(serve: Serve) -> None:
    files: dict[str, bytes] = {"m.bin": DATA}
    first = RangeServer(files)
    second = RangeServer(files, other=first)
    # The first needs the second's address for a redirect, and the second the first's.
    first._other = second
    with first, second:
        source = with_headers(first.url("~redirect:to=other/~redirect:to=other/m.bin"), {"Authorization": "Bearer t0k"})
        assert read(source, 0, 10)[0] == DATA[:10]
        assert ["authorization" in request.headers for request in first.requests] == [True, False]
        assert ["authorization" in request.headers for request in second.requests] == [False]


def test_a_ring_of_redirects_ends(serve: Serve) -> None:
    files: dict[str, bytes] = {}
    server = serve(files)
    path = "~redirect/" * 12 + "m.bin"
    with pytest.raises(gs.SourceError, match="more than 10 times"):
        read(source_at(server.url(path)), 0, 10)
    assert len(server.requests) == 11


def test_a_signed_address_is_used_as_it_is_until_it_is_refused(two: tuple[RangeServer, RangeServer]) -> None:
    server, other = two
    source = source_at(server.url("~sign:uses=2/m.bin"))

    for start in range(0, 50, 10):
        assert read(source, start, start + 10)[0] == DATA[start : start + 10]
    # Good for two requests: the third is refused, and the way walked again.
    assert [request.status for request in server.requests] == [302, 302, 302]
    assert [request.status for request in other.requests] == [206, 206, 403, 206, 206, 403, 206]


@pytest.mark.parametrize("style", ["expires", "amz"])
@pytest.mark.parametrize(("seconds", "walks"), [(0, 2), (3600, 1)])
def test_a_signed_address_is_renewed_before_it_is_refused(
    two: tuple[RangeServer, RangeServer], style: str, seconds: int, walks: int
) -> None:
    server, other = two
    other.advance(-1000)  # so that it never refuses: whoever renews does so because of what the address says
    source = source_at(server.url(f"~sign:seconds={seconds},style={style}/m.bin"))
    read(source, 0, 10)
    read(source, 10, 20)

    assert [request.status for request in server.requests] == [302] * walks
    assert [request.status for request in other.requests] == [206, 206]


def test_many_spans_renew_an_expired_address_once(two: tuple[RangeServer, RangeServer]) -> None:
    server, other = two
    source = source_at(server.url("~sign/m.bin"))
    read(source, 0, 10)
    other.advance(7200)
    server.advance(7200)
    server.reset()

    async def many() -> list[bytes]:
        return await asyncio.gather(*(fetch(source, i, i + 100, FAST, Tally()) for i in range(0, 2000, 100)))

    assert b"".join(run(many())) == DATA[:2000]
    assert len(server.requests) == 1


def test_an_address_that_is_refused_for_good_ends_after_one_renewal(two: tuple[RangeServer, RangeServer]) -> None:
    server, other = two
    source = source_at(server.url("~redirect:to=other/~status:code=403/m.bin"))

    with pytest.raises(gs.AuthError, match="403"):
        read(source, 0, 10)
    assert (len(server.requests), len(other.requests)) == (2, 2)


def test_a_400_from_a_content_network_names_the_known_limit(two: tuple[RangeServer, RangeServer]) -> None:
    server, other = two
    with pytest.raises(gs.SourceError, match="very large single files"):
        read(source_at(server.url("~redirect:to=other/~status:code=400/m.bin")), 0, 10)
    assert len(other.requests) == 1


# Opening


@pytest.fixture(scope="module")
def model() -> bytes:
    return build_gguf(*synthetic(layers=2, experts=4))


def test_open_learns_size_and_etag_from_the_first_range(serve: Serve, model: bytes) -> None:
    server = serve({"m.gguf": model})
    view = gs.open(server.url("m.gguf"))

    (request,) = server.requests
    assert request.range == (0, (1 << 20) - 1)
    (shard,) = view.shards
    assert shard.source.size == len(model)
    assert [key for key, _ in shard.source.validators] == ["etag"]
    assert (view.transfer.header, view.transfer.received, view.transfer.requests) == (len(model), len(model), 1)


def test_open_refuses_a_server_without_ranges_at_once(serve: Serve, model: bytes) -> None:
    server = serve({"m.gguf": model})
    with pytest.raises(gs.RangeNotSupportedError, match="does not serve byte ranges"):
        gs.open(server.url("~ignore-range/m.gguf"))
    assert len(server.requests) == 1


def test_an_empty_file_is_no_gguf(serve: Serve) -> None:
    server = serve({"m.gguf": b""})
    with pytest.raises(gs.FormatError, match="empty"):
        gs.open(server.url("m.gguf"))


def test_a_header_that_ends_with_a_file_of_unknown_size(serve: Serve, model: bytes) -> None:
    server = serve({"m.gguf": model[:3000]})
    with pytest.raises(gs.FormatError, match=r"ends at byte 3000, inside its header"):
        gs.open(server.url("~unknown-total/m.gguf"), options=gs.TransferOptions(header_first=1000))


def test_a_file_of_unknown_size_can_be_read(serve: Serve, model: bytes) -> None:
    server = serve({"m.gguf": model})
    view = gs.open(server.url("~unknown-total/~cap:n=5000/m.gguf"))
    last = list(view.values())[-1]
    assert last.read() == model[-last.n_bytes :]  # which needs no padding behind it


def test_user_and_password_of_a_url_become_a_header_for_that_origin(two: tuple[RangeServer, RangeServer]) -> None:
    server, other = two
    url = server.url("~redirect:to=other/m.bin").replace("http://", "http://me:s3cret@")
    source = make_source(SourceRef(server.url("~redirect:to=other/m.bin"), len(DATA)), Access(url=url, options=FAST))
    read(source, 0, 10)

    assert server.requests[0].headers["authorization"] == "Basic bWU6czNjcmV0"  # base64 of me:s3cret
    assert "authorization" not in other.requests[0].headers


def test_user_and_password_are_no_part_of_what_is_kept(serve: Serve, model: bytes) -> None:
    server = serve({"m.gguf": model})
    view = gs.open(server.url("m.gguf").replace("http://", "http://me:s3cret@"))

    assert view.shards[0].source.url == server.url("m.gguf")
    assert "s3cret" not in repr(view) + str(view.transfer) + pickle.dumps(view).decode("latin-1")
    next(iter(view.values())).read()
    assert {request.headers["authorization"] for request in server.requests} == {"Basic bWU6czNjcmV0"}


def test_client_kwargs_reach_the_session_of_the_opened_origin_alone(two: tuple[RangeServer, RangeServer]) -> None:
    server, other = two
    access = Access(storage_options={"client_kwargs": {"headers": {"X-Mine": "1"}}}, options=FAST)
    read(make_source(SourceRef(server.url("~redirect:to=other/m.bin"), len(DATA)), access), 0, 10)

    assert server.requests[0].headers["x-mine"] == "1"
    assert "x-mine" not in other.requests[0].headers


def test_a_proxy_of_the_environment_is_used(serve: Serve, monkeypatch: pytest.MonkeyPatch, model: bytes) -> None:
    proxy = serve({})
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.url().replace("http://", "http://me:s3cret@"))
    with pytest.raises(gs.SourceError, match="404"):
        gs.open("http://example.invalid/m.gguf", options=FAST)
    (request,) = proxy.requests
    assert request.path == "http://example.invalid/m.gguf"
    assert request.headers["proxy-authorization"] == "Basic bWU6czNjcmV0"

    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    server = serve({"m.gguf": model})
    assert len(gs.open(server.url("m.gguf"))) > 0
    assert len(proxy.requests) == 1


def test_a_host_that_does_not_exist_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(gs.SourceError, match=r"example\.invalid"):
        gs.open("http://example.invalid/m.gguf", options=FAST)


def test_nobody_listens(serve: Serve) -> None:
    with RangeServer({}) as gone:
        url = gone.url("m.gguf")
    with pytest.raises(gs.SourceError, match=r"(?i)connect.*5 times in a row"):
        gs.open(url, options=FAST)


def test_a_folder_of_a_web_server_cannot_be_listed() -> None:
    with pytest.raises(gs.SourceError, match="name one of them"):
        gs.open("https://example.org/models/")


@pytest.mark.parametrize("argument", [{"revision": "main"}, {"endpoint": "http://localhost"}, {"token": "hf_abc"}])
def test_arguments_for_a_hub_are_refused_elsewhere(argument: dict[str, str]) -> None:
    with pytest.raises(gs.SourceError, match=next(iter(argument))):
        gs.open("https://example.org/m.gguf", **argument)  # type: ignore[arg-type]
