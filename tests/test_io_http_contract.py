"""The pure parts of reading over HTTP: what a reply must say, what a URL says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggufslice.errors import RangeNotSupportedError, SourceChangedError, SourceError
from ggufslice.io.address import basic_auth, escaped, follow, lifetime, origin_of, redacted, without_secrets
from ggufslice.io.reply import Part, check_reply, wait_asked
from ggufslice.io.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Mapping


def check(status: int, headers: Mapping[str, str], size: int | None = 100) -> Part:
    """Check a reply to a request for bytes 10 to 30."""
    return check_reply(status, headers, 10, 30, name="m", size=size)


@given(
    first=st.integers(0, 40),
    end=st.integers(0, 120),
    total=st.none() | st.integers(0, 120),
    length=st.none() | st.integers(0, 120),
)
def test_nothing_but_the_start_of_the_range_that_was_asked_for_is_accepted(
    first: int, end: int, total: int | None, length: int | None
) -> None:
    headers = {"Content-Range": f"bytes {first}-{end - 1}/{'*' if total is None else total}"} if end else {}
    if length is not None:
        headers["Content-Length"] = str(length)
    try:
        part = check(206, headers)
    except (Retry, SourceError):
        return
    assert first == 10
    assert 10 < end <= 30
    assert length in {None, end - 10}
    assert total in {None, 100}
    assert part == Part(end, 100)


@pytest.mark.parametrize(
    "stated",
    [
        "bytes 10-29",
        "bytes */100",
        "bytes 10-29/100, 40-49/100",
        "items 10-29/100",
        "10-29/100",
        "bytes -10-29/100",
        "bytes 10-29/1e2",
        "bytes 10-29/20",
        "bytes 10-30/100",  # a byte too many
        "bytes 10-99/100",
        "bytes 9-29/100",
        "bytes 10-9/100",
        "",
    ],
)
def test_a_range_that_makes_no_sense_is_worth_another_attempt(stated: str) -> None:
    with pytest.raises(Retry) as failure:
        check(206, {"Content-Range": stated}, size=None)
    assert failure.value.error is RangeNotSupportedError


def test_names_of_headers_units_and_codings_may_have_any_case() -> None:
    assert check(206, {"Content-Range": "Bytes 10-29/100", "Content-Encoding": "Identity"}) == Part(30, 100)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "aws-chunked"])
def test_encoded_bytes_are_other_bytes(encoding: str) -> None:
    with pytest.raises(RangeNotSupportedError, match=encoding):
        check(206, {"Content-Range": "bytes 10-29/100", "Content-Encoding": encoding})


def test_a_200_is_believed_for_the_whole_of_a_known_size_alone() -> None:
    whole = {"Content-Length": "100"}
    assert check_reply(200, whole, 0, 100, name="m", size=100) == Part(100, 100)
    for start, stop, size, headers in [(0, 99, 100, whole), (0, 100, None, whole), (0, 100, 100, {})]:
        with pytest.raises(RangeNotSupportedError):
            check_reply(200, headers, start, stop, name="m", size=size)


def test_another_total_is_another_file() -> None:
    with pytest.raises(SourceChangedError, match="99 bytes, but had 100"):
        check(206, {"Content-Range": "bytes 10-29/99"})


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 0 "}, 0.0),
        ({"Retry-After": "Tue, 01 Dec 2026 10:00:30 GMT", "Date": "Tue, 01 Dec 2026 10:00:00 GMT"}, 30.0),
        # Already over.
        ({"Retry-After": "Tue, 01 Dec 2026 10:00:00 GMT", "Date": "Tue, 01 Dec 2026 10:00:30 GMT"}, 0.0),
        ({"Retry-After": "Tue, 01 Dec 2020 10:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"RateLimit": '"resolvers";r=0;t=55'}, 56.0),
        ({"RateLimit": '"resolvers";r=3;t=55'}, None),
        ({"Retry-After": "7", "RateLimit": '"resolvers";r=0;t=55'}, 7.0),
    ],
)
def test_how_long_a_reply_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_asked(headers) == seconds


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("X-Amz-Date=20261201T095900Z&X-Amz-Expires=3600", 3540.0),
        ("x-amz-expires=60&x-amz-date=20261201T100000Z", 60.0),
        ("Expires=1796119210&Signature=abc", 10.0),
        ("Expires=soon", None),
        ("X-Amz-Expires=60", None),
        ("download=true", None),
        ("", None),
    ],
)
def test_how_long_a_signed_address_is_good(query: str, seconds: float | None) -> None:
    # The server's clock is the one that counts: Tue, 01 Dec 2026 10:00:00 GMT is second 1796119200 of the epoch.
    assert lifetime(f"https://cdn.example/f?{query}", {"Date": "Tue, 01 Dec 2026 10:00:00 GMT"}) == seconds


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/b?x=%2F", "https://a.example/b?x=%2F"),
        ("b", "https://a.example/dir/b"),
        ("//c.example/b", "https://c.example/b"),
        ("https://c.example:444/b%20c?Signature=a%2Bb~&x=1#part", "https://c.example:444/b%20c?Signature=a%2Bb~&x=1"),
        ("https://c.example/b c", "https://c.example/b%20c"),
    ],
)
def test_where_a_redirect_leads(location: str, target: str) -> None:
    assert follow("https://a.example/dir/m.gguf?old=1", location, "m") == target


@pytest.mark.parametrize(
    "location", ["http://a.example/b", "http://c.example/b", "ftp://a.example/b", "file:///etc/passwd", None, ""]
)
def test_where_a_redirect_must_not_lead(location: str | None) -> None:
    with pytest.raises(SourceError):
        follow("https://a.example/m.gguf", location, "m")


def test_a_refused_redirect_is_named_without_its_query() -> None:
    with pytest.raises(SourceError, match=r"http://c\.example/b,") as failure:
        follow("https://a.example/m.gguf", "http://me:pw@c.example/b?sig=s3cret", "m")
    assert "s3cret" not in str(failure.value)
    assert "pw" not in str(failure.value)


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin_of("https://A.example/x") == origin_of("https://a.example:443/y?z")
    different = [
        "https://a.example",
        "http://a.example",
        "https://a.example:444",
        "https://b.example",
        "https://a.example.org",
    ]
    assert len({origin_of(url) for url in different}) == len(different)
    with pytest.raises(SourceError):
        origin_of("https://a.example:port/")


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://me:pw@a.example/m.gguf?download=true#frag", "https://a.example/m.gguf?download=true"),
        ("https://a.example/m?token=t&v=2", "https://a.example/m?v=2"),
        (
            "https://b.s3.example/m?X-Amz-Algorithm=A&X-Amz-Credential=C&X-Amz-Date=D&X-Amz-Expires=60&X-Amz-Signature=S",
            "https://b.s3.example/m?X-Amz-Algorithm=A&X-Amz-Date=D&X-Amz-Expires=60",
        ),
        ("https://a.example/m?Policy=P&Signature=S&Key-Pair-Id=K", "https://a.example/m"),
        ("https://acc.blob.example/m?sv=1&sig=S", "https://acc.blob.example/m?sv=1"),
        ("https://a.example/m%20x?q=%2F", "https://a.example/m%20x?q=%2F"),
    ],
)
def test_what_of_a_url_may_be_kept(url: str, clean: str) -> None:
    assert without_secrets(url) == clean


def test_escapes_are_left_as_they_are() -> None:
    assert escaped("https://a.example/ü x%2fy/(1)~?a=[b]&c=%7e#d") == "https://a.example/%C3%BC%20x%2fy/(1)~?a=[b]&c=%7e"


def test_user_and_password_may_be_escaped() -> None:
    assert basic_auth("https://me:p%40ss@a.example/") == "Basic bWU6cEBzcw=="  # me:p@ss
    assert basic_auth("https://a.example/@x:y@z") is None


def test_what_a_server_says_is_repeated_without_what_was_sent_to_it() -> None:
    said = (
        "<Error>SignatureDoesNotMatch sig+n/ature of abc\nfor  t0ken <Signature>0123456789abcdef0123456789abcdef</Signature>"
    )
    text = redacted(said, "https://c.example/m?Signature=sig%2Bn%2Fature", {"Authorization": "Bearer t0ken"})

    assert text == "<Error>SignatureDoesNotMatch … of abc for … <Signature>…</Signature>"
    assert len(redacted("a b " * 1000, "https://c.example/m", {})) == 200
