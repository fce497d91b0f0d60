"""``ggufslice`` and ``python -m ggufslice``."""

from __future__ import annotations

import sys

from ggufslice.errors import MissingExtraError

__all__ = ["main"]


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        import rich  # noqa: F401, PLC0415 - only to learn whether the extra is installed
        import typer  # noqa: F401, PLC0415
    except ImportError as error:
        sys.stderr.write(f"ggufslice: {MissingExtraError.of('cli', error.name or 'typer')}\n")
        return 1
    from ggufslice.cli import main as run  # noqa: PLC0415 - needs the extra

    return run()


if __name__ == "__main__":
    sys.exit(main())
