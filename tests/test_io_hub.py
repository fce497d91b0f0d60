"""Models on a Hub: names, tokens, pinned commits, signed addresses, refusals."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import attrs
import pytest

import ggufslice as gs
from ggufslice.io.hub import HubPath, HubSource, _call, endpoint_of, token_of
from ggufslice.io.loop import run
from ggufslice.io.retry import fetch
from ggufslice.io.sources import Access, source_of
from ggufslice.io.tally import Tally
from ggufslice.spans import SourceRef, Span
from ggufslice.testing import HubServer, RangeServer, build_gguf, split_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FAST = gs.TransferOptions(backoff=0.0, max_wait=2.0)
TOKEN = "hf_s3cretS3cret"  # noqa: S105 - of a stand-in
METADATA, TENSORS = synthetic(layers=2, experts=4)
MODEL = build_gguf(METADATA, TENSORS)
SHARDS = {f"Q4/m-{i:05d}-of-00003.gguf": data for i, data in enumerate(split_gguf(METADATA, TENSORS, 3), 1)}


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the developer's own token out of the tests."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture
def start() -> Iterator[Callable[..., HubServer]]:
    """Return a function that starts a Hub."""
    hubs: list[HubServer] = []

    def call(files: dict[str, bytes] | None = None, **arguments: object) -> HubServer:
        hub = HubServer({"org/model": SHARDS if files is None else files}, **arguments)  # type: ignore[arg-type]
        hubs.append(hub.__enter__())
        return hub

    yield call
    for hub in hubs:
        hub.__exit__()


def opened(hub: HubServer, source: str = "hf://org/model/Q4", **arguments: object) -> gs.RemoteGGUF:
    return gs.open(source, endpoint=hub.url(), options=FAST, **arguments)  # type: ignore[arg-type]


def test_a_folder_costs_two_calls_and_one_resolve_and_one_range_a_shard(start: Callable[..., HubServer]) -> None:
    hub = start(token=TOKEN)
    view = opened(hub, token=TOKEN)

    commit = hub.commit("org/model")
    calls = [request.path for request in hub.requests[:2]]
    assert calls == ["/api/models/org/model/revision/main", f"/api/models/org/model/tree/{commit}/Q4?recursive=true"]
    assert sorted(request.path for request in hub.requests[2:]) == [f"/org/model/resolve/{commit}/{name}" for name in SHARDS]
    assert sorted(request.range or () for request in hub.cdn.requests) == [(0, (1 << 16) - 1)] * 2 + [(0, (1 << 20) - 1)]
    assert {request.method for request in hub.requests + hub.cdn.requests} == {"GET"}
    assert (view.transfer.requests, view.transfer.resolves) == (3, 5)
    assert list(view) == [tensor.name for tensor in TENSORS]


def test_later_reads_go_to_the_signed_address_alone(start: Callable[..., HubServer]) -> None:
    hub = start(token=TOKEN)
    view = opened(hub, token=TOKEN)
    hub.reset()

    for tensor in TENSORS:
        assert view[str(tensor.name)].read() == tensor.tobytes()
    assert hub.requests == ()
    assert len(hub.cdn.requests) == len(TENSORS)


def test_the_token_goes_to_the_hub_alone(start: Callable[..., HubServer]) -> None:
    hub = start(token=TOKEN)
    view = opened(hub, token=TOKEN)
    view[str(TENSORS[0].name)].read()

    assert {request.headers["authorization"] for request in hub.requests} == {f"Bearer {TOKEN}"}
    assert TOKEN not in str(hub.cdn.requests)
    assert not any({"cookie", "authorization"} & set(request.headers) for request in hub.cdn.requests)


def test_no_secret_is_kept_in_a_view_or_said(start: Callable[..., HubServer], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    hub = start(token=TOKEN)
    view = opened(hub, token=TOKEN)
    source = source_of(view.shards[0].source)
    said = [repr(view), repr(view.shards), repr(view.transfer), repr(source), repr(source_of), caplog.text]
    said.append(pickle.dumps(view).decode("latin-1"))

    hub.push("org/model", {name: data[:-8] for name, data in SHARDS.items()})
    for arguments in ({"token": "hf_wr0ngWr0ng"}, {"token": TOKEN, "source": "hf://org/model/nothing.gguf"}):
        with pytest.raises(gs.SourceError) as failure:
            opened(hub, **arguments)
        said += [str(failure.value), repr(failure.value), pickle.dumps(failure.value).decode("latin-1")]
    for text in said:
        assert not {word for word in (TOKEN, "hf_wr0ng", "Signature=", "nonce=", "Bearer") if word in text}


@pytest.mark.parametrize("source", ["hf://org/model/Q4/m-00002-of-00003.gguf", "hf://org/model@main/Q4", "hf://org/model"])
def test_any_shard_or_folder_opens_all(start: Callable[..., HubServer], source: str) -> None:
    view = opened(start(), source)

    assert [shard.source.url.rpartition("/")[2] for shard in view.shards] == [name.rpartition("/")[2] for name in SHARDS]
    assert "split.count" not in view.metadata


def test_the_addresses_of_pages_are_understood(start: Callable[..., HubServer]) -> None:
    hub = start()
    for path in (
        "tree/main/Q4",
        "blob/main/Q4/m-00001-of-00003.gguf",
        "resolve/main/Q4/m-00003-of-00003.gguf?download=true",
        "",
    ):
        view = opened(hub, hub.url(f"org/model/{path}"))
        assert view.shards[0].source.url == f"hf://org/model@{hub.commit('org/model')}/Q4/m-00001-of-00003.gguf"


def test_a_branch_is_pinned_when_it_is_opened(start: Callable[..., HubServer]) -> None:
    hub = start()
    before = hub.commit("org/model")
    view = opened(hub)
    hub.push("org/model", {name: bytes(len(data)) for name, data in SHARDS.items()})

    ref = view.shards[0].source
    assert ref.url == f"hf://org/model@{before}/Q4/m-00001-of-00003.gguf"
    assert dict(ref.validators).keys() == {"commit", "x-linked-etag"}
    assert dict(ref.validators)["commit"] == before
    view.close()
    tensor = TENSORS[0]
    assert view[str(tensor.name)].read() == tensor.tobytes()


def test_a_commit_needs_no_call(start: Callable[..., HubServer]) -> None:
    hub = start()
    commit = hub.commit("org/model")
    opened(hub, "hf://org/model/Q4/m-00001-of-00003.gguf", revision=commit)
    assert not [request for request in hub.requests if request.path.startswith("/api")]


def test_revisions(start: Callable[..., HubServer]) -> None:
    hub = start()
    hub.push("org/model", {"m.gguf": MODEL}, branch="refs/pr/1")
    for source, revision in [
        ("hf://org/model@refs/pr/1/m.gguf", None),
        ("hf://org/model@refs%2Fpr%2F1", None),
        ("hf://org/model/m.gguf", "refs/pr/1"),
        ("hf://org/model@refs/pr/1/m.gguf", "refs/pr/1"),
    ]:
        assert len(opened(hub, source, revision=revision)) == len(TENSORS)
    with pytest.raises(gs.SourceError, match=r"names the revision 'main', but revision= is 'refs/pr/1'"):
        opened(hub, "hf://org/model@main/Q4", revision="refs/pr/1")
    with pytest.raises(gs.SourceError, match="RevisionNotFound"):
        opened(hub, revision="nothing")


def test_a_file_that_the_hub_keeps_itself(start: Callable[..., HubServer]) -> None:
    # Small files that aren't in the large file storage come from the Hub, which wants the token.
    hub = start({"m-00001-of-00001": MODEL}, token=TOKEN)
    view = opened(hub, "hf://org/model/m-00001-of-00001", token=TOKEN)

    assert view[str(TENSORS[0].name)].read() == TENSORS[0].tobytes()
    assert dict(view.shards[0].source.validators).keys() == {"commit", "etag"}
    assert hub.cdn.requests == ()


def test_several_models_in_a_folder_are_listed(start: Callable[..., HubServer]) -> None:
    hub = start({**SHARDS, "Q8/m.gguf": MODEL, "README.md": b"about"}, page_size=2)
    with pytest.raises(gs.FormatError, match="2 models") as failure:
        opened(hub, "hf://org/model")
    assert "Q4/m-00001-of-00003.gguf (and 2 more shards), Q8/m.gguf" in str(failure.value)
    # The list comes in pages, all of which were read.
    assert len([request for request in hub.requests if "/tree/" in request.path]) > 2


def test_a_missing_shard_is_named(start: Callable[..., HubServer]) -> None:
    names = list(SHARDS)
    hub = start({name: SHARDS[name] for name in (names[0], names[2])})
    with pytest.raises(gs.SourceError, match=r"m-00002-of-00003\.gguf: there is no such file"):
        opened(hub, f"hf://org/model/{names[0]}")
    with pytest.raises(gs.FormatError, match="number 2 is missing"):
        opened(hub)


@attrs.frozen
class Refusal:
    id: str
    hub: dict[str, object]
    token: str | bool | None
    error: type[Exception]
    says: str
    source: str = "hf://org/model/Q4"


@pytest.mark.parametrize(
    "case",
    [
        Refusal("private", {"token": TOKEN}, None, gs.AuthError, "pass token="),
        Refusal("wrong-token", {"token": TOKEN}, "hf_0ther", gs.AuthError, "401 RepoNotFound"),
        Refusal("gated", {"token": TOKEN, "gated": ["org/model"]}, TOKEN, gs.AuthError, "ask"),
        Refusal("gated-anonymous", {"token": TOKEN, "gated": ["org/model"]}, False, gs.AuthError, "GatedRepo"),
        Refusal("no-repo", {}, None, gs.AuthError, "no such repository", "hf://org/other/Q4"),
        Refusal("no-repo-for-token", {}, TOKEN, gs.SourceError, "no such repository", "hf://org/other/Q4"),
        Refusal("no-folder", {}, None, gs.SourceError, "EntryNotFound", "hf://org/model/Q5"),
        Refusal("no-file", {}, None, gs.SourceError, "EntryNotFound", "hf://org/model/Q4/other.gguf"),
        Refusal("no-model", {}, None, gs.SourceError, "hf://org/repo", "hf://model"),
        Refusal("dataset", {}, None, gs.SourceError, "hf://org/repo", "hf://datasets/org/model/m.gguf"),
        Refusal("demanded", {}, True, gs.AuthError, "token=True"),
    ],
    ids=lambda case: case.id,
)
def test_refusals_are_final_and_say_what_to_do(start: Callable[..., HubServer], case: Refusal) -> None:
    hub = start(**case.hub)
    with pytest.raises(case.error, match=case.says):
        opened(hub, case.source, token=case.token)
    assert len([request for request in hub.requests if request.status >= 400]) <= 1
    assert hub.cdn.requests == ()


def test_a_throttled_hub_is_waited_for(start: Callable[..., HubServer]) -> None:
    hub = start()
    endpoint = hub.url("~status:code=429,times=1,retry_after=0,form=ratelimit")
    view = gs.open("hf://org/model/Q4/m-00001-of-00003.gguf", endpoint=endpoint, options=FAST)

    assert len(view) == len(TENSORS)
    assert view.transfer.retries >= 1


def test_a_hub_behind_an_endpoint_that_is_none() -> None:
    with RangeServer({}) as server, pytest.raises(gs.SourceError, match="404"):
        gs.open("hf://org/model/Q4", endpoint=server.url(), options=FAST)
    with (
        RangeServer({"api/models/org/model/revision/main": b"<html>"}) as server,
        pytest.raises(gs.SourceError, match="JSON"),
    ):
        gs.open("hf://org/model/Q4", endpoint=server.url(), options=FAST)


def test_a_repository_that_was_renamed(start: Callable[..., HubServer]) -> None:
    hub = start(token=TOKEN)
    view = gs.open("hf://org/model/Q4", endpoint=hub.url("~redirect:to=relative"), token=TOKEN, options=FAST)

    assert view[str(TENSORS[0].name)].read() == TENSORS[0].tobytes()
    assert {request.headers["authorization"] for request in hub.requests} == {f"Bearer {TOKEN}"}


def test_an_api_that_leads_elsewhere_is_not_followed(start: Callable[..., HubServer]) -> None:
    hub = start(token=TOKEN)
    with pytest.raises(gs.SourceError, match="another origin"):
        gs.open("hf://org/model/Q4", endpoint=hub.url("~redirect:to=other"), token=TOKEN, options=FAST)
    assert hub.cdn.requests == ()


# Signed addresses


def spans(view: gs.GGUF) -> list[Span]:
    return [piece for tensor in view.values() for piece in tensor.pieces if isinstance(piece, Span)]


async def read_all(view: gs.GGUF) -> list[bytes]:
    calls = (fetch(source_of(span.source), span.start, span.stop, FAST, Tally()) for span in spans(view))
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("style", ["expires", "amz"])
def test_an_expired_address_is_renewed_once_for_all_that_use_it(start: Callable[..., HubServer], style: str) -> None:
    hub = start(link_style=style)
    view = opened(hub)
    hub.advance(7200)
    hub.reset()

    assert run(read_all(view)) == [tensor.tobytes() for tensor in TENSORS]
    assert len(hub.requests) == len(SHARDS)
    assert {request.status for request in hub.requests} == {302}


def test_an_address_that_is_good_for_a_few_uses(start: Callable[..., HubServer]) -> None:
    hub = start({"m.gguf": MODEL}, link_uses=3)
    view = opened(hub, "hf://org/model/m.gguf")

    for tensor in TENSORS:
        assert view[str(tensor.name)].read() == tensor.tobytes()
    # Every third use a new one.
    n_uses = 1 + len(TENSORS)
    assert len([request for request in hub.requests if request.status == 302]) == -(-n_uses // 3)


def test_a_content_network_that_refuses_all_ends(start: Callable[..., HubServer]) -> None:
    hub = start({"m.gguf": MODEL}, cdn_faults="~status:code=403")
    with pytest.raises(gs.AuthError, match="a new one did too"):
        opened(hub, "hf://org/model/m.gguf")
    assert len(hub.cdn.requests) == 2


def test_a_renewed_address_must_be_of_the_same_file(start: Callable[..., HubServer]) -> None:
    hub = start({"m.gguf": MODEL})
    view = opened(hub, "hf://org/model/m.gguf")
    # A Hub that gives another file for the same commit.
    commit = hub._branches["org/model", "main"]
    changed = {"m.gguf": hub._file("m.gguf", MODEL[:-1] + b"\xff")}
    index = hub._commits["org/model"].index(commit)
    hub._commits["org/model"][index] = attrs.evolve(commit, files=changed)
    hub._branches["org/model", "main"] = hub._commits["org/model"][index]
    hub.advance(7200)

    with pytest.raises(gs.SourceChangedError, match="x-linked-etag"):
        view[str(TENSORS[0].name)].read()


def test_the_content_network_may_have_an_etag_of_its_own(start: Callable[..., HubServer]) -> None:
    hub = start({"m.gguf": MODEL}, cdn_faults="~new-etag:after=1,times=1")
    view = opened(hub, "hf://org/model/m.gguf")
    assert view[str(TENSORS[0].name)].read() == TENSORS[0].tobytes()
    assert view[str(TENSORS[1].name)].read() == TENSORS[1].tobytes()


def test_a_pickled_view_reads_with_the_token_of_the_environment(
    start: Callable[..., HubServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start(token=TOKEN)
    view = pickle.loads(pickle.dumps(opened(hub, token=TOKEN)))  # noqa: S301 - our own
    # What another process would have.
    monkeypatch.setattr("ggufslice.io.sources._granted", {})
    monkeypatch.setattr("ggufslice.io.sources._sources", {})
    monkeypatch.setenv("HF_ENDPOINT", hub.url())
    with pytest.raises(gs.AuthError):
        view[str(TENSORS[0].name)].read()

    monkeypatch.setattr("ggufslice.io.sources._sources", {})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert view[str(TENSORS[0].name)].read() == TENSORS[0].tobytes()


def test_a_list_that_goes_on_elsewhere_is_not_followed() -> None:
    """The next page is asked for with the token."""
    access = Access(token=TOKEN, endpoint="http://127.0.0.1:1", options=FAST)
    with pytest.raises(gs.SourceError, match=r"goes on at another origin \(http://127.0.0.1:2\)"):
        run(_call("http://127.0.0.1:2/api/models/org/model/tree/main", HubPath("org/model"), access, Tally()))


def test_another_size_at_a_later_resolve_is_another_file() -> None:
    source = HubSource.of(SourceRef("hf://org/model@main/m.gguf", 1000), Access(token=False, options=FAST))
    source._resolved({"X-Linked-Size": "1000"})
    with pytest.raises(gs.SourceChangedError, match="has 1001 bytes, but had 1000"):
        source._resolved({"X-Linked-Size": "1001"})


def test_a_mirror_that_passes_on_redirects_of_its_original_is_asked_itself() -> None:
    ref = SourceRef(f"hf://org/model@{'0' * 40}/m.gguf")
    source = HubSource.of(ref, Access(endpoint="https://mirror.example"))
    assert source._location("https://huggingface.co/other/model/x?y=%2F") == "https://mirror.example/other/model/x?y=%2F"
    for location in ("https://cdn.example/x", "/x", "https://huggingface.co.example/x", None):
        assert source._location(location) == location


# Names, tokens, endpoints


def test_urls() -> None:
    assert HubPath.parse("hf://org/model") == HubPath("org/model")
    assert HubPath.parse("hf://org/model/a/b.gguf") == HubPath("org/model", None, "a/b.gguf")
    assert HubPath.parse("hf://org/model@v1.0/a@b.gguf") == HubPath("org/model", "v1.0", "a@b.gguf")
    assert HubPath.parse("hf://org/model@refs/pr/12/a") == HubPath("org/model", "refs/pr/12", "a")
    assert HubPath("org/model", "refs/pr/12", "a b").url == "hf://org/model@refs%2Fpr%2F12/a b"
    for path in (HubPath("org/model"), HubPath("o/m", "x/y", "a b/c")):
        assert HubPath.parse(path.url) == path


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://huggingface.co/org/model/blob/main/a%20b.gguf", HubPath("org/model", "main", "a b.gguf")),
        ("https://huggingface.co/org/model", HubPath("org/model")),
        ("https://huggingface.co/org/model/tree/refs%2Fpr%2F1/Q4", HubPath("org/model", "refs/pr/1", "Q4")),
        ("https://huggingface.co/datasets/org/model/resolve/main/a.gguf", None),
        ("https://huggingface.co/org", None),
        # Another host's path is its own affair.
        ("https://attacker.example/org/model/resolve/main/a.gguf", None),
        ("https://huggingface.co.attacker.example/org/model/resolve/main/a.gguf", None),
        ("http://huggingface.co/org/model/resolve/main/a.gguf", None),
    ],
)
def test_addresses_of_pages(url: str, expected: HubPath | None) -> None:
    assert HubPath.of_page(url, "https://huggingface.co") == expected


def test_where_a_token_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert token_of(Access()) is None
    home = tmp_path / "hf"
    home.mkdir()
    (home / "token").write_text("hf_of_file\n")
    assert token_of(Access()) == "hf_of_file"
    monkeypatch.setenv("HF_TOKEN", " hf_of_env ")
    assert token_of(Access()) == "hf_of_env"
    assert token_of(Access(token=True)) == "hf_of_env"
    assert token_of(Access(token=False)) is None
    assert token_of(Access(token="hf_given")) == "hf_given"  # noqa: S106 - no password
    assert token_of(Access(storage_options={"token": "hf_option"})) == "hf_option"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert token_of(Access()) is None
    assert token_of(Access(token=True)) == "hf_of_env"


def test_where_an_endpoint_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint_of(Access()) == "https://huggingface.co"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert endpoint_of(Access()) == "https://mirror.example"
    assert endpoint_of(Access(endpoint="https://mine.example")) == "https://mine.example"
