"""The stand-in Hub: redirects, trees, tokens, and a branch that moves."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from ggufslice.testing import HubServer
from rawhttp import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = b"GGUF" + bytes(1000)
FILES: dict[str, bytes | Path] = {
    "README.md": b"# Model",
    "Q4/m-00001-of-00002.gguf": MODEL,
    "Q4/m-00002-of-00002.gguf": MODEL[::-1],
    "Q4/deep/x.txt": b"x",
}
TOKEN = "good"  # noqa: S105 - of a server that lives for a test
AT = "org/model/resolve/main/Q4/m-00001-of-00002.gguf"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer({"org/model": FILES}) as server:
        yield server


def tree(url: str) -> Any:
    got = fetch(url)
    assert got.status == 200
    return json.loads(got.body)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_model_is_a_signed_link_to_the_other_origin(hub: HubServer, method: str) -> None:
    got = fetch(hub.url(AT), method=method)
    sha256 = hashlib.sha256(MODEL).hexdigest()

    assert got.status == 302
    assert got.headers["x-repo-commit"] == hub.commit("org/model")
    assert got.headers["x-linked-size"] == str(len(MODEL))
    assert got.headers["x-linked-etag"] == f'"{sha256}"'
    assert got.headers["location"].startswith(hub.cdn.url())
    part = fetch(got.headers["location"], "0-3")
    assert (part.status, part.body) == (206, b"GGUF")
    assert sha256 not in part.headers["etag"]
    assert [request.status for request in hub.requests] == [302]
    assert [(request.range, request.status) for request in hub.cdn.requests] == [((0, 3), 206)]
    hub.reset()
    assert hub.requests == hub.cdn.requests == ()


def test_small_files_come_from_the_hub(hub: HubServer) -> None:
    got = fetch(hub.url("org/model/resolve/main/README.md"))

    assert (got.status, got.body) == (200, b"# Model")
    assert got.headers["x-repo-commit"] == hub.commit("org/model")
    # What `git hash-object` says of the file.
    assert got.headers["etag"] == '"ace46416279e601fc30ce98cb975978d5194c0db"'
    assert hub.cdn.requests == ()


def test_links_expire_and_are_used_up() -> None:
    with HubServer({"org/model": FILES}, link_uses=1, link_style="amz", link_seconds=60, cdn_faults="~cap:n=2") as hub:
        first, second = (fetch(hub.url(AT)).headers["location"] for _ in range(2))
        assert fetch(first, "0-3").body == MODEL[:2]
        assert fetch(first, "0-3").status == 403
        hub.advance(61)
        assert fetch(second, "0-3").status == 403
        assert fetch(fetch(hub.url(AT)).headers["location"], "0-3").status == 206


def test_trees(hub: HubServer) -> None:
    top = tree(hub.url("api/models/org/model/tree/main"))
    folder = tree(hub.url("api/models/org/model/tree/main/Q4?recursive=false"))
    deep = tree(hub.url(f"api/models/org/model/tree/{hub.commit('org/model')}/Q4?recursive=True&expand=false"))

    assert [(entry["type"], entry["path"]) for entry in top] == [("directory", "Q4"), ("file", "README.md")]
    assert [entry["path"] for entry in folder] == ["Q4/deep", "Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf"]
    assert [entry["path"] for entry in deep] == [
        "Q4/deep", "Q4/deep/x.txt", "Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf",
    ]  # fmt: skip
    assert deep[2]["size"] == deep[2]["lfs"]["size"] == len(MODEL)
    assert deep[2]["lfs"]["oid"] == hashlib.sha256(MODEL).hexdigest()
    assert "lfs" not in deep[1]
    missing = fetch(hub.url("api/models/org/model/tree/main/Q5"))
    assert (missing.status, missing.headers["x-error-code"]) == (404, "EntryNotFound")


def test_long_trees_come_in_pages() -> None:
    with HubServer({"org/model": FILES}, page_size=2) as hub:
        url, found = hub.url("api/models/org/model/tree/main?recursive=true"), []
        while url:
            got = fetch(url)
            found += [entry["path"] for entry in json.loads(got.body)]
            link = got.headers.get("link", "")
            assert not link or link.endswith('; rel="next"')
            url = link.partition("<")[2].partition(">")[0]

    assert found == sorted([*FILES, "Q4", "Q4/deep"])
    assert len(hub.requests) == 3


def test_main_moves_and_old_commits_stay(hub: HubServer) -> None:
    old = hub.commit("org/model")
    new = hub.push("org/model", {"Q4/m-00001-of-00002.gguf": b"GGUFnew"})

    assert json.loads(fetch(hub.url("api/models/org/model/revision/main")).body)["sha"] == new != old
    info = json.loads(fetch(hub.url(f"api/models/org/model/revision/{old}")).body)
    assert (info["sha"], [item["rfilename"] for item in info["siblings"]]) == (old, sorted(FILES))
    assert fetch(hub.url(AT)).headers["x-linked-size"] == "7"
    assert fetch(hub.url(AT.replace("main", old))).headers["x-linked-size"] == str(len(MODEL))
    hub.push("org/model", FILES, branch="dev")
    assert fetch(hub.url(AT.replace("main", "dev"))).headers["x-linked-size"] == str(len(MODEL))
    assert hub.commit("org/model") == new


def test_what_is_not_there(hub: HubServer) -> None:
    for path, status, code in [
        (AT.replace("main", "none"), 404, "RevisionNotFound"),
        (AT.replace("00001", "00003"), 404, "EntryNotFound"),
        (AT.replace("model", "none"), 401, "RepoNotFound"),
    ]:
        got = fetch(hub.url(path))
        assert (got.status, got.headers["x-error-code"]) == (status, code)
    assert fetch(hub.url("whoami")).status == 404


def test_tokens_and_gates() -> None:
    with HubServer({"org/model": FILES, "org/gated": FILES}, token=TOKEN, gated=["org/gated"]) as hub:
        gated = AT.replace("org/model", "org/gated")
        for path, token, status, code in [
            (AT, None, 401, "RepoNotFound"),
            (AT, "bad", 401, "RepoNotFound"),
            (AT, TOKEN, 302, None),
            (gated, None, 401, "GatedRepo"),
            (gated, TOKEN, 403, "GatedRepo"),
            (AT.replace("model", "none"), TOKEN, 404, "RepoNotFound"),
        ]:
            got = fetch(hub.url(path), headers={"Authorization": f"Bearer {token}"} if token else None)
            assert (got.status, got.headers.get("x-error-code")) == (status, code)
        link = fetch(hub.url(AT), headers={"Authorization": f"Bearer {TOKEN}"}).headers["location"]
        assert fetch(link, "0-3", headers={"Authorization": f"Bearer {TOKEN}"}).status == 400


def test_faults_in_the_endpoint(hub: HubServer, tmp_path: Path) -> None:
    url = hub.url("~no-head/~status:code=503,times=1/" + AT)

    assert [fetch(url, method="HEAD").status, fetch(url).status, fetch(url).status] == [405, 503, 302]
    (tmp_path / "Q4").mkdir()
    (tmp_path / "Q4" / "m.gguf").write_bytes(MODEL)
    hub.push("org/folder", tmp_path)
    assert fetch(fetch(hub.url("org/folder/resolve/main/Q4/m.gguf")).headers["location"]).body == MODEL
