"""Files behind any other backend of fsspec.

Read in bounded chunks with `cat_file`, whose answers are checked for their length; file objects of fsspec aren't used,
since their caches hold and fetch more than was asked for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import attrs
from fsspec.core import url_to_fs

from ggufslice.errors import (
    AuthError,
    GGUFSliceError,
    MissingExtraError,
    RangeNotSupportedError,
    SourceChangedError,
    SourceError,
)
from ggufslice.io.address import redacted
from ggufslice.io.retry import Persistence, Retry, names_no_host, persist
from ggufslice.spans import SourceRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from ggufslice.io.sources import Access
    from ggufslice.io.tally import Tally

__all__ = ["FilesystemSource"]

# What backends call the thing that changes when a file does; times only where there is no better one.
_MARKS = ("etag", "e_tag", "md5", "md5hash", "generation", "versionid", "ukey")
_TIMES = ("mtime", "lastmodified", "last_modified", "updated", "created")
# What the libraries of object stores raise where there are no credentials, or none that serve: told by name, since they
# aren't imported here. Of botocore, google-auth and azure-core.
_NO_CREDENTIALS = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "NoAuthTokenError", "SSOError"),
        *("ProfileNotFound", "DefaultCredentialsError", "RefreshError", "ClientAuthenticationError"),
    }
)


@attrs.define(eq=False)
class FilesystemSource:
    """A file of a backend of fsspec.

    Parameters
    ----------
    ref
        Which file. Its validators are what the backend's `info` gives: an ETag, a checksum or a time.
    access
        How it is reached.
    """

    ref: SourceRef
    _access: Access = attrs.field(repr=False)
    _opened: tuple[Any, str] | None = attrs.field(default=None, init=False, repr=False)
    _confirmed: bool = attrs.field(default=False, init=False, repr=False)

    @property
    def origin(self) -> str:
        """See `Source.origin`."""
        scheme, _, rest = self.ref.url.rpartition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    async def stream(self, start: int, stop: int, tally: Tally) -> AsyncGenerator[bytes]:
        """See `Source.stream`."""
        if not self._confirmed:
            await self.confirm(tally)
        stop = stop if self.ref.size is None else min(stop, self.ref.size)
        counts = tally.of(self.ref)
        while start < stop:
            end = min(start + self._access.options.chunk_size, stop)
            tally.requests += 1
            data = await self._call("cat_file", start=start, end=end)
            counts.received += len(data)
            if len(data) > end - start:
                counts.wasted += len(data)
                raise RangeNotSupportedError(
                    f"{self.ref.display}: asked for bytes {start}-{end - 1}, but the backend "
                    f"{type(self._files()[0]).__name__} returned {len(data)} bytes: it does not read ranges"
                )
            if data:
                yield data
            if len(data) < end - start:
                await self.confirm(tally)  # it may be shorter by now, which no other attempt changes
                raise Retry(f"the backend returned {len(data)} of {end - start} bytes", event="short")
            start = end

    async def confirm(self, tally: Tally) -> None:
        """See `Source.confirm`."""
        tally.resolves += 1
        info = await self._call("info")
        if info.get("type") == "directory":
            raise SourceError(f"{self.ref.display} is a folder")
        size = info.get("size")
        if size is None:
            raise SourceError(f"{self.ref.display}: the backend does not tell its size")
        validators = _validators(info)
        if self.ref.size is None:
            self.ref = SourceRef(self.ref.url, int(size), validators)
        if (int(size), validators) != (self.ref.size, dict(self.ref.validators)):
            now, then = _text(size, validators), _text(self.ref.size, dict(self.ref.validators))
            raise SourceChangedError(
                f"{self.ref.display} is not the file that was opened any more (it has {now}, and had {then}): open it again"
            )
        self._confirmed = True

    async def is_folder(self, tally: Tally) -> bool:
        """Tell whether this is a folder."""
        tally.resolves += 1
        return bool(await persist(lambda: self._call("isdir"), self._patience(tally)))

    async def names(self, tally: Tally) -> list[str]:
        """Return the names of the files right inside this folder."""
        tally.resolves += 1
        entries = await persist(lambda: self._call("ls", detail=True), self._patience(tally))
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry.get("type") != "directory"]

    def _patience(self, tally: Tally) -> Persistence:
        return Persistence(self.origin, self.ref.display, self._access.options, tally)

    def _files(self) -> tuple[Any, str]:
        """Return the file system and the path in it."""
        if self._opened is None:
            try:
                url = self._access.url or self.ref.url
                self._opened = url_to_fs(url, **self._access.storage_options)  # type: ignore[no-untyped-call]
            except (ImportError, ValueError, TypeError) as error:
                if isinstance(error, ImportError) and self.origin.startswith(("s3:", "s3a:")):
                    raise MissingExtraError.of("s3", "s3fs") from None
                raise SourceError(f"{self.ref.display} can't be opened{self._said(error)}") from None
        return self._opened

    async def _call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the file system with the path: on this loop when it lives here, in a thread otherwise."""
        try:
            if self._opened is None:
                await asyncio.to_thread(self._files)  # it may import a package and look for credentials
            files, path = self._files()
            if files.async_impl and files.loop is asyncio.get_running_loop():
                return await getattr(files, f"_{method}")(path, **arguments)
            return await asyncio.to_thread(getattr(files, method), path, **arguments)
        except (GGUFSliceError, Retry):
            raise
        except Exception as error:  # noqa: BLE001 - backends raise whatever their libraries do
            raise self._judged(error) from None

    def _judged(self, error: Exception) -> Exception:
        """Return what a backend's error means: most may pass, but not those that would be the same again."""
        what, said = self.ref.display, self._said(error)
        if names_no_host(error):  # some backends call this a file that isn't there
            return SourceError(f"{what}: no host of that name is known{said}; check the address")
        if isinstance(error, FileNotFoundError):
            return SourceError(f"{what}: there is no such file")
        if isinstance(error, PermissionError):
            return AuthError(f"{what}: the backend refuses to read it{said}; give it credentials with storage_options=")
        if not _NO_CREDENTIALS.isdisjoint(kind.__name__ for kind in type(error).__mro__):
            return AuthError(
                f"{what}: the backend has no credentials that serve{said}; give it some where its package looks for them, "
                "such as environment variables, or with storage_options= ({'anon': True} for a public bucket of S3)"
            )
        if isinstance(error, (NotImplementedError, ValueError, TypeError, IsADirectoryError)):
            return SourceError(f"{what} can't be read{said}")
        return Retry(f"the backend failed{said}")

    def _said(self, error: Exception) -> str:
        secrets = {str(i): text for i, text in enumerate(_texts(self._access.storage_options))}
        text = redacted(str(error), self._access.url or self.ref.url, secrets)
        return f" ({type(error).__name__}: {text})"


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in nested options: any of them may be secret."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)


def _text(size: int | None, validators: dict[str, str]) -> str:
    return ", ".join([f"{size} bytes", *(f"{key} {value}" for key, value in sorted(validators.items()))])


def _validators(info: dict[str, Any]) -> dict[str, str]:
    lower = {key.lower(): (key, value) for key, value in info.items() if value not in {None, ""}}
    for group in (_MARKS, _TIMES):
        found = {name: str(lower[name][1]).strip('"') for name in group if name in lower}
        if found:
            return found
    return {}
