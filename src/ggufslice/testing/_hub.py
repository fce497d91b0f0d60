"""A stand-in for the Hugging Face Hub: repositories on one origin, signed links to the bytes on another."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, unquote

import attrs

from ggufslice.testing._faults import Visit, signed_link
from ggufslice.testing._http import Content, Entity, Reply, text_reply
from ggufslice.testing._server import RangeServer

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

_REPO = r"/(?P<repo>[^/]+/[^/]+)"
_RESOLVE = re.compile(_REPO + r"/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_API = re.compile(r"/api/models" + _REPO + r"(?:/(?P<call>tree|revision)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?")
_LFS_FROM = 10 << 20  # the Hub keeps larger files in its large file storage, whatever they are


@attrs.frozen
class _File:
    """A file of a commit: its content, git's id for it and, when it is a large one, its sha256."""

    content: Content
    size: int
    oid: str
    sha256: str | None


@attrs.frozen
class _Commit:
    sha: str
    files: Mapping[str, _File]


class HubServer(RangeServer):
    """A loopback Hugging Face Hub with a content network behind it.

    `url` gives the endpoint, and one with faults that act on every call: ``hub.url("~status:code=503,times=2")``.
    Files called ``*.gguf``, and large ones, are answered with a signed link to `cdn`, as the Hub does: X-Repo-Commit,
    X-Linked-Size, X-Linked-Etag (the sha256) and Location. Others come from the Hub itself.

    Parameters
    ----------
    repos
        Repositories (``org/name``) and the files of their first commit: a folder, or a mapping of paths to bytes or files.
    token
        What the Authorization header must carry; None is a public Hub.
    gated
        Repositories that refuse the owner of the token, too.
    link_seconds, link_uses, link_style
        Of the signed links: how long they are good, for how many requests (0: any number), and ``expires`` or ``amz``.
    cdn_faults
        Faults for the content network's paths: ``"~cut:n=1000,times=1"``.
    page_size
        Entries in one reply of the tree call; the next page is told in a Link header.

    Attributes
    ----------
    cdn
        The other origin, a `RangeServer` with its own log.

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> with HubServer({"org/model": {"Q4/model.gguf": b"GGUF and more"}}) as hub:
    ...     with urlopen(hub.url("org/model/resolve/main/Q4/model.gguf")) as reply:  # which follows the link
    ...         data = reply.read()
    ...     [request.status for request in hub.requests + hub.cdn.requests]
    [302, 200]
    """

    def __init__(
        self,
        repos: Mapping[str, str | os.PathLike[str] | Mapping[str, Content]],
        *,
        token: str | None = None,
        gated: Collection[str] = (),
        link_seconds: int = 3600,
        link_uses: int = 0,
        link_style: str = "expires",
        cdn_faults: str = "",
        page_size: int = 1000,
    ) -> None:
        self._blobs: dict[str, Content] = {}
        self.cdn = RangeServer(self._blobs)
        super().__init__({}, other=self.cdn)
        self._token = token
        self._gated = frozenset(gated)
        self._link_seconds, self._link_style = link_seconds, link_style
        signed = f"~signed:uses={link_uses}" if link_uses else "~signed"
        self._cdn_path = "/".join(["", *filter(None, [cdn_faults.strip("/"), signed]), "repos"])
        self._page_size = page_size
        self._commits: dict[str, list[_Commit]] = {}
        self._branches: dict[tuple[str, str], _Commit] = {}
        for repo, files in repos.items():
            self.push(repo, files)

    def __enter__(self) -> Self:
        """Start both origins."""
        self.cdn.__enter__()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        """Stop both origins."""
        super().__exit__(*exc)
        self.cdn.__exit__(*exc)

    def reset(self) -> None:
        """Forget the logs and counters of both origins."""
        super().reset()
        self.cdn.reset()

    def advance(self, seconds: float) -> None:
        """Put both origins' clocks forward."""
        super().advance(seconds)
        self.cdn.advance(seconds)

    def commit(self, repo: str, branch: str = "main") -> str:
        """Return the sha of a branch's newest commit.

        Raises
        ------
        KeyError
            There is no such repository or branch.
        """
        return self._branches[repo, branch].sha

    def push(self, repo: str, files: str | os.PathLike[str] | Mapping[str, Content], branch: str = "main") -> str:
        """Make a commit of these files and no others, move the branch to it, and return its sha.

        Earlier commits stay, under their shas.
        """
        if not isinstance(files, Mapping):
            folder = Path(files)
            files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
        known = {path: self._file(path, content) for path, content in sorted(files.items())}
        commits = self._commits.setdefault(repo, [])
        listing = [repo, branch, str(len(commits)), *(f"{path} {file.oid}" for path, file in known.items())]
        commits.append(_Commit(_sha1("\n".join(listing).encode()), known))
        self._branches[repo, branch] = commits[-1]
        return commits[-1].sha

    def _file(self, path: str, content: Content) -> _File:
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        if not path.endswith(".gguf") and size < _LFS_FROM:
            data = content.read_bytes() if isinstance(content, Path) else content
            return _File(content, size, _sha1(b"blob %d\0%b" % (size, data)), None)
        if isinstance(content, Path):
            with content.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            sha256 = hashlib.sha256(content).hexdigest()
        self._blobs[f"repos/{sha256}"] = content
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
        return _File(content, size, _sha1(b"blob %d\0%b" % (len(pointer), pointer)), sha256)

    def find(self, visit: Visit) -> Entity | Reply:
        """Answer a call of the Hub."""
        match = _RESOLVE.fullmatch(visit.rest) or _API.fullmatch(visit.rest)
        if match is None:
            return text_reply(404, f"the stand-in Hub has no {visit.rest}")
        parts = {name: unquote(part or "") for name, part in match.groupdict().items()}
        repo = parts["repo"]
        if (refusal := self._refuse(repo, visit)) is not None:
            return refusal
        revision = parts["revision"] or "main"
        commit = self._branches.get((repo, revision)) or next(
            (commit for commit in self._commits[repo] if commit.sha == revision), None
        )
        if commit is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if match.re is _RESOLVE:
            return self._resolve(commit, parts["path"], visit)
        if parts["call"] == "tree":
            return self._tree(commit, parts["path"].strip("/"), visit)
        return _json(
            {
                "id": repo,
                "modelId": repo,
                "sha": commit.sha,
                "private": self._token is not None,
                "gated": repo in self._gated,
                "siblings": [{"rfilename": path} for path in commit.files],
            }
        )

    def _refuse(self, repo: str, visit: Visit) -> Reply | None:
        """Check the token, and whether there is such a repository."""
        sent = visit.headers.get("authorization")
        if self._token is not None and sent != f"Bearer {self._token}":
            if repo in self._gated:
                return _error(401, "GatedRepo", f"Access to model {repo} is restricted. You must be authenticated.")
            return _error(401, "RepoNotFound", "Invalid username or password." if sent is None else "Invalid credentials")
        if repo not in self._commits:
            return _error(404 if sent else 401, "RepoNotFound", "Repository not found")
        if repo in self._gated:
            return _error(403, "GatedRepo", f"Access to model {repo} is restricted and you are not in the authorized list.")
        return None

    def _resolve(self, commit: _Commit, path: str, visit: Visit) -> Entity | Reply:
        file = commit.files.get(path)
        if file is None:
            return _error(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit.sha})
        if file.sha256 is None:
            entity = self.entity(f"{commit.sha}/{path}", file.content)
            return attrs.evolve(entity, etag=f'"{file.oid}"', modified=None, headers={"X-Repo-Commit": commit.sha})
        link = signed_link(f"{self._cdn_path}/{file.sha256}", visit.now, self._link_seconds, self._link_style)
        headers = {
            "X-Repo-Commit": commit.sha,
            "X-Linked-Size": str(file.size),
            "X-Linked-Etag": f'"{file.sha256}"',
            "Etag": f'"{file.sha256}"',
            "Accept-Ranges": "bytes",
            "Location": visit.origin("other") + link,
        }
        return text_reply(302, "Found. Redirecting to the content network", headers)

    def _tree(self, commit: _Commit, folder: str, visit: Visit) -> Reply:
        query = parse_qs(visit.target.partition("?")[2])
        recursive = query.get("recursive", ["false"])[0].lower() in {"true", "1"}
        entries: dict[str, dict[str, Any]] = {}
        for path, file in commit.files.items():
            for parent in reversed(PurePosixPath(path).parents[:-1]):
                oid = _sha1(f"{commit.sha} {parent}".encode())
                entries[str(parent)] = {"type": "directory", "oid": oid, "size": 0, "path": str(parent)}
            entries[path] = {"type": "file", "oid": file.oid, "size": file.size, "path": path}
            if file.sha256 is not None:
                entries[path]["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 134}
        prefix = f"{folder}/" if folder else ""
        inside = [path for path in sorted(entries) if path.startswith(prefix)]
        if not recursive:
            inside = [path for path in inside if "/" not in path[len(prefix) :]]
        if not inside and folder:
            return _error(404, "EntryNotFound", f"{folder} does not exist", {"X-Repo-Commit": commit.sha})
        start = int(query.get("cursor", ["0"])[0])
        reply = _json([entries[path] for path in inside[start : start + self._page_size]])
        if start + self._page_size >= len(inside):
            return reply
        following = f"{visit.here}{visit.rest}?recursive={str(recursive).lower()}&cursor={start + self._page_size}"
        return reply.with_headers(link=f'<{following}>; rel="next"')


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _json(value: object) -> Reply:
    return text_reply(200, json.dumps(value), {"Content-Type": "application/json; charset=utf-8"})


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    return text_reply(status, message, {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})})
