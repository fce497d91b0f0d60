"""Opening models: from any of their files, wherever those are, to a view of the whole."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import attrs

from ggufslice.accounting import Transfer
from ggufslice.io.locate import locate
from ggufslice.io.loop import parallel, run
from ggufslice.io.options import TransferOptions
from ggufslice.io.read import read_header
from ggufslice.io.shards import Shard, combine
from ggufslice.io.sources import Access, adopt, forget
from ggufslice.io.tally import Tally
from ggufslice.view import GGUF

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["RemoteGGUF", "open"]


@attrs.frozen(repr=False)
class RemoteGGUF(GGUF):
    """A model as it was opened, local ones included.

    Leaving a ``with`` block, or `close`, lets go of connections. The model stays usable: they are made anew when they are
    needed.

    Parameters
    ----------
    shards
        Its files, in order.
    transfer
        What opening it moved.
    """

    shards: tuple[Shard, ...] = attrs.field(default=(), kw_only=True)
    transfer: Transfer = attrs.field(factory=Transfer, kw_only=True, eq=False, repr=False)

    def close(self) -> None:
        """Let go of connections."""
        sources = forget(shard.source for shard in self.shards)
        if any(source.ref.url.startswith(("http", "hf:")) for source in sources):
            from ggufslice.io.sessions import close_sessions  # noqa: PLC0415 - other models need no HTTP

            run(close_sessions(sources))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def open(  # noqa: A001 - the name that users expect, as `gs.open`
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: TransferOptions | None = None,
) -> RemoteGGUF:
    """Open a model by reading its headers.

    Parameters
    ----------
    source
        A file, any shard of a set, or the folder that holds one model: a local path, ``https://``,
        ``hf://org/repo[@revision]/path``, or any URL that fsspec knows.
    revision
        Of a Hugging Face repository: a branch, tag, ``refs/pr/N`` or commit. It is pinned to its commit.
    token
        For a Hugging Face Hub; None takes that of the environment if there is one, True demands it, False sends none.
    endpoint
        Another Hub than huggingface.co (or ``HF_ENDPOINT``).
    storage_options
        For fsspec's backend. For HTTP: ``headers`` and ``client_kwargs``, which go to the origin of `source` alone.
    options
        Limits of this and of later transfers from this model.

    Returns
    -------
    RemoteGGUF
        All shards as one model.

    Raises
    ------
    FormatError
        A file is no GGUF, or the shards don't fit together.
    SourceError
        A file can't be read.
    """
    access = Access(
        token=token,
        endpoint=endpoint,
        storage_options=dict(storage_options or {}),
        options=options or TransferOptions(),
    )
    return run(_open(os.fsdecode(source), revision, access))


async def _open(source: str, revision: str | None, access: Access) -> RemoteGGUF:
    began = time.monotonic()
    tally = Tally()
    found = await locate(source, revision, access, tally)
    options = access.options
    headers = await parallel(
        [
            partial(read_header, place, options.header_next if i else options.header_first, options, tally)
            for i, (place, _) in enumerate(found)
        ],
        options.max_jobs,
    )
    refs = [place.ref for place, _ in found]
    metadata, tensors, shards = combine(list(zip(refs, headers, strict=True)))
    for place, own in found:
        adopt(place, own)
    transfer = tally.transfer(seconds=time.monotonic() - began)
    return RemoteGGUF(metadata, tensors, headers[0].version, shards=shards, transfer=transfer)
