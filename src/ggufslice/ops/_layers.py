"""Operations on blocks: keep some, drop some."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.arch._hparams import Hparams
from ggufslice.arch._kinds import rule_of
from ggufslice.arch._layers import cut, cut_tensors, renamed, split_name
from ggufslice.errors import UnsupportedCutError
from ggufslice.layer_selection import chooser_of
from ggufslice.ops._base import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufslice.view import GGUF

__all__ = ["drop_layers", "keep_layers"]

_BOOL_OR_NONE = attrs.validators.optional(attrs.validators.instance_of(bool))
Chooser = Callable[["GGUF"], Iterable[int]]


def _number(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"a layer is a whole number, not the bool {value!r}")
    return operator.index(value)


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    numbers = tuple(map(_number, sorted(values) if isinstance(values, set | frozenset) else values))
    if twice := sorted({i for i in numbers if numbers.count(i) > 1}):
        raise ValueError(f"layer {twice[0]} is named twice: a layer can be kept once, at its place")
    return numbers


def _to_keep(layers: Any) -> int | tuple[int, ...] | Chooser:
    if isinstance(layers, str | bytes):
        raise TypeError(f"layers are numbers, such as keep_layers(12) or keep_layers([0, 3]), not the text {layers!r}")
    if isinstance(layers, Mapping):
        return chooser_of(layers)
    if callable(layers):
        return layers  # type: ignore[no-any-return]  # a chooser; what it returns is checked when it is asked
    if not isinstance(layers, Iterable):
        if (count := _number(layers)) < 1:
            raise ValueError(f"keep at least 1 layer, not the first {count}")
        return count
    numbers = _numbers(layers)
    if not numbers:
        raise ValueError("keep at least 1 layer: the list is empty")
    return numbers


def _to_drop(layers: Any) -> tuple[int, ...]:
    if isinstance(layers, str | bytes) or not isinstance(layers, Iterable):
        raise TypeError(
            f"name the layers to drop in a list: drop_layers([{layers!r}]), or keep the first n with keep_layers(n)"
        )
    return _numbers(layers)


class _LayerOp(Op):
    """What both operations share: which blocks stay is the only difference."""

    __slots__ = ()

    @abstractmethod
    def _kept(self, h: Hparams, view: GGUF) -> list[int]: ...

    def _apply(self, view: GGUF) -> GGUF:
        h = Hparams.of(view)
        if h.n_blocks < 1:
            raise UnsupportedCutError(f"the model has no {h.architecture or '?'}.block_count: its layers are not known")
        _fits(view, h)
        kept = self._kept(h, view)
        if not any(i < h.n_trunk for i in kept) and h.n_trunk:
            raise UnsupportedCutError("no layer of the trunk would be left; keep at least one")
        if len(kept) == h.n_named:
            return view
        after = cut(h, kept)
        blocks = tuple(view.blocks[i] for i in kept)
        grafted = view.lineage.grafted if view.lineage else {}
        names = renamed(grafted, kept, rule_of(h))
        return view.evolve(
            metadata=after.written(),
            tensors=cut_tensors(view, after, kept),
            blocks=blocks,
            grafted={name: where for name, where in zip(names, grafted.values(), strict=True) if name},
        )


def _fits(view: GGUF, h: Hparams) -> None:
    """Refuse a view whose tensors belong to more blocks than it says it has."""
    rule = rule_of(h)
    for name in view:
        parts = split_name(name, rule)
        if parts and parts[1] >= h.n_named:
            raise UnsupportedCutError(
                f"tensor {name!r} belongs to layer {parts[1]}, but the model says that it has {h.n_named}: set "
                f"{view.key('block_count')}, or drop the tensor"
            )
    if len(view.blocks) < h.n_named:
        raise UnsupportedCutError(
            f"{view.key('block_count')} says {h.n_named} layers, but the model has {len(view.blocks)}: set it before cutting"
        )


def _resolve(numbers: Sequence[int], h: Hparams) -> list[int]:
    """Turn numbers from the trunk's end into block numbers."""
    trunk = h.n_trunk
    for number in numbers:
        if not -trunk <= number < h.n_named:
            last = f"{trunk - 1}" + (f", and MTP layers {trunk} to {h.n_named - 1}" if h.n_named > trunk else "")
            raise UnsupportedCutError(f"there is no layer {number}: the model has layers 0 to {last}")
    return [number + trunk if number < 0 else number for number in numbers]


@attrs.frozen
class keep_layers(_LayerOp):  # noqa: N801 - operations read as verbs
    """Keep some layers, and bring all that depends on their numbers along.

    Tensors are renamed, arrays with an entry for each layer are cut, first or last layers are counted again, patterns that
    llama.cpp derives from a layer's number are written out or get another period, and defaults that depend on the number
    of layers are made explicit. What can't be said in metadata is found by `ggufslice.arch.check`.

    Parameters
    ----------
    layers
        A number: so many first layers. Or the numbers of layers, ascending, as they are in the view that the operation is
        applied to; negative ones count from the end of the trunk. Or a chooser, such as `ends` or `evenly`.
    mtp
        Whether layers for multi-token prediction at the tail stay; None drops those that are not named.

    Raises
    ------
    ValueError
        No layer, or one named twice.
    UnsupportedCutError
        When applied: a layer that isn't there, or another order than that of the model.

    Notes
    -----
    Keys that change where they have to, all others keep their bytes: ``block_count`` and ``nextn_predict_layers``;
    arrays with an entry for each layer, such as ``attention.head_count_kv``, ``feed_forward_length`` and
    ``attention.sliding_window_pattern``; ``leading_dense_block_count``, ``hash_layer_count``,
    ``attention.shared_kv_layers``, ``decoder_block_count``; ``interleave_moe_layer_step``, ``moe_every_n_layers``,
    ``attn_res.block_size``; ``ple.layers`` and ``general.tensor_extra.*``. Written where they were only implied:
    ``attention.sliding_window_pattern``, ``attention.recurrent_layers``, ``attention.indexer.types``,
    ``attention.key_length`` and the like, ``residual_scale``, ``attention.q_lora_rank``, ``expert_gating_func``.
    ``attention.sliding_window`` becomes 0 where no layer with a window is left and the architecture can do without.

    Examples
    --------
    >>> keep_layers([0, 1, 2, 3, -1])
    keep_layers(layers=(0, 1, 2, 3, -1), mtp=None)
    """

    layers: int | tuple[int, ...] | Chooser = attrs.field(converter=_to_keep)
    mtp: bool | None = attrs.field(default=None, kw_only=True, validator=_BOOL_OR_NONE)

    def describe(self) -> dict[str, Any]:
        """Return the operation as JSON-able values; a chooser of somebody else's is only named."""
        if callable(self.layers) and not hasattr(self.layers, "to_json"):
            chooser = self.layers
            name = f"{getattr(chooser, '__module__', '?')}.{getattr(chooser, '__qualname__', type(chooser).__qualname__)}"
            return attrs.evolve(self, layers=1).describe() | {"layers": f"custom:{name}"}
        return super().describe()

    def _kept(self, h: Hparams, view: GGUF) -> list[int]:
        layers = self.layers
        if callable(layers):
            layers = _numbers(layers(view))
        if isinstance(layers, int):
            if layers > h.n_trunk:
                raise UnsupportedCutError(f"can't keep the first {layers} layers: the model has {h.n_trunk}")
            layers = tuple(range(layers))
        kept = _resolve(layers, h)
        if kept != sorted(set(kept)):
            raise UnsupportedCutError(
                f"layers {list(layers)} are not in the model's order: first layers are special in many architectures, and a "
                "layer that moves computes something else; name them in ascending order"
            )
        trunk = [i for i in kept if i < h.n_trunk]
        tail = [i for i in kept if i >= h.n_trunk]
        if self.mtp is False and tail:
            raise ValueError(f"layer {tail[0]} is a layer for multi-token prediction: naming it contradicts mtp=False")
        return trunk + (list(range(h.n_trunk, h.n_named)) if self.mtp else tail)


@attrs.frozen
class drop_layers(_LayerOp):  # noqa: N801 - operations read as verbs
    """Drop some layers; see `keep_layers` for what is brought along.

    Parameters
    ----------
    layers
        The numbers of layers, as they are in the view that the operation is applied to; negative ones count from the end of
        the trunk.
    mtp
        False drops layers for multi-token prediction at the tail too. True and None keep those that are not named.

    Raises
    ------
    TypeError
        A single number, which could mean one layer or so many.
    ValueError
        A layer named twice.
    UnsupportedCutError
        When applied: a layer that isn't there, or none would be left.

    Examples
    --------
    >>> drop_layers(range(4, 8))
    drop_layers(layers=(4, 5, 6, 7), mtp=None)
    """

    layers: tuple[int, ...] = attrs.field(converter=_to_drop)
    mtp: bool | None = attrs.field(default=None, kw_only=True, validator=_BOOL_OR_NONE)

    def _kept(self, h: Hparams, view: GGUF) -> list[int]:  # noqa: ARG002 - the same call for both
        gone = set(_resolve(self.layers, h))
        if self.mtp and (named := [i for i in sorted(gone) if i >= h.n_trunk]):
            raise ValueError(f"layer {named[0]} is a layer for multi-token prediction: dropping it contradicts mtp=True")
        stay = h.n_trunk if self.mtp is False else h.n_named
        return [i for i in range(stay) if i not in gone]
