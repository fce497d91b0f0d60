"""What is in which layers: the table of ``ggufslice inspect``."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.arch import expert_axis, kinds
from ggufslice.classes import TensorClass, block_of, classify
from ggufslice.units import bytes_text, count_text, numbers_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ggufslice.tensor import Tensor
    from ggufslice.view import GGUF

__all__ = ["Group", "Share", "groups", "plain", "table"]

_HEAD = ("layers", "holds", "experts", "parameters", "bytes", "bits", "types")
_LEFT = {0, 1, 6}  # columns of text
_ELSEWHERE = "-"
_SHOWN_RUNS = 6  # of layers: the column stays narrow where kinds alternate


@attrs.frozen
class Share:
    """The tensors of one class in a layer.

    Parameters
    ----------
    tensor_class
        Their class.
    n_params, n_bytes
        Their parameters and bytes.
    types
        Their types, those with the most bytes first.
    """

    tensor_class: TensorClass
    n_params: int
    n_bytes: int
    types: tuple[str, ...]


@attrs.frozen
class Group:
    """Layers of the same content.

    Parameters
    ----------
    layers
        Their numbers; none for the tensors outside of layers.
    kind
        What llama.cpp takes each for, such as ``("recurrent", "MoE")``: from the rules of the architecture or, where these
        don't tell layers apart, from the tensors.
    experts
        Routed experts in each.
    shares
        What is in each, by class.
    """

    layers: tuple[int, ...]
    kind: tuple[str, ...]
    experts: int
    shares: tuple[Share, ...]

    @property
    def times(self) -> int:
        """How many times the shares are there."""
        return len(self.layers) or 1


def groups(view: GGUF) -> list[Group]:
    """Return the layers of a view, those with equal content together, by their first; what is outside of layers is last."""
    blocks: defaultdict[int | None, list[Tensor]] = defaultdict(list)
    for tensor in view.all_tensors:
        blocks[block_of(tensor.name)].append(tensor)
    elsewhere = blocks.pop(None, [])
    rules, axes = dict(enumerate(kinds(view))), expert_axis(view)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for block in sorted(number for number in blocks if number is not None):
        shares = _shares(blocks[block])
        kind = _kind(rules.get(block, {}), {share.tensor_class for share in shares})
        experts = max(axes.get(tensor.name, 0) for tensor in blocks[block])
        alike.setdefault((kind, experts, shares), []).append(block)
    found = [Group(tuple(layers), *content) for content, layers in alike.items()]
    return [*found, Group((), (), 0, _shares(elsewhere))] if elsewhere else found


def table(view: GGUF) -> list[str]:
    """Return the groups as aligned lines: each in sum, and under it by class."""
    rows = [_HEAD]
    for group in groups(view):
        where = numbers_text(group.layers, _SHOWN_RUNS).strip("[]") if group.layers else _ELSEWHERE
        what = ", ".join(group.kind) if group.layers else "outside of layers"
        rows.append((where, what, str(group.experts or ""), *_figures(group.shares, group.times)))
        rows += [("", f"  {share.tensor_class}", "", *_figures([share], group.times)) for share in group.shares]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{c:<{w}}" if i in _LEFT else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def plain(view: GGUF) -> list[dict[str, Any]]:
    """Return the groups as JSON-able values: parameters and bytes are those of all layers of a group together."""
    return [
        {
            "layers": list(group.layers),
            "kind": list(group.kind),
            "expert_count": group.experts,
            **_sums(group.shares, group.times),
            "classes": [
                {"tensor_class": str(share.tensor_class), **_sums([share], group.times), "types": list(share.types)}
                for share in group.shares
            ],
        }
        for group in groups(view)
    ]


def _sums(shares: Sequence[Share], times: int) -> dict[str, int]:
    return {"n_params": times * sum(s.n_params for s in shares), "n_bytes": times * sum(s.n_bytes for s in shares)}


def _figures(shares: Sequence[Share], times: int) -> tuple[str, str, str, str]:
    sums = _sums(shares, times)
    n_params, n_bytes = sums["n_params"], sums["n_bytes"]
    bits = f"{8 * n_bytes / n_params:.3f}" if n_params else ""
    ranked = sorted(shares, key=lambda share: -share.n_bytes)
    types = dict.fromkeys(name for share in ranked for name in share.types)
    return count_text(n_params), bytes_text(n_bytes), bits, ", ".join(types)


def _shares(tensors: Sequence[Tensor]) -> tuple[Share, ...]:
    by_class: defaultdict[TensorClass, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_class[classify(tensor.name)].append(tensor)
    return tuple(_share(kind, by_class[kind]) for kind in TensorClass if kind in by_class)


def _share(kind: TensorClass, tensors: Sequence[Tensor]) -> Share:
    n_bytes: Counter[str] = Counter()
    for tensor in tensors:
        n_bytes[tensor.tensor_type.name] += tensor.n_bytes
    types = tuple(name for name, _ in n_bytes.most_common())
    return Share(kind, sum(t.n_elements for t in tensors), n_bytes.total(), types)


def _kind(rule: Mapping[str, object], classes: Collection[TensorClass]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_main(rule, classes), *_aspects(rule))))


def _main(rule: Mapping[str, object], classes: Collection[TensorClass]) -> Iterator[str]:
    """Yield what mixes tokens, and what follows it."""
    if "mixer" in rule:
        yield str(rule["mixer"])
    elif TensorClass.RECURRENT in classes:
        yield "recurrent"
    elif TensorClass.ATTENTION in classes:
        yield "attention"
    if TensorClass.ROUTED in classes:
        yield "MoE"
    elif TensorClass.DENSE in classes and rule.get("mixer") != "feed-forward":
        yield "dense"


def _aspects(rule: Mapping[str, object]) -> Iterator[str]:
    """Yield what else tells layers apart; numbers, which may differ in every layer, are left out."""
    for aspect, value in rule.items():
        match aspect, value:
            case ("mixer" | "ffn" | "recurrent", _) | ("part", "trunk"):
                pass
            case "part", str():
                yield "MTP"
            case "rope", bool():
                yield "rope" if value else "no rope"
            case _, True:
                yield aspect
            case _, str():
                yield f"{aspect} {value}"
