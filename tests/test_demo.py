"""The demo: all of it, as the README's first block runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo with nothing on PATH and `folder` for temporary files."""
    env = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY")}
    return subprocess.run(
        [sys.executable, "-m", "ggufslice", "demo", *options],
        env=env | {"PATH": "", "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_demo_cuts_a_model_of_kimi_k3s_shape(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    for shown in (
        "$ ggufslice inspect http://127.0.0.1",
        "$ ggufslice plan ",
        "$ ggufslice build ",
        "$ ggufslice receipt ",
        "[0-11] of 93",
        "16 of 896",
        "2 used a token",
    ):
        assert shown in out
    labels = [line.split(":")[0] for line in out.splitlines()[-3:]]
    assert labels == ["DECLARED bits/param  ", "REAL bits/param      ", "weight volume missing"]
    assert list(tmp_path.iterdir()) == []  # it cleans up


def test_the_demo_fetches_what_survives_and_prints_json_alone(tmp_path: Path) -> None:
    done = demo(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["origin"]["kept_layers"] == list(range(12))
    assert values["origin"]["source"]["expert_count"] == 896
    assert values["expert_count"] == 16
    assert values["never_requested"] > 0.9 * values["origin"]["source"]["tensor_bytes"]
    assert values["missing"] > 0.9
    assert values["transfer"]["wasted"] == 0
