"""What can go wrong, as types.

::

    GGUFSliceError
     ├── FormatError (ValueError)             the bytes are not a GGUF that we can read
     ├── UnsupportedCutError (ValueError)     a cut that would not load, or would compute something else
     ├── TensorNotFoundError (KeyError)       no tensor of that name
     ├── MetadataKeyError (KeyError)          no metadata key of that name
     ├── SourceError (OSError)                a source could not be read
     │    ├── RangeNotSupportedError          the server does not serve the byte ranges that were asked for
     │    ├── SourceChangedError              the source is not the one that was opened
     │    └── AuthError                       the source wants other credentials
     ├── OutputError (OSError)                the result could not be written
     ├── BenchError (RuntimeError)            a llama.cpp program is missing, failed or answered nonsense
     └── MissingExtraError (ImportError)      a feature whose optional dependency is not installed

Every message says what was found, what was expected and what to do. URLs in messages carry neither credentials nor a query
(`redact_url`).
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AuthError",
    "BenchError",
    "FormatError",
    "GGUFSliceError",
    "MetadataKeyError",
    "MissingExtraError",
    "OutputError",
    "RangeNotSupportedError",
    "SourceChangedError",
    "SourceError",
    "TensorNotFoundError",
    "UnsupportedCutError",
]


class GGUFSliceError(Exception):
    """Root of every error that ggufslice raises on purpose."""

    def __str__(self) -> str:
        # KeyError and OSError print their arguments in forms of their own; ours is the message, as written.
        return str(self.args[0]) if self.args else self.__class__.__name__


class FormatError(GGUFSliceError, ValueError):
    """The bytes are not a GGUF that we can read, or a set of shards does not fit together."""


class UnsupportedCutError(GGUFSliceError, ValueError):
    """A cut that llama.cpp would not load, or in which a kept layer would silently change.

    The message says what was asked, why it can't be kept true, and which cuts would work.
    """


class _NotFoundError(GGUFSliceError, KeyError):
    what = "name"

    @classmethod
    def among(cls, name: str, known: Iterable[str], where: str) -> Self:
        """Make the error for a missing `name`, with the nearest of the `known` ones."""
        near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        return cls(f"{where} has no {cls.what} {name!r}{hint}")


class TensorNotFoundError(_NotFoundError):
    """No tensor of that name, or none that matches a pattern."""

    what = "tensor"


class MetadataKeyError(_NotFoundError):
    """No metadata key of that name."""

    what = "metadata key"


class SourceError(GGUFSliceError, OSError):
    """A source could not be read."""


class RangeNotSupportedError(SourceError):
    """The server answered a range request with something else than that range."""


class SourceChangedError(SourceError):
    """The source has another size, validator or revision than the one that was opened."""


class AuthError(SourceError):
    """The source refused our credentials, or wants some."""


class OutputError(GGUFSliceError, OSError):
    """The result could not be written; the final path was not touched."""


class BenchError(GGUFSliceError, RuntimeError):
    """A llama.cpp program is missing, failed, or answered something that can't be right."""


class MissingExtraError(GGUFSliceError, ImportError):
    """A feature whose optional dependency is not installed."""

    @classmethod
    def of(cls, extra: str, module: str) -> Self:
        """Make the error for a feature of `extra`, whose `module` could not be imported."""
        return cls(f"this needs the package {module!r}: pip install 'ggufslice[{extra}]'")


def redact_url(url: str) -> str:
    """Return `url` without credentials, query and fragment, fit for messages, files and receipts."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
