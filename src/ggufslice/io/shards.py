"""Sets of shards: their names, and whether their headers fit together; pure.

Names count from 1 (``model-00002-of-00003.gguf``), the key ``split.no`` from 0 (llama.cpp b11434,
src/llama-model-loader.cpp).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from ggufslice.errors import FormatError
from ggufslice.spans import SourceRef, Span
from ggufslice.values import quoted
from ggufslice.view import Metadata, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ggufslice.header import Header

__all__ = ["Shard", "ShardName", "check_name", "choose_set", "combine"]

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_SHARD = re.compile(r"(?P<stem>.*)-(?P<no>\d+)-of-(?P<count>\d+)(?P<end>\.gguf)?", re.IGNORECASE | re.DOTALL)
_RAW_PIECE = re.compile(r".*\.part-?\d+(of\d+)?|.*\.gguf[-.](split|part)[-.]?\w+|.*\.gguf\.\d+", re.IGNORECASE | re.DOTALL)


@attrs.frozen
class Shard:
    """One file of an opened model.

    Parameters
    ----------
    source
        Which file.
    header_bytes
        Bytes of its header, without the padding behind it.
    data_start
        Where its tensor data starts, in bytes from the start of the file.
    n_tensors
        Tensors in it.
    """

    source: SourceRef
    header_bytes: int
    data_start: int
    n_tensors: int


@attrs.frozen
class ShardName:
    """The name of a shard, taken apart.

    Parameters
    ----------
    stem
        What stands before the numbers.
    no, count
        The numbers, as written; `no` counts from 1.
    end
        What stands behind them: ``.gguf`` or nothing.
    """

    stem: str
    no: str
    count: str
    end: str

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """Take a file name apart; None when it isn't that of a shard."""
        match = _SHARD.fullmatch(name)
        return None if match is None else cls(match["stem"], match["no"], match["count"], match["end"] or "")

    def siblings(self) -> tuple[str, ...]:
        """Return the names of all shards of the set, in order, with the digits as this one has them.

        Raises
        ------
        FormatError
            The numbers make no sense.
        """
        no, count = int(self.no), int(self.count)
        padded = len(self.no) == len(self.count)
        if not 1 <= no <= count or not (padded or self.no == str(no)):
            raise FormatError(f"{self.stem}-{self.no}-of-{self.count}{self.end}: shards are numbered from 1 to their count")
        width = len(self.no) if padded else 1
        return tuple(f"{self.stem}-{i:0{width}}-of-{self.count}{self.end}" for i in range(1, count + 1))


def check_name(name: str) -> None:
    """Refuse the name of a raw piece of a file.

    Raises
    ------
    FormatError
        It is one: such pieces have no header of their own.
    """
    if _RAW_PIECE.fullmatch(name) and ShardName.parse(name) is None:
        raise FormatError(
            f"{name} is a raw piece of a GGUF file, not a shard: join the pieces in order into one file (cat PIECES > "
            "model.gguf) and open that"
        )


def choose_set(names: Iterable[str], folder: str) -> tuple[str, ...]:
    """Choose the one model that is in a folder.

    Parameters
    ----------
    names
        Paths of all files in it, relative to it.
    folder
        How messages call it.

    Returns
    -------
    tuple of str
        The paths of its shards, in order.

    Raises
    ------
    FormatError
        There is none, there are several, or shards are missing or there twice.
    """
    sets: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    raw: list[str] = []
    for name in sorted(names):
        shard = ShardName.parse(name)
        if shard is not None:
            sets[shard.stem, int(shard.count), shard.end].append(name)
        elif name.lower().endswith(".gguf"):
            sets[name, 1, ""].append(name)
        elif _RAW_PIECE.fullmatch(name):
            raw.append(name)
    if len(sets) > 1:
        listed = ", ".join(
            members[0] if len(members) == 1 else f"{members[0]} (and {len(members) - 1} more shards)"
            for members in sets.values()
        )
        raise FormatError(f"{folder} holds {len(sets)} models: open one of them by its name: {listed}")
    if not sets:
        if raw:
            check_name(raw[0])
        raise FormatError(f"{folder} holds no GGUF file")
    ((stem, count, _), members) = next(iter(sets.items()))
    return tuple(members) if count == 1 and len(members) == 1 else _whole(members, stem, count, folder)


def _whole(members: Sequence[str], stem: str, count: int, folder: str) -> tuple[str, ...]:
    """Return the members of a set in order, once it is clear that it is all there."""
    by_number: dict[int, list[str]] = defaultdict(list)
    for name in members:
        shard = ShardName.parse(name)
        if shard is not None:
            by_number[int(shard.no)].append(name)
    twice = [same for same in by_number.values() if len(same) > 1]
    if twice:
        raise FormatError(f"{folder}: shard {' and '.join(twice[0])} is there twice: keep one of them")
    missing = [i for i in range(1, count + 1) if i not in by_number]
    if missing:
        raise FormatError(
            f"{folder}: {stem} has {count} shards, but number {', '.join(map(str, missing[:10]))}"
            f"{' and others' if len(missing) > 10 else ''} {'is' if len(missing) == 1 else 'are'} missing: fetch the "
            "whole set"
        )
    (first,) = by_number[1]
    expected = ShardName.parse(first)
    if expected is None or set(expected.siblings()) != set(members):
        raise FormatError(
            f"{folder}: the shards of {stem} are numbered in different ways ({', '.join(sorted(members)[:4])}): name "
            "them alike"
        )
    return expected.siblings()


def combine(files: Sequence[tuple[SourceRef, Header]]) -> tuple[Metadata, tuple[Tensor, ...], tuple[Shard, ...]]:
    """Make one model of the headers of a whole set, in order.

    Returns
    -------
    tuple
        Metadata (of the first shard; without ``split.*`` when there are several), tensors in file order, and the shards.

    Raises
    ------
    FormatError
        The headers don't belong together.
    """
    _check_split(files)
    if len(files) > 1:
        _check_alike(files)
    first = files[0][1]
    records = first.records if len(files) == 1 else [r for r in first.records if r.key not in SPLIT_KEYS]
    tensors: list[Tensor] = []
    owners: dict[str, SourceRef] = {}
    for ref, header in files:
        for info in header.tensors:
            if owners.setdefault(info.name, ref) is not ref:
                raise FormatError(
                    f"tensor {quoted(info.name)} is in two shards: {owners[info.name].display} and {ref.display}"
                )
            start = header.data_start + info.offset
            piece = Span(ref, start, start + info.n_bytes)
            tensors.append(Tensor(info.name, info.ne, info.tensor_type, (piece,), header.byteorder))
    shards = tuple(Shard(ref, header.n_bytes, header.data_start, len(header.tensors)) for ref, header in files)
    return Metadata(tuple(records), first.byteorder), tuple(tensors), shards


def _check_split(files: Sequence[tuple[SourceRef, Header]]) -> None:
    """Check what the shards say about the set: its number of shards and tensors, and their own numbers."""
    n_tensors = sum(len(header.tensors) for _, header in files)
    for i, (ref, header) in enumerate(files):
        stated = {r.key: r.value for r in header.records if r.key in SPLIT_KEYS}
        for key, value in stated.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise FormatError(f"{ref.display}: {key} is {value!r}, not a whole number")
        total = stated.get("split.tensors.count")
        count = stated.get("split.count", 0)
        if len(files) == 1:
            # A file that was made from shards may still carry their keys; it is whole if it has all tensors.
            if count > 1 and total != n_tensors:
                raise FormatError(
                    f"{ref.display} says that it is shard {stated.get('split.no', 0) + 1} of {count}, but its name does "
                    f"not: give all shards names such as model-00001-of-{count:05d}.gguf and open one of them"
                )
            continue
        if count != len(files):
            raise FormatError(
                f"{ref.display} is one of {len(files)} shards by its name, but its split.count is "
                f"{count if 'split.count' in stated else 'missing'}"
            )
        if stated.get("split.no") != i:
            raise FormatError(
                f"{ref.display} is shard {i + 1} by its name, but its split.no, which counts from 0, is "
                f"{stated.get('split.no', 'missing')}, not {i}"
            )
        if total is not None and total != n_tensors:
            raise FormatError(
                f"{ref.display} says that the set has {total} tensors (split.tensors.count), but its {len(files)} "
                f"shards have {n_tensors}: they aren't of one set, or a shard was cut short"
            )


def _check_alike(files: Sequence[tuple[SourceRef, Header]]) -> None:
    """Check that what several shards state is the same."""
    ref, first = files[0]
    for other, header in files[1:]:
        for what, a, b in (
            ("general.architecture", _architecture(first), _architecture(header) or _architecture(first)),
            ("byte order", first.byteorder, header.byteorder),
        ):
            if a != b:
                raise FormatError(f"{other.display} does not belong to {ref.display}: their {what} is {b!r} and {a!r}")


def _architecture(header: Header) -> object:
    return next((r.value for r in header.records if r.key == "general.architecture"), None)
