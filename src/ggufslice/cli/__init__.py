"""The command line: a thin layer over the library.

A group of commands is a module with ``register(app)``; `GROUPS` lists them in the order of ``--help``. Results go to
stdout, progress and messages to stderr. Exit codes: 0, 1 (failed), 2 (usage), 130 (interrupted; the same command goes on
where it stopped).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

import ggufslice
from ggufslice.cli.console import complain
from ggufslice.errors import GGUFSliceError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GROUPS", "main", "make_app"]

GROUPS = (
    "ggufslice.cli.models",
    "ggufslice.cli.measure",
    "ggufslice.cli.demo",
)

FAILED, USAGE, INTERRUPTED = 1, 2, 130


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("interrupted; what was fetched is kept: the same command goes on from there")
            raise typer.Exit(INTERRUPTED) from None


def _version(wanted: bool) -> None:  # noqa: FBT001 - the signature that typer calls
    if wanted:
        typer.echo(f"ggufslice {ggufslice.__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - handled by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Cut any GGUF down to the experts, layers and tensors that you name, and say what is left."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)


def make_app() -> typer.Typer:
    """Return the application with all groups of commands."""
    app = typer.Typer(name="ggufslice", cls=_Group, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_root)
    for group in GROUPS:
        import_module(group).register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        Instead of ``sys.argv[1:]``.

    Returns
    -------
    int
        The exit code; no error leaves as an exception.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # text that isn't UTF-8, or a plain terminal
    try:
        make_app()(args=sys.argv[1:] if arguments is None else list(arguments), prog_name="ggufslice")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else FAILED
    except (GGUFSliceError, OSError, ValueError, LookupError) as error:
        complain(str(error) or type(error).__name__)
    except Exception as error:  # noqa: BLE001 - a user gets a sentence, whatever goes wrong
        complain(f"unexpected {type(error).__name__}: {error}")
    return FAILED
