"""The cut options of ``plan`` and ``build``, as operations."""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003 - the signature is evaluated
from functools import wraps
from inspect import Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggufslice import ops
from ggufslice.cli.console import parsed
from ggufslice.selection import ExpertPlan
from ggufslice.units import parse_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["operations", "with_cut_options"]

_CUT = "Cut (applied in this order)"

Experts = Annotated[
    str | None,
    typer.Option(
        metavar="N|IDS|@FILE",
        rich_help_panel=_CUT,
        help="Keep the first N experts of each layer, those listed (0,3,8-11), or those of a plan (@plan.json).",
    ),
]
ExpertsBy = Annotated[
    str | None,
    typer.Option(
        metavar="IMATRIX",
        rich_help_panel=_CUT,
        help="Keep the experts that this importance matrix saw most; needs a count in --experts.",
    ),
]
ExpertUsed = Annotated[
    int | None, typer.Option(metavar="N", min=1, rich_help_panel=_CUT, help="How many experts a token goes through.")
]
Layers = Annotated[
    str | None,
    typer.Option(metavar="N|LIST", rich_help_panel=_CUT, help="Keep the first N layers, or those listed (0-11,92)."),
]
DropLayers = Annotated[str | None, typer.Option(metavar="LIST", rich_help_panel=_CUT, help="Drop these layers (12-92).")]
KeepTensors = Annotated[
    str | None,
    typer.Option(metavar="REGEX", rich_help_panel=_CUT, help="Keep only these tensors: a fragment, not meant to load."),
]
DropTensors = Annotated[
    str | None,
    typer.Option(metavar="REGEX", rich_help_panel=_CUT, help="Drop these tensors: a fragment, not meant to load."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=TYPE:VALUE",
        rich_help_panel=_CUT,
        help="Set metadata, such as general.name=str:tiny. Repeatable.",
    ),
]
Remove = Annotated[list[str] | None, typer.Option(metavar="KEY", rich_help_panel=_CUT, help="Remove metadata. Repeatable.")]


def operations(
    *,
    experts: Experts = None,
    experts_by: ExpertsBy = None,
    expert_used: ExpertUsed = None,
    layers: Layers = None,
    drop_layers: DropLayers = None,
    keep_tensors: KeepTensors = None,
    drop_tensors: DropTensors = None,
    set_: Set = None,
    remove: Remove = None,
) -> Iterator[ops.Op]:
    """Yield the operations that the options ask for: experts, used count, layers, tensors, metadata, in that order.

    Raises
    ------
    typer.BadParameter
        An option that can't be understood.
    """
    if experts_by is not None:
        yield ops.select_experts(ExpertPlan.from_imatrix(experts_by, parsed("--experts", _count, experts or "")))
    elif experts is not None:
        yield parsed("--experts", _select, experts)
    if expert_used is not None:
        yield ops.set_expert_used(expert_used)
    if layers is not None:
        yield parsed("--layers", lambda text: ops.keep_layers(_first_or_listed(text)), layers)
    if drop_layers is not None:
        yield parsed("--drop-layers", lambda text: ops.drop_layers(parse_numbers(text)), drop_layers)
    if keep_tensors is not None:
        yield parsed("--keep-tensors", ops.keep_tensors, keep_tensors)
    if drop_tensors is not None:
        yield parsed("--drop-tensors", ops.drop_tensors, drop_tensors)
    if set_:
        assignments = [parsed("--set", ops.parse_assignment, text) for text in set_]
        yield ops.set_metadata(
            {key: value for key, _, value in assignments}, types={key: type_ for key, type_, _ in assignments}
        )
    if remove:
        yield ops.remove_metadata(*remove)


def with_cut_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the cut options; it receives the operations as its argument ``cut``."""
    options = signature(operations, eval_str=True).parameters
    own = [p for p in signature(command, eval_str=True).parameters.values() if p.name != "cut"]

    @wraps(command)
    def wrapped(**given: Any) -> None:
        command(cut=list(operations(**{name: given.pop(name) for name in options})), **given)

    parameters = [*own, *options.values()]
    wrapped.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _count(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError(f"--experts-by needs a count here, such as 16, not {text!r}")
    return int(text)


def _first_or_listed(text: str) -> list[int] | range:
    """Read ``12`` as the first 12, anything else as a list."""
    return range(int(text)) if text.strip().isdigit() else parse_numbers(text)


def _select(text: str) -> ops.Op:
    if text.startswith("@"):
        return ops.select_experts(ExpertPlan.from_json(text[1:]))
    return ops.select_experts(int(text) if text.strip().isdigit() else parse_numbers(text))
