"""Models on a Hugging Face Hub: ``hf://org/repo[@revision]/path``.

A revision is pinned to its commit when a model is opened. Each file is then entered at ``/resolve/``, once, with the
token; the signed address that it redirects to is read without. What a Hub says in that redirect identifies the file: the
commit, and in ``X-Linked-Etag`` and ``X-Linked-Size`` its sha256 and size. The content network's own ETag is another one
and is never looked at.
"""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, unquote, urljoin, urlsplit

import aiohttp
import attrs

from ggufslice.errors import AuthError, SourceChangedError, SourceError, redact_url
from ggufslice.io.address import follow, origin_of, redacted
from ggufslice.io.http import REDIRECTS, Entry, HttpSource, send
from ggufslice.io.reply import RETRIED, wait_asked
from ggufslice.io.retry import Persistence, Retry, persist

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggufslice.io.sources import Access
    from ggufslice.io.tally import Tally
    from ggufslice.spans import SourceRef

__all__ = ["HubPath", "HubSource", "list_files", "pin"]

_DEFAULT: Final = "https://huggingface.co"
_SHA: Final = re.compile(r"[0-9a-f]{40}")
_HF: Final = re.compile(
    r"hf://(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(?P<path>.*))?", re.DOTALL
)
_WEB: Final = re.compile(
    r"/(?P<repo>[^/]+/[^/]+)"
    r"(?:/(?:resolve|blob|raw|tree)/(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+)(?:/(?P<path>.*))?)?/?"
)
_LARGEST_ANSWER: Final = 64 << 20


@attrs.frozen
class HubPath:
    """A file or folder of a repository.

    Parameters
    ----------
    repo
        ``org/name``.
    revision
        A branch, tag, ``refs/pr/N`` or commit; None is the default branch.
    path
        In the repository; empty for its root.
    """

    repo: str
    revision: str | None = None
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> HubPath:
        """Take an ``hf://`` URL apart.

        Raises
        ------
        SourceError
            It isn't one of a model repository.
        """
        match = _HF.fullmatch(url)
        if match is None or match["repo"].partition("/")[0] in {"datasets", "spaces"}:
            raise SourceError(
                f"{url!r} is not of the form hf://org/repo[@revision]/path, where org/repo is a model repository"
            )
        revision = match["revision"]
        return cls(match["repo"], None if revision is None else unquote(revision), (match["path"] or "").strip("/"))

    @classmethod
    def of_page(cls, url: str, endpoint: str) -> HubPath | None:
        """Take the URL of a page or file of a Hub apart; None when it is of something else."""
        if origin_of(url) != origin_of(endpoint):
            return None
        match = _WEB.fullmatch(urlsplit(url).path)
        if match is None or match["repo"].partition("/")[0] in {"api", "datasets", "spaces"}:
            return None
        parts = {name: None if part is None else unquote(part) for name, part in match.groupdict().items()}
        return cls(str(parts["repo"]), parts["revision"], (parts["path"] or "").strip("/"))

    @property
    def url(self) -> str:
        """The ``hf://`` URL."""
        revision = "" if self.revision is None else f"@{quote(self.revision, safe='')}"
        return f"hf://{self.repo}{revision}/{self.path}".rstrip("/")


def endpoint_of(access: Access) -> str:
    """Return the Hub's address: as given, or ``HF_ENDPOINT``, or huggingface.co."""
    given = access.endpoint or access.storage_options.get("endpoint") or os.environ.get("HF_ENDPOINT") or _DEFAULT
    return str(given).rstrip("/")


def token_of(access: Access) -> str | None:
    """Return the token to send: as given, or the environment's (``HF_TOKEN``, or the file of ``hf auth login``).

    Raises
    ------
    AuthError
        One was demanded (``token=True``), and there is none.
    """
    token = access.storage_options.get("token") if access.token is None else access.token
    if isinstance(token, str):
        return token
    if token is False:
        return None
    disabled = os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in {"1", "ON", "YES", "TRUE"}
    found = None if token is None and disabled else _stored_token()
    if token and found is None:
        raise AuthError("token=True, but there is no token: set HF_TOKEN, or log in with `hf auth login`")
    return found


def _stored_token() -> str | None:
    environ = os.environ
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    if not token:
        cache = Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        home = Path(environ.get("HF_HOME") or cache / "huggingface").expanduser()
        file = Path(environ.get("HF_TOKEN_PATH") or home / "token").expanduser()
        try:
            token = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    return token.strip() or None


def _entry(url: str, access: Access) -> Entry:
    token = token_of(access)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    options = {key: value for key, value in access.storage_options.items() if key not in {"token", "endpoint"}}
    return Entry(url=url, headers={**(options.get("headers") or {}), **headers}, storage_options=options)


@attrs.define(eq=False)
class HubSource(HttpSource):
    """A file of a repository."""

    @classmethod
    def of(cls, ref: SourceRef, access: Access) -> Self:
        """Make the source for a reference, whose URL names a commit."""
        place = HubPath.parse(ref.url)
        revision = quote(place.revision or "main", safe="")
        url = f"{endpoint_of(access)}/{place.repo}/resolve/{revision}/{quote(place.path)}"
        if place.revision and not ref.validators:
            ref = attrs.evolve(ref, validators={"commit": place.revision})
        return cls(ref, _entry(url, access), access.options)

    def _location(self, stated: str | None) -> str | None:
        # Mirrors pass on redirects to the Hub that they mirror, where our token isn't meant to go.
        if stated is not None and stated.startswith(f"{_DEFAULT}/"):
            return urljoin(self._entry.url, stated.removeprefix(_DEFAULT))
        return stated

    def _resolved(self, headers: Mapping[str, str]) -> None:
        size = headers.get("X-Linked-Size", "")
        if size.isdecimal():
            if self.ref.size not in {None, int(size)}:
                raise SourceChangedError(
                    f"{self.ref.display} has {size} bytes, but had {self.ref.size} when it was opened: open it again"
                )
            self.ref = attrs.evolve(self.ref, size=int(size))
        self._learn(headers, "x-linked-etag", headers.get("X-Linked-Etag"))

    def _identify(self, headers: Mapping[str, str], total: int | None, *, entry: bool) -> None:
        if self.ref.size is None:
            self.ref = attrs.evolve(self.ref, size=total)
        if entry:
            self._learn(headers, "etag", headers.get("ETag"))

    def _learn(self, headers: Mapping[str, str], name: str, etag: str | None) -> None:
        """Take over what the Hub says about the file, after comparing it with what is known."""
        found = {"commit": headers.get("X-Repo-Commit"), name: etag and etag.removeprefix("W/").strip('"')}
        stated = {key: value for key, value in found.items() if value}
        self._compare(stated)
        self.ref = attrs.evolve(self.ref, validators={**stated, **dict(self.ref.validators)})

    def _refused(self, status: int, headers: Mapping[str, str], text: str) -> SourceError:
        return refusal(self.ref.display, status, headers, text)


def refusal(name: str, status: int, headers: Mapping[str, str], text: str) -> SourceError:
    """Return the error for a refusal by a Hub, which says why in its headers."""
    code = headers.get("X-Error-Code", "")
    said = f"the Hub answered {status}{f' {code}' if code else ''}{text}"
    login = "pass token=, set HF_TOKEN or log in with `hf auth login`"
    if code == "GatedRepo":
        return AuthError(f"{name}: its authors want to be asked for access ({said}): ask on its page, then {login}")
    if status in {401, 403}:
        return AuthError(f"{name}: there is no such repository, or it is private ({said}): check the name, or {login}")
    if code == "RepoNotFound":
        return SourceError(f"{name}: there is no such repository, or the token can't see it ({said})")
    if code == "RevisionNotFound":
        return SourceError(f"{name}: there is no such revision ({said})")
    if status == 404:
        return SourceError(f"{name}: there is no such file or folder ({said})")
    return SourceError(f"{name}: {said}")


async def pin(place: HubPath, access: Access, tally: Tally) -> HubPath:
    """Return the place at the commit that its revision is at now."""
    if place.revision is not None and _SHA.fullmatch(place.revision):
        return place
    revision = quote(place.revision or "main", safe="")
    answer, _ = await _call(f"/api/models/{place.repo}/revision/{revision}", place, access, tally)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not _SHA.fullmatch(commit):
        raise SourceError(f"{place.url}: the Hub did not say which commit it is at")
    return attrs.evolve(place, revision=commit)


async def list_files(place: HubPath, access: Access, tally: Tally) -> list[str]:
    """Return the paths of all files in a folder and the folders in it, relative to it."""
    folder = f"/{quote(place.path)}" if place.path else ""
    url: str | None = f"/api/models/{place.repo}/tree/{quote(place.revision or 'main', safe='')}{folder}?recursive=true"
    names: list[str] = []
    while url is not None:
        entries, url = await _call(url, place, access, tally)
        names += [entry["path"] for entry in entries if entry.get("type") == "file"]
    prefix = f"{place.path}/" if place.path else ""
    return [name.removeprefix(prefix) for name in names]


async def _call(path: str, place: HubPath, access: Access, tally: Tally) -> tuple[Any, str | None]:
    """Call the Hub's API; return the answer and the next page's URL."""
    endpoint = endpoint_of(access)
    url = urljoin(f"{endpoint}/", path) if path.startswith("http") else endpoint + path
    if origin_of(url) != origin_of(endpoint):
        raise SourceError(f"{place.url}: the Hub's list goes on at another origin ({origin_of(url)}): refused")
    entry = _entry(url, access)
    patience = Persistence(entry.origin, place.url, access.options, tally)
    for _ in range(access.options.max_redirects + 1):
        status, headers, data = await persist(partial(_get, entry, access, tally), patience)
        if status not in REDIRECTS:
            return _answer(place, entry, status, headers, data)
        # A repository that got another name.
        target = follow(entry.url, headers.get("Location"), place.url)
        if origin_of(target) != entry.origin:
            raise SourceError(f"{place.url}: the Hub's API redirects to another origin ({origin_of(target)}): refused")
        entry = attrs.evolve(entry, url=target)
    raise SourceError(f"{place.url}: the Hub's API redirects without end")


async def _get(entry: Entry, access: Access, tally: Tally) -> tuple[int, Mapping[str, str], bytes]:
    """Send a call to the API; return the reply's status, headers and body."""
    tally.resolves += 1
    response = await send(None, entry.url, {}, entry, access.options)
    if response.status in RETRIED:
        response.close()
        reason = f"the Hub answered {response.status}"
        raise Retry(reason, status=response.status, event="refused", after=wait_asked(response.headers))
    data = bytearray()
    try:
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > _LARGEST_ANSWER:
                break
    except (aiohttp.ClientError, OSError) as error:
        raise Retry(f"the answer broke off ({type(error).__name__})") from None
    finally:
        response.close()
    return response.status, response.headers, bytes(data)


def _answer(place: HubPath, entry: Entry, status: int, headers: Mapping[str, str], data: bytes) -> tuple[Any, str | None]:
    """Decode a reply of the API, and find the next page's URL."""
    if status != 200:
        text = redacted(data.decode("utf-8", "replace"), entry.url, entry.headers)
        raise refusal(place.url, status, headers, f": {text!r}" if text else "")
    try:
        answer = json.loads(data)
    except ValueError:
        raise SourceError(f"{place.url}: the answer of {redact_url(entry.url)} is not JSON: is it a Hub?") from None
    link = re.search(r'<([^>]+)>;\s*rel="next"', headers.get("Link", ""))
    return answer, link[1] if link else None
