"""The immutable core: `Tensor`, `Metadata`, `GGUF`.

A `GGUF` is a value: a header whose tensors know which source bytes they are made of. Operations return another one. Only
`GGUF.write`, `Tensor.read` and `Tensor.numpy` move bytes, through a late import of the layer that does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import attrs

from ggufslice.errors import FormatError, TensorNotFoundError
from ggufslice.header import DEFAULT_ALIGNMENT
from ggufslice.metadata import Metadata
from ggufslice.tensor import Tensor

if TYPE_CHECKING:
    from os import PathLike

    from ggufslice.io.plan import Plan
    from ggufslice.io.progress import Progress
    from ggufslice.receipt import Receipt

__all__ = ["GGUF", "Lineage", "Metadata", "Tensor", "source_name"]

_T = TypeVar("_T")
_MAX_COUNT = 1 << 16  # of layers and experts: above what any model has, and a list of so many costs nothing


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

    def __repr__(self) -> str:
        from ggufslice.summary import summary  # noqa: PLC0415 - only when somebody looks

        return summary(self)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._index[name]
        except KeyError:
            raise TensorNotFoundError.among(name, self._index, source_name(self)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self.all_tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    @overload
    def get(self, name: str, default: None = None, /) -> Tensor | None: ...
    @overload
    def get(self, name: str, default: _T, /) -> Tensor | _T: ...
    def get(self, name: str, default: _T | None = None, /) -> Tensor | _T | None:
        """Return the tensor of that name, or the default; without the search for similar names that an error costs."""
        return self._index.get(name, default)

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

    def _count(self, suffix: str) -> int:
        value: int = self.hparam(suffix, 0)
        self._check_count(suffix, value)
        return value

    def _check_count(self, suffix: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_COUNT:
            raise FormatError(
                f"{source_name(self)}: {self.key(suffix)} is {value!r} ({self.metadata.type(self.key(suffix))}), not a "
                f"whole number from 0 to {_MAX_COUNT}"
            )

    @property
    def block_count(self) -> int:
        """Blocks, MTP blocks at the tail included: ``{arch}.block_count``, 0 where it isn't there."""
        return self._count("block_count")

    @property
    def nextn_count(self) -> int:
        """MTP blocks at the tail: ``{arch}.nextn_predict_layers``."""
        return self._count("nextn_predict_layers")

    @property
    def expert_count(self) -> int:
        """Routed experts of each MoE layer: ``{arch}.expert_count``, 0 where it isn't there."""
        return self._count("expert_count")

    @property
    def expert_used_count(self) -> int | list[int]:
        """Experts that a token goes through: ``{arch}.expert_used_count``; a list where it differs by layer."""
        used: int | list[int] = self.hparam("expert_used_count", 0)
        for count in used if isinstance(used, list) else [used]:
            self._check_count("expert_used_count", count)
        return used

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


def source_name(view: GGUF) -> str:
    """Name the file that a view was opened from: its redacted URL, or a local file without its folder."""
    for tensor in view.base.all_tensors:
        for piece in tensor.pieces:
            if (source := getattr(piece, "source", None)) is not None:
                display: str = source.display
                return display if "://" in display else Path(display).name
    return "this model"
