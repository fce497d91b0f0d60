"""Programs that stand in for llama.cpp's and misbehave."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

HELP = "usage: {name} [options]\n  --version  version\n  --list-devices  devices\n"

_SCRIPT = """\
#!{python}
import json, os, signal, sys, time
NAME = {name!r}
if "--help" in sys.argv:
    print({help!r})
    sys.exit({help_code})
if "--version" in sys.argv:
    print({version!r}, file=sys.stderr)
    sys.exit(0)
if "--list-devices" in sys.argv:
    print("Available devices:")
    print({devices!r})
    sys.exit(0)
{body}
"""


def fake(
    folder: Path,
    name: str,
    body: str,
    *,
    help_text: str | None = None,
    help_code: int = 0,
    version: str = "version: 1.2 (build 7, commit abc)\nbuilt with a compiler",
    devices: str = "  (none)",
) -> Path:
    """Write a program of that name which runs `body`, Python that has json, os, signal, sys and time."""
    path = folder / name
    path.write_text(
        _SCRIPT.format(
            python=sys.executable,
            name=name,
            help=HELP.format(name=name) if help_text is None else help_text,
            help_code=help_code,
            version=version,
            devices=devices,
            body=textwrap.dedent(body),
        )
    )
    path.chmod(0o755)
    return path


def gone(pid: int) -> bool:
    """Wait until a process has ended, reaped or not; a killed one needs a moment."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False
