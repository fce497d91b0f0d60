"""The immutable core: `Tensor`, `Metadata`, `GGUF`.

A `GGUF` is a value: a header whose tensors know which source bytes they are made of. Operations return another one. Only
`GGUF.write`, `Tensor.read` and `Tensor.numpy` move bytes, through a late import of the layer that does I/O.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ggufslice.errors import MetadataKeyError, TensorNotFoundError, UnsupportedCutError
from ggufslice.header import DEFAULT_ALIGNMENT
from ggufslice.spans import Piece, join, n_bytes, take
from ggufslice.tensor_types import TensorType
from ggufslice.values import Record, infer_type

if TYPE_CHECKING:
    from os import PathLike

    from ggufslice.io.plan import Plan
    from ggufslice.io.progress import Progress
    from ggufslice.receipt import Receipt

__all__ = ["GGUF", "Lineage", "Metadata", "Tensor"]


@attrs.frozen
class Tensor:
    """A tensor that has not been read: its shape, its type and where its bytes are.

    Parameters
    ----------
    name
        Tensor name.
    ne
        Elements along each axis in ne order: the fastest axis first, as in the file and in llama.cpp's logs.
    tensor_type
        Type of the elements.
    pieces
        The bytes, in order.
    byteorder
        ``"little"`` or ``"big"``: that of the file.
    """

    name: str
    ne: tuple[int, ...]
    tensor_type: TensorType = attrs.field(converter=TensorType)
    pieces: tuple[Piece, ...] = attrs.field(repr=False, converter=join)
    byteorder: str = attrs.field(default="little", repr=False)

    def __attrs_post_init__(self) -> None:
        expected = self.tensor_type.n_bytes(self.n_elements)
        if expected is not None and expected != self.n_bytes:
            raise ValueError(
                f"tensor {self.name!r} of ne {self.ne} and type {self.tensor_type} has {expected} bytes, not {self.n_bytes}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis in numpy order: `ne` reversed, the outermost axis first."""
        return self.ne[::-1]

    @property
    def n_elements(self) -> int:
        """Product of `ne`."""
        return math.prod(self.ne)

    @property
    def n_bytes(self) -> int:
        """Bytes stored, without the padding behind the tensor."""
        return n_bytes(self.pieces)

    def __getitem__(self, key: int | slice | Sequence[int] | np.ndarray[Any, Any]) -> Tensor:
        """Take along the outermost axis (numpy's axis 0, the last of `ne`), as numpy indexing does.

        Parameters
        ----------
        key
            An index (its axis goes), a slice or a list of indices (the axis stays). Negative numbers count from the end.

        Raises
        ------
        IndexError
            Out of range, or the tensor has no axis.
        UnsupportedCutError
            A tensor of an unknown type, or one whose outermost axis lies inside quantized blocks.
        """
        if isinstance(key, slice):
            return self._take(range(*key.indices(self._outer())))
        if isinstance(key, list | tuple | range | np.ndarray):
            if isinstance(key, np.ndarray) and (key.dtype == bool or key.ndim != 1):
                raise IndexError(
                    f"tensor {self.name!r} takes a flat list of whole numbers, not {key.dtype} of ndim {key.ndim}"
                )
            return self._take([self._index(i) for i in key])
        one = self._take([self._index(key)])
        return attrs.evolve(one, ne=one.ne[:-1])

    def _outer(self) -> int:
        if not self.ne:
            raise IndexError(f"tensor {self.name!r} is a scalar: it has no axis to take from")
        return self.ne[-1]

    def _index(self, i: Any) -> int:
        n = self._outer()
        if isinstance(i, bool | np.bool_):
            raise IndexError(f"tensor {self.name!r}: an index is a whole number, not the bool {i!r}")
        number = operator.index(i)
        if not -n <= number < n:
            raise IndexError(f"tensor {self.name!r}: index {number} is out of range for the outermost axis of {n}")
        return number % n

    def _take(self, indices: Sequence[int]) -> Tensor:
        n = self._outer()
        if not self.tensor_type.known:
            raise UnsupportedCutError(
                f"tensor {self.name!r} has the type {self.tensor_type}, whose layout is not known here: it can be copied "
                "whole, but not sliced"
            )
        if len(self.ne) == 1 and self.tensor_type.block_size > 1:
            raise UnsupportedCutError(
                f"tensor {self.name!r}: its only axis lies inside {self.tensor_type} blocks of {self.tensor_type.block_size}"
            )
        pieces = take(self.pieces, self.n_bytes // n if n else 0, indices)
        return attrs.evolve(self, ne=(*self.ne[:-1], len(indices)), pieces=pieces)

    def read(self) -> bytes:
        """Fetch the tensor's bytes, as they are stored.

        Raises
        ------
        SourceError
            A source can't be read.
        """
        from ggufslice.io.read import read_pieces  # noqa: PLC0415 - the front door to I/O

        return read_pieces(self.pieces)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Fetch and decode the tensor.

        Returns
        -------
        numpy.ndarray
            Of `shape` (numpy order). Quantized types are dequantized to float32; BF16 too.

        Raises
        ------
        SourceError
            A source can't be read.
        UnsupportedCutError
            gguf-py can't decode this type, or quantized data of a big-endian file.
        """
        return decode(self, self.read())


def decode(tensor: Tensor, data: bytes) -> np.ndarray[Any, Any]:
    """Decode stored bytes; see `Tensor.numpy`."""
    plain = {0: "f4", 1: "f2", 24: "i1", 25: "i2", 26: "i4", 27: "i8", 28: "f8"}.get(int(tensor.tensor_type))
    if plain:
        order = ">" if tensor.byteorder == "big" else "<"
        array = np.frombuffer(data, order + plain).reshape(tensor.shape)
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    if tensor.byteorder == "big":
        raise UnsupportedCutError(f"tensor {tensor.name!r}: {tensor.tensor_type} of a big-endian file can't be decoded")
    from gguf import GGMLQuantizationType, quants  # noqa: PLC0415 - slow to import

    try:
        rows = np.frombuffer(data, np.uint8).reshape((*tensor.shape[:-1], -1))
        return np.asarray(quants.dequantize(rows, GGMLQuantizationType(int(tensor.tensor_type)))).reshape(tensor.shape)
    except (NotImplementedError, ValueError) as error:
        raise UnsupportedCutError(
            f"tensor {tensor.name!r}: the installed gguf package can't decode {tensor.tensor_type} ({error}); read() gives "
            "the stored bytes"
        ) from None


def _record_tuple(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(records)


@attrs.frozen
class Metadata(Mapping[str, Any]):
    """Key-value metadata: a mapping of key to decoded value that keeps each record's type and exact bytes."""

    records: tuple[Record, ...] = attrs.field(
        default=(), converter=_record_tuple, repr=lambda records: f"<{len(records)} records>"
    )
    byteorder: str = "little"

    @cached_property
    def _index(self) -> dict[str, Record]:
        return {record.key: record for record in self.records}

    def _record(self, key: str) -> Record:
        try:
            return self._index[key]
        except KeyError:
            raise MetadataKeyError.among(key, self._index, "this model") from None

    def __getitem__(self, key: str) -> Any:
        return self._record(key).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self.records)

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def type(self, key: str) -> str:
        """Return the value's type, such as ``u32`` or ``arr[str]``."""
        return self._record(key).type

    def raw(self, key: str) -> bytes:
        """Return the exact bytes of the whole record: key, type and value."""
        return self._record(key).raw

    def set(self, values: Mapping[str, Any], *, types: Mapping[str, str] | None = None) -> Metadata:
        """Return metadata with these values; a key that is there keeps its place, a new one goes to the end.

        Parameters
        ----------
        values
            Key to value.
        types
            Key to type, such as ``u32`` or ``arr[f32]``. Without one a key keeps the type it has; a new key needs one unless
            its value is text or a bool.

        Raises
        ------
        ValueError
            A value that does not fit its type, or a new number without a type.
        """
        index = dict(self._index)
        for key, value in values.items():
            type_ = (types or {}).get(key) or (index[key].type if key in index else infer_type(value))
            if type_ is None:
                raise ValueError(
                    f"metadata key {key!r} is new: say which type {value!r} has, such as types={{{key!r}: 'u32'}}"
                )
            index[key] = Record.of(key, value, type_, byteorder=self.byteorder)
        return Metadata(tuple(index.values()), self.byteorder)

    def remove(self, keys: Iterable[str]) -> Metadata:
        """Return metadata without these keys; keys that aren't there are ignored."""
        gone = set(keys)
        return Metadata(tuple(r for r in self.records if r.key not in gone), self.byteorder)


@attrs.frozen
class Lineage:
    """What was done to a view since it was opened.

    Parameters
    ----------
    base
        The view as it was opened.
    blocks
        For each block, the number that it has in `base`.
    experts
        Block number in `base` to the ids that were kept of its experts, in their new order. Blocks that aren't there
        kept all.
    ops
        What was done, in order: each operation as JSON.
    fragment
        Whether tensors were dropped by name, so that the result isn't meant to load.
    grafted
        Names of tensors that aren't the base's, with where they came from.
    notes
        What a reader of the receipt should know, such as expert groups that were reset.
    """

    base: GGUF = attrs.field(repr=False)
    blocks: tuple[int, ...]
    experts: Mapping[int, tuple[int, ...]] = attrs.field(factory=dict, converter=dict)
    ops: tuple[str, ...] = ()
    fragment: bool = False
    grafted: Mapping[str, str] = attrs.field(factory=dict, converter=dict)
    notes: tuple[str, ...] = ()


def _tensor_tuple(tensors: Iterable[Tensor] | Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensors.values() if isinstance(tensors, Mapping) else tensors)


@attrs.frozen
class GGUF(Mapping[str, Tensor]):
    """A model that has not been read: metadata, tensors and what was done to it.

    A mapping of tensor name to `Tensor`, in file order.

    Parameters
    ----------
    metadata
        Key-value metadata.
    all_tensors
        The tensors, in file order.
    version
        GGUF version, 2 or 3.
    lineage
        What was done since it was opened; None for a model as it was opened.
    """

    metadata: Metadata
    all_tensors: tuple[Tensor, ...] = attrs.field(converter=_tensor_tuple)
    version: int = 3
    lineage: Lineage | None = None

    @cached_property
    def _index(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.all_tensors}

    def __attrs_post_init__(self) -> None:
        if len(self._index) != len(self.all_tensors):
            names = [t.name for t in self.all_tensors]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"tensor {twice!r} is there twice")

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._index[name]
        except KeyError:
            raise TensorNotFoundError.among(name, self._index, "this model") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self.all_tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors by name, in file order: the view itself, as a mapping."""
        return self

    @property
    def byteorder(self) -> str:
        """``"little"`` or ``"big"``."""
        return self.metadata.byteorder

    @property
    def alignment(self) -> int:
        """Alignment of tensor data in bytes: ``general.alignment``, or 32."""
        return int(self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))

    @property
    def architecture(self) -> str:
        """``general.architecture``, or an empty string where the file names none."""
        return str(self.metadata.get("general.architecture", ""))

    def key(self, suffix: str) -> str:
        """Return the full metadata key of an architecture's key, such as ``block_count``."""
        return f"{self.architecture}.{suffix}"

    def hparam(self, suffix: str, default: Any = None) -> Any:
        """Return the value of an architecture's key, such as ``block_count``, or the default."""
        return self.metadata.get(self.key(suffix), default)

    @property
    def block_count(self) -> int:
        """Blocks, MTP blocks at the tail included: ``{arch}.block_count``, 0 where it isn't there."""
        return int(self.hparam("block_count", 0))

    @property
    def nextn_count(self) -> int:
        """MTP blocks at the tail: ``{arch}.nextn_predict_layers``."""
        return int(self.hparam("nextn_predict_layers", 0))

    @property
    def expert_count(self) -> int:
        """Routed experts of each MoE layer: ``{arch}.expert_count``, 0 where it isn't there."""
        return int(self.hparam("expert_count", 0))

    @property
    def expert_used_count(self) -> int | list[int]:
        """Experts that a token goes through: ``{arch}.expert_used_count``; a list where it differs by layer."""
        used = self.hparam("expert_used_count", 0)
        return used if isinstance(used, list) else int(used)

    @property
    def n_params(self) -> int:
        """Parameters present: the sum over all tensors of the product of ne, as llama-bench counts."""
        return sum(t.n_elements for t in self.all_tensors)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(t.n_bytes for t in self.all_tensors)

    @property
    def base(self) -> GGUF:
        """The view as it was opened."""
        return self.lineage.base if self.lineage else self

    @property
    def blocks(self) -> tuple[int, ...]:
        """For each block, its number in `base`."""
        return self.lineage.blocks if self.lineage else tuple(range(self.block_count))

    def evolve(
        self,
        *,
        metadata: Metadata | None = None,
        tensors: Iterable[Tensor] | Mapping[str, Tensor] | None = None,
        op: str | None = None,
        **lineage: Any,
    ) -> GGUF:
        """Return a changed view that remembers where it came from: what operations are made with.

        Parameters
        ----------
        metadata, tensors
            The new ones; left out, they stay.
        op
            The operation as JSON, for the record.
        **lineage
            Fields of `Lineage` that change.
        """
        line = self.lineage or Lineage(self, self.blocks)
        if op is not None:
            lineage["ops"] = (*line.ops, op)
        if note := lineage.pop("note", None):
            lineage["notes"] = (*line.notes, note)
        return GGUF(
            self.metadata if metadata is None else metadata,
            self.all_tensors if tensors is None else _tensor_tuple(tensors),
            self.version,
            attrs.evolve(line, **lineage),
        )

    def pipe(self, *ops: Callable[[GGUF], GGUF]) -> GGUF:
        """Apply operations from left to right.

        An operation is any callable that takes a view and returns one; `evolve` makes the result.

        Raises
        ------
        TypeError
            An operation returned something else.
        """
        view: GGUF = self
        for op in ops:
            after = op(view)
            if not isinstance(after, GGUF):
                raise TypeError(f"an operation returns a GGUF, but {op!r} returned {type(after).__name__}")
            if not hasattr(op, "describe"):
                name = f"{getattr(op, '__module__', '?')}.{getattr(op, '__qualname__', type(op).__qualname__)}"
                after = after.evolve(op=f'"custom:{name}"')
            view = after
        return view

    def plan(self, *, max_shard_size: int | None = None, force: bool = False) -> Plan:
        """Work out what would be fetched and written, and check that the result is sound; reads nothing.

        Parameters
        ----------
        max_shard_size
            Bytes of a shard, where the result is to be split.
        force
            Turn refusals into warnings that the receipt and the file record.

        Raises
        ------
        UnsupportedCutError
            llama.cpp would not load the result, or a kept layer would change what it computes.
        """
        from ggufslice.io.plan import make_plan  # noqa: PLC0415 - the front door to I/O

        return make_plan(self, max_shard_size=max_shard_size, force=force)

    def write(
        self,
        path: str | PathLike[str],
        *,
        jobs: int | None = None,
        overwrite: bool = False,
        resume: bool = True,
        progress: Progress | None = None,
        max_shard_size: int | None = None,
        force: bool = False,
    ) -> Receipt:
        """Fetch the bytes that survive and write them.

        Parameters
        ----------
        path
            The file to make. It appears only when it is complete.
        jobs
            The most requests at a time.
        overwrite
            Replace a file that is there.
        resume
            Go on where a killed run of the same plan stopped; False starts afresh.
        progress
            Told what was planned and what has arrived.
        max_shard_size, force
            As in `plan`.

        Raises
        ------
        UnsupportedCutError
            As in `plan`; nothing was fetched.
        SourceError
            A source can't be read, or has changed. What was fetched stays, for a resume.
        OutputError
            The result can't be written: no space, no permission, the path is an input or exists.
        """
        from ggufslice.io.write import write  # noqa: PLC0415 - the front door to I/O

        return write(
            self,
            path,
            jobs=jobs,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
            max_shard_size=max_shard_size,
            force=force,
        )
