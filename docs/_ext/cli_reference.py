"""The directive ``cli-reference``: every command and option of the command line, read from the program itself."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import typer.main
from sphinx.util.docutils import SphinxDirective

from ggufslice.cli import make_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docutils import nodes
    from sphinx.application import Sphinx


class CliReference(SphinxDirective):
    """A section for each command."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """Generate Markdown, and parse it."""
        return self.parse_text_to_nodes("\n".join(markdown()), allow_section_headings=True)


def markdown() -> Iterator[str]:
    """Yield the lines."""
    program = typer.main.get_command(make_app())
    for name, command in program.commands.items():  # type: ignore[attr-defined]  # the application has commands
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        usage = " ".join([f"ggufslice {name}", *(_optional(p) for p in arguments), *(["[OPTIONS]"] if options else [])])
        yield from [f"## {name}", "", "```text", usage, "```", "", inspect.cleandoc(command.help or ""), ""]
        for parameter in arguments + options:
            yield from [f"`{_spelled(parameter)}`", f": {parameter.help or ''}{_default(parameter)}", ""]


def _optional(argument: Any) -> str:
    text = argument.metavar or argument.name.upper()
    return text if argument.required else f"[{text.strip('[]')}]"


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return ", ".join([*parameter.opts, *parameter.secondary_opts]) + value


def _default(parameter: Any) -> str:
    if parameter.default in (None, False, [], ()) or callable(parameter.default):
        return ""
    return f" Default: `{parameter.default}`."


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("cli-reference", CliReference)
    return {"parallel_read_safe": True}
