"""From what a user names to the sources of all shards."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import attrs

from ggufslice.errors import GGUFSliceError, SourceError, redact_url
from ggufslice.io.address import without_secrets
from ggufslice.io.shards import ShardName, check_name, choose_set
from ggufslice.io.sources import make_source
from ggufslice.spans import SourceRef

if TYPE_CHECKING:
    from ggufslice.io.sources import Access, Source
    from ggufslice.io.tally import Tally

__all__ = ["locate"]

Found = list[tuple["Source", "Access"]]


async def locate(source: str, revision: str | None, access: Access, tally: Tally) -> Found:
    """Return the sources of all shards of the model that `source` names, in order, each with its access.

    Raises
    ------
    FormatError
        A folder holds no model, several, or not all of one.
    SourceError
        There is nothing of that name, or arguments that don't go with it.
    """
    scheme, mark, rest = source.partition("://")
    scheme = scheme.lower()
    if scheme == "hf" and mark:
        return await _on_hub(source, revision, access, tally)
    if scheme in {"http", "https"} and mark:
        from ggufslice.io.hub import HubPath, endpoint_of  # noqa: PLC0415 - a local file needs no HTTP

        page = HubPath.of_page(without_secrets(source), endpoint_of(access))
        if page is not None:
            return await _on_hub(page.url, revision, access, tally)
    given = {"revision": revision, "endpoint": access.endpoint, "token": access.token or None}
    for name, value in given.items():
        if value is not None:
            raise SourceError(
                f"{redact_url(source)}: {name}= is for models on a Hugging Face Hub (hf://org/repo); other sources take "
                "storage_options="
            )
    if not mark:
        return await asyncio.to_thread(_locally, source, access)
    if scheme in {"file", "local"}:
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415 - only for these URLs

        path = LocalFileSystem._strip_protocol(source)  # type: ignore[no-untyped-call]  # noqa: SLF001 - not public
        return await asyncio.to_thread(_locally, path, access)
    if scheme in {"http", "https"}:
        return _on_web(f"{scheme}://{rest}", access)
    return await _in_filesystem(source, access, tally)


def _locally(source: str, access: Access) -> Found:
    """Find a local model."""
    path = Path(source).expanduser().absolute()
    try:
        return _in_folder(path, access)
    except GGUFSliceError:
        raise
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None


def _in_folder(path: Path, access: Access) -> Found:
    if path.is_dir():
        with os.scandir(path) as entries:
            names = choose_set([entry.name for entry in entries if entry.is_file()], str(path))
    elif not path.exists():
        raise SourceError(f"{path}: there is no such file or folder")
    elif not path.is_file():
        raise SourceError(f"{path} is not a file")
    else:
        names = _siblings(path.name)
        missing = [name for name in names if not (path.parent / name).exists()]
        if missing:
            listed = ", ".join(missing[:5]) + (" and more" if len(missing) > 5 else "")
            raise SourceError(
                f"{path} is one of {len(names)} shards, but these aren't beside it: {listed}; fetch the whole set"
            )
    folder = path if path.is_dir() else path.parent
    return [(make_source(SourceRef(str(folder / name)), access), access) for name in names]


def _siblings(name: str) -> tuple[str, ...]:
    """Return the names of all shards of the set that a file of this name belongs to."""
    check_name(name)
    shard = ShardName.parse(name)
    return (name,) if shard is None else shard.siblings()


def _on_web(url: str, access: Access) -> Found:
    """Find a model behind plain HTTP."""
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    if not name:
        raise SourceError(f"{redact_url(url)}: the files in a folder of a web server aren't known: name one of them")
    found: Found = []
    for sibling in _siblings(name):
        full = urlunsplit(parts._replace(path=f"{folder}/{sibling}"))
        own = attrs.evolve(access, url=full)
        found.append((make_source(SourceRef(without_secrets(full)), own), own))
    return found


async def _on_hub(source: str, revision: str | None, access: Access, tally: Tally) -> Found:
    """Find a model in a repository."""
    from ggufslice.io.hub import HubPath, list_files, pin  # noqa: PLC0415 - a local file needs no HTTP

    place = HubPath.parse(source)
    if revision is not None:
        if place.revision not in {None, revision}:
            raise SourceError(
                f"{place.url} names the revision {place.revision!r}, but revision= is {revision!r}: leave one out"
            )
        place = attrs.evolve(place, revision=revision)
    folder, _, name = place.path.rpartition("/")
    if name.lower().endswith(".gguf") or ShardName.parse(name):
        names = [f"{folder}/{sibling}".lstrip("/") for sibling in _siblings(name)]
        place = await pin(place, access, tally)
    else:
        check_name(name)
        place = await pin(place, access, tally)
        listed = await list_files(place, access, tally)
        names = [f"{place.path}/{name}".lstrip("/") for name in choose_set(listed, place.url)]
    return [(make_source(SourceRef(attrs.evolve(place, path=name).url), access), access) for name in names]


async def _in_filesystem(source: str, access: Access, tally: Tally) -> Found:
    """Find a model behind a backend of fsspec."""
    from ggufslice.io.filesystem import FilesystemSource  # noqa: PLC0415 - only for these URLs

    before, path, behind = _split_chain(source)
    head, _, name = path.rstrip("/").rpartition("/")
    if name.lower().endswith(".gguf") or ShardName.parse(name):
        folder, names = head, _siblings(name)
    else:
        check_name(name)
        place = FilesystemSource(SourceRef(_without_password(source)), attrs.evolve(access, url=source))
        if await place.is_folder(tally):
            folder, names = path.rstrip("/"), choose_set(await place.names(tally), place.ref.display)
        else:
            folder, names = head, (name,)
    found: Found = []
    for sibling in names:
        full = f"{before}{folder}/{sibling}{behind}"
        own = attrs.evolve(access, url=full)
        found.append((make_source(SourceRef(_without_password(full)), own), own))
    return found


def _split_chain(url: str) -> tuple[str, str, str]:
    """Take out of a chain such as ``simplecache::s3://bucket/file`` the link that has the path."""
    links = url.split("::")
    at = next((i for i, link in enumerate(links) if link.partition("://")[2]), 0)
    return "".join(f"{link}::" for link in links[:at]), links[at], "".join(f"::{link}" for link in links[at + 1 :])


def _without_password(url: str) -> str:
    """Drop users with passwords from a URL; a user alone may be part of the address (``abfs://container@account``)."""
    links = []
    for link in url.split("::"):
        scheme, mark, rest = link.partition("://")
        host, slash, path = rest.partition("/")
        userinfo, at, server = host.rpartition("@")
        links.append(f"{scheme}{mark}{server}{slash}{path}" if at and ":" in userinfo else link)
    return "::".join(links)
