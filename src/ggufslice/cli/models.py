"""Commands on models: ``inspect``, ``plan``, ``build``, ``receipt``."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - the signature is evaluated
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ggufslice as gs
from ggufslice.cli.console import note, parsed, progress_bar, result
from ggufslice.cli.cut import with_cut_options
from ggufslice.io.sink import shard_paths
from ggufslice.layer_table import table
from ggufslice.ops import Op  # noqa: TC001 - the signature is evaluated
from ggufslice.receipt import Receipt
from ggufslice.summary import plain
from ggufslice.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from ggufslice.view import GGUF

__all__ = ["register"]

Src = Annotated[
    str, typer.Argument(metavar="SRC", help="A path, a folder of shards, or a URL (hf://org/repo/path, https://, s3://).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Turn refusals into warnings that the file and the receipt record.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (inspect, plan, build, receipt):
        app.command()(command)


def inspect(src: Src, *, as_json: AsJson = False) -> None:
    """Show what a model is, without fetching weights."""
    with gs.open(src) as model:
        result(json.dumps(plain(model)) if as_json else _details(model))


@with_cut_options
def plan(
    src: Src,
    *,
    cut: list[Op],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show what would survive a cut, in bytes and requests, and the licence."""
    with gs.open(src) as model:
        planned = model.pipe(*cut).plan(force=force)
        result(planned.to_json() if as_json else planned)


@with_cut_options
def build(
    src: Src,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to make.")],
    *,
    cut: list[Op],
    force: Force = False,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="The most requests at a time.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    no_resume: Annotated[bool, typer.Option("--no-resume", help="Start afresh, not where a killed run stopped.")] = False,
    max_shard_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Split the result, such as 40GB.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a cut: fetch exactly the bytes that survive. Leaves the receipt beside it, as OUT.receipt.json."""
    size = None if max_shard_size is None else parsed("--max-shard-size", parse_bytes, max_shard_size)
    with gs.open(src) as model, progress_bar() as bar:
        made = model.pipe(*cut).write(
            out, jobs=jobs, overwrite=overwrite, resume=not no_resume, progress=bar, max_shard_size=size, force=force
        )
    beside = out.with_name(f"{out.name}.receipt.json")
    made.save(beside)
    result(made.to_json() if as_json else made)
    files = shard_paths(out, bar.n_files)
    note(f"wrote {' to '.join(map(str, files if len(files) < 3 else files[:: len(files) - 1]))} and {beside}")


def receipt(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A cut, or what llama-quantize made from one.")],
    *,
    against: Annotated[
        str | None, typer.Option(metavar="SRC", help="The first model, for a file that doesn't say where it comes from.")
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(metavar="COUNT", help="Divide by this parameter count, such as an advertised 2.8e12.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what is left of a model: both bits-per-parameter figures, and what is missing."""
    count = None if parameters is None else parsed("--parameters", parse_count, parameters)
    made = Receipt.of(file, against=against, parameters=count)
    result(made.to_json() if as_json else made)


def _details(model: GGUF) -> str:
    """Return the model in a few lines, its weights by layer and class, in sum by class and type, its metadata."""
    metadata = model.metadata
    keys = [f"{key} ({metadata.type(key)}) = {_short(metadata[key])}" for key in metadata]
    return "\n".join([repr(model), "", *table(model), "", *Receipt.of(model).table(), "", *keys])


def _short(value: Any, limit: int = 100) -> str:
    text = f"{len(value)} elements" if isinstance(value, list) and len(value) > limit else json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
