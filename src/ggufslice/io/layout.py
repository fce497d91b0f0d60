"""Which tensors go into which file of a result, and where: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ggufslice.header import Layout, encode, pad
from ggufslice.io.shards import SPLIT_KEYS
from ggufslice.values import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ggufslice.spans import Piece
    from ggufslice.view import GGUF, Tensor

__all__ = ["PlannedFile", "lay_out"]

_MAX_FILES = 65535  # split.count is a u16


@attrs.frozen
class PlannedFile:
    """One file of a result.

    Parameters
    ----------
    start
        Address of its first byte: all files of a result in a row make one run of addresses.
    records, tensors
        What its header says.
    layout
        Its header's bytes and the place of each tensor.
    """

    start: int
    records: tuple[Record, ...] = attrs.field(repr=False)
    tensors: tuple[Tensor, ...] = attrs.field(repr=False)
    layout: Layout

    @property
    def stop(self) -> int:
        """The address behind its last byte."""
        return self.start + self.layout.n_bytes

    @property
    def metadata_bytes(self) -> int:
        """Bytes of its header, without the padding behind it."""
        return _FIXED_BYTES + sum(len(r.raw) for r in self.records) + sum(map(_row_bytes, self.tensors))

    def copies(self) -> Iterator[tuple[Piece, int]]:
        """Yield every piece of its tensors and the address that it goes to, by address."""
        for tensor, offset in zip(self.tensors, self.layout.offsets, strict=True):
            at = self.start + offset
            for piece in tensor.pieces:
                yield piece, at
                at += len(piece)


_FIXED_BYTES = 24


def _row_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's row in the header."""
    return 8 + len(tensor.name.encode("utf-8", "surrogateescape")) + 4 + 8 * len(tensor.ne) + 4 + 8


def lay_out(view: GGUF, max_shard_size: int | None) -> tuple[PlannedFile, ...]:
    """Lay out a view as one file, or as shards of at most `max_shard_size` bytes that llama.cpp loads.

    All metadata is in the first shard, but for the keys that each needs: its number, the counts, an alignment. A tensor that
    is larger than a shard may be gets one of its own.

    Raises
    ------
    FormatError
        A tensor name that can't be written.
    ValueError
        So small a size that there would be more shards than the format can count.
    """
    records = tuple(r for r in view.metadata.records if r.key not in SPLIT_KEYS)
    groups = [list(view.all_tensors)] if max_shard_size is None else _groups(view, records, max_shard_size)
    count = len(groups)
    if count > _MAX_FILES:
        raise ValueError(f"max_shard_size={max_shard_size} makes {count} shards, but the format counts up to {_MAX_FILES}")
    files: list[PlannedFile] = []
    for number, tensors in enumerate(groups):
        own = records if number == 0 else tuple(r for r in records if r.key == "general.alignment")
        if count > 1:
            own += _split_records(number, count, len(view), view.byteorder)
        layout = encode(
            own,
            [(t.name, t.ne, t.tensor_type, t.n_bytes) for t in tensors],
            version=view.version,
            byteorder=view.byteorder,
            alignment=view.alignment,
        )
        files.append(PlannedFile(files[-1].stop if files else 0, own, tuple(tensors), layout))
    return tuple(files)


def _split_records(number: int, count: int, n_tensors: int, byteorder: str) -> tuple[Record, ...]:
    # The types are those that llama-gguf-split writes; llama.cpp reads the first two as u16 only.
    values = zip(SPLIT_KEYS, (number, count, n_tensors), ("u16", "u16", "i32"), strict=True)
    return tuple(Record.of(key, value, type_, byteorder=byteorder) for key, value, type_ in values)


def _groups(view: GGUF, records: Sequence[Record], max_bytes: int) -> list[list[Tensor]]:
    """Fill shards with tensors in order."""
    split = sum(len(r.raw) for r in _split_records(0, 1, 0, view.byteorder))
    header = _FIXED_BYTES + split + sum(len(r.raw) for r in records)
    groups: list[list[Tensor]] = [[]]
    data = 0
    for tensor in view.all_tensors:
        row, size = _row_bytes(tensor), pad(tensor.n_bytes, view.alignment)
        if groups[-1] and pad(header + row, view.alignment) + data + size > max_bytes:
            groups.append([])
            header = _FIXED_BYTES + split + sum(len(r.raw) for r in records if r.key == "general.alignment")
            data = 0
        groups[-1].append(tensor)
        header += row
        data += size
    return groups
