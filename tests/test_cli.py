"""The command line: what it prints where, its exit codes, and that it does what the library does."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import ggufslice as gs
from ggufslice import cli
from ggufslice.testing import RangeServer, build_gguf, split_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

LAYERS, EXPERTS = 4, 8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of 4 layers of 8 experts, of which 2 are used, in three shards."""
    metadata = {"general.name": "Tiny", "general.license": "mit"}
    for i, data in enumerate(split_gguf(*synthetic(layers=LAYERS, experts=EXPERTS, used=2, metadata=metadata), 3), 1):
        (tmp_path / f"tiny-{i:05d}-of-00003.gguf").write_bytes(data)
    return tmp_path / "tiny-00001-of-00003.gguf"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command; return its exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert "\x1b" not in out + err  # no colours where nobody looks
        return code, out, err

    return call


Run = Any  # Callable[..., tuple[int, str, str]]


def test_inspect_shows_the_model(run: Run, model: Path) -> None:
    code, out, err = run("inspect", model)
    assert (code, err) == (0, "")
    assert out.startswith(repr(gs.open(model)))
    assert re.search(r"^routed experts +F32 ", out, re.MULTILINE)
    assert "qwen3moe.expert_count (u32) = 8\n" in out
    tokens = gs.open(model).metadata["tokenizer.ggml.tokens"]
    assert f"tokenizer.ggml.tokens (arr[str]) = {len(tokens)} elements\n" in out
    values = json.loads(run("inspect", model.parent, "--json")[1])
    assert values["n_params"] == gs.open(model).n_params
    assert [t["name"] for t in values["tensors"]] == list(gs.open(model))
    assert values["metadata"]["general.name"] == {"type": "str", "value": "Tiny"}
    assert len(values["sources"]) == 3


def test_plan_shows_what_would_survive_and_writes_nothing(run: Run, model: Path) -> None:
    before = sorted(model.parent.iterdir())
    cut = gs.open(model).pipe(gs.select_experts([0, 3]), gs.set_expert_used(1), gs.keep_layers([0, 2]))
    options = ("--experts", "0,3", "--expert-used", 1, "--layers", "0,2")
    code, out, err = run("plan", model, *options)
    assert (code, out, err) == (0, f"{cut.plan()}\n", "")
    assert run("plan", model, *options, "--json")[1] == cut.plan().to_json()
    assert sorted(model.parent.iterdir()) == before


CUTS: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...] = (
    ((), ()),
    (("--experts", "3"), (gs.select_experts(3),)),
    (("--experts", "5-6,2"), (gs.select_experts([5, 6, 2]),)),
    (("--experts", "4-4", "--expert-used", "1"), (gs.select_experts([4]), gs.set_expert_used(1))),
    (("--layers", "2"), (gs.keep_layers(range(2)),)),
    (("--layers", "0-1,3"), (gs.keep_layers([0, 1, 3]),)),
    (("--drop-layers", "1-2"), (gs.drop_layers([1, 2]),)),
    (("--keep-tensors", r"blk\.1\..*"), (gs.keep_tensors(r"blk\.1\..*"),)),
    (("--drop-tensors", r".*_norm\.weight"), (gs.drop_tensors(r".*_norm\.weight"),)),
    (
        ("--set", "general.name=str:Other", "--set", "a.b=arr[u32]:[1, 2]", "--remove", "general.license"),
        (
            gs.set_metadata({"general.name": "Other", "a.b": [1, 2]}, types={"general.name": "str", "a.b": "arr[u32]"}),
            gs.remove_metadata("general.license"),
        ),
    ),
    (  # the order is fixed, whatever the order on the command line
        ("--remove", "general.license", "--layers", "1", "--expert-used", "1", "--experts", "2"),
        (gs.select_experts(2), gs.set_expert_used(1), gs.keep_layers(range(1)), gs.remove_metadata("general.license")),
    ),
)


@pytest.mark.parametrize(("options", "ops"), CUTS, ids=str)
def test_build_writes_what_the_library_writes(run: Run, model: Path, options: tuple[str, ...], ops: tuple[Any, ...]) -> None:
    out, other = model.parent / "out.gguf", model.parent / "other.gguf"
    code, printed, err = run("build", model, out, *options)
    assert code == 0, err
    receipt = gs.open(model).pipe(*ops).write(other)
    assert out.read_bytes() == other.read_bytes()
    assert printed.splitlines()[-3:] == str(receipt).splitlines()[-3:]
    beside = json.loads((model.parent / "out.gguf.receipt.json").read_text())
    assert beside["file_bytes"] == out.stat().st_size
    assert beside["missing"] == receipt.missing
    assert err == f"wrote {out} and {out}.receipt.json\n"


def test_experts_are_named_by_a_plan_or_an_importance_matrix(run: Run, model: Path) -> None:
    folder = model.parent
    (folder / "plan.json").write_text(json.dumps({str(i): [i, i + 2] for i in range(LAYERS)}))
    assert run("build", model, folder / "a.gguf", "--experts", f"@{folder / 'plan.json'}")[0] == 0
    assert gs.open(folder / "a.gguf").metadata["ggufslice.kept.experts"] == [0, 2, 1, 3, 2, 4, 3, 5]
    tensors = []
    for block in range(LAYERS):
        counts = [float(e in (block, 7)) for e in range(EXPERTS)]
        for part in ("gate", "up", "down"):
            name = f"blk.{block}.ffn_{part}_exps.weight"
            data = struct.pack(f"<{EXPERTS}f", *counts)
            tensors.append(gs.testing.TensorSpec(f"{name}.in_sum2", (32, EXPERTS)))
            tensors.append(gs.testing.TensorSpec(f"{name}.counts", (1, EXPERTS), data=data))
    keys = {"general.type": "imatrix", "imatrix.datasets": ["x"], "imatrix.chunk_count": 1, "imatrix.chunk_size": 512}
    (folder / "imatrix.gguf").write_bytes(build_gguf(keys, tensors))
    code, _, err = run("build", model, folder / "b.gguf", "--experts-by", folder / "imatrix.gguf", "--experts", 2)
    assert code == 0, err
    assert gs.open(folder / "b.gguf").metadata["ggufslice.kept.experts"] == [0, 7, 1, 7, 2, 7, 3, 7]


def test_an_existing_file_stays_unless_told_otherwise(run: Run, model: Path) -> None:
    out = model.parent / "out.gguf"
    out.write_bytes(b"precious")
    code, printed, err = run("build", model, out)
    assert (code, printed) == (1, "")
    assert err.startswith("ggufslice: ")
    assert str(out) in err
    assert out.read_bytes() == b"precious"
    assert not (model.parent / "out.gguf.receipt.json").exists()
    assert run("build", model, out, "--overwrite", "--no-resume", "--jobs", 2)[0] == 0
    assert len(gs.open(out)) == len(gs.open(model))


def test_a_result_is_split_into_shards(run: Run, model: Path) -> None:
    code, printed, err = run("build", model, model.parent / "parts.gguf", "--max-shard-size", "200kB", "--json")
    assert code == 0, err
    assert json.loads(printed)["tensor_bytes"] == gs.open(model).tensor_bytes
    shards = sorted(model.parent.glob("parts-*-of-*.gguf"))
    assert len(shards) > 1
    assert all(shard.stat().st_size <= 200_000 for shard in shards)
    assert f"wrote {shards[0]} to {shards[-1]} and " in err
    assert (model.parent / "parts.gguf.receipt.json").exists()


def test_a_refused_cut_can_be_forced_and_says_so(run: Run, model: Path) -> None:
    out = model.parent / "out.gguf"
    code, _, err = run("plan", model, "--experts", 1)
    assert code == 1
    assert err.startswith(f"ggufslice: {model.name}: qwen3moe.expert_used_count = 2, but a layer keeps 1 expert;")
    assert "(--expert-used 1)" in err
    code, printed, _ = run("build", model, out, "--experts", 1, "--force")
    assert code == 0
    assert "* Forced: " in printed
    assert "ggufslice.forced" in gs.open(out).metadata


def test_receipts_take_a_first_model_or_a_stated_count(run: Run, model: Path) -> None:
    bare = model.parent / "bare.gguf"
    bare.write_bytes(build_gguf(*synthetic(layers=1, experts=EXPERTS, used=2)))
    unknown = run("receipt", bare)[1].splitlines()[-3:]
    assert unknown[0].startswith("DECLARED bits/param  : unknown")
    assert unknown[2] == "weight volume missing: unknown"
    left = gs.open(bare).n_params / gs.open(model).n_params
    assert run("receipt", bare, "--against", model)[1].splitlines()[-1] == f"weight volume missing: {100 * (1 - left):.1f}%"
    values = json.loads(run("receipt", bare, "--parameters", "2.8T", "--json")[1])
    assert values["source_parameters"] == 2_800_000_000_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Usage"),
        (("slice",), "No such command"),
        (("plan",), "Missing argument"),
        (("plan", "SRC", "--experts", "many"), "--experts"),
        (("plan", "SRC", "--experts", "0"), "--experts"),
        (("plan", "SRC", "--experts", "1,1"), "--experts"),
        (("plan", "SRC", "--experts-by", "imatrix.gguf"), "--experts"),
        (("plan", "SRC", "--expert-used", "0"), "--expert-used"),
        (("plan", "SRC", "--layers", "5-2"), "--layers"),
        (("plan", "SRC", "--drop-layers", "x"), "--drop-layers"),
        (("plan", "SRC", "--keep-tensors", "("), "--keep-tensors"),
        (("plan", "SRC", "--set", "general.name"), "--set"),
        (("plan", "SRC", "--set", "a=u8:300"), "--set"),
        (("build", "SRC", "OUT", "--max-shard-size", "big"), "--max-shard-size"),
        (("build", "SRC", "OUT", "--jobs", "0"), "--jobs"),
        (("receipt", "SRC", "--parameters", "lots"), "--parameters"),
    ],
)
def test_usage_errors_end_with_2_and_name_the_option(run: Run, model: Path, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run(*(str(model) if a == "SRC" else a for a in arguments))
    assert code == 2
    assert said in out + err
    assert not Path("OUT").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("inspect", "nowhere.gguf"), "nowhere.gguf"),
        (("inspect", "text.gguf"), "not a GGUF"),
        (("receipt", "nowhere.gguf"), "nowhere.gguf"),
        (("plan", "SRC", "--layers", "3-9"), "layer"),
        (("plan", "SRC", "--experts", "9"), "8 experts"),
        (
            ("plan", "SRC", "--experts", "@nowhere.json"),
            "nowhere.json: the plan of experts can't be read (No such file or directory); expected",
        ),
        (("plan", "SRC", "--remove", "general.nam"), "did you mean 'general.name'"),
        (("plan", "SRC", "--keep-tensors", "nothing"), "nothing"),
        (("build", "SRC", "nowhere/out.gguf"), "nowhere"),
        (("inspect", "http://127.0.0.1:9/model.gguf"), "127.0.0.1:9"),
    ],
)
def test_failures_end_with_1_and_one_message(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(model.parent)
    Path("text.gguf").write_text("just text, long enough to have a header in it")
    code, out, err = run(*(str(model) if a == "SRC" else a for a in arguments))
    assert (code, out) == (1, "")
    assert err.startswith("ggufslice: ")
    assert said in err


def test_a_files_names_do_not_drive_the_terminal(run: Run, tmp_path: Path) -> None:
    name = b"\x1b]0;owned\x07\xff\xc3\xa9|\x9b"  # an escape sequence, bytes that aren't UTF-8, a letter with an accent
    (tmp_path / "m.gguf").write_bytes(build_gguf(*synthetic(layers=1, metadata={"general.name": name})))
    code, out, err = run("build", tmp_path / "m.gguf", tmp_path / "cut.gguf", "--experts", 4)
    assert code == 0, err
    assert "\\x1b]0;owned\\x07\\udcff\u00e9|\\udc9b (qwen3moe)" in out
    gs.Receipt.of(tmp_path / "cut.gguf").save(tmp_path / "receipt.txt")
    assert gs.open(tmp_path / "cut.gguf").metadata.raw("general.name").endswith(name)


def test_the_version(run: Run) -> None:
    assert run("--version") == (0, f"ggufslice {gs.__version__}\n", "")


def test_a_shell_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "ggufslice"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ggufslice "$@"\n')
    program.chmod(0o755)
    lines = (  # as bash asks when TAB is pressed; the program finds out itself which shell that is
        'script=$(ggufslice --show-completion); eval "$script"',
        "COMP_WORDS=(ggufslice ins) COMP_CWORD=1; _ggufslice_completion ggufslice; echo ${COMPREPLY[@]}",
        "COMP_WORDS=(ggufslice plan --expert-) COMP_CWORD=2; _ggufslice_completion ggufslice; echo ${COMPREPLY[@]}",
    )
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=False, env=env)
    assert (done.stdout.splitlines(), done.stderr) == (["inspect", "--expert-used"], "")


def test_a_group_of_commands_is_a_module_with_register(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    group: Any = ModuleType("a_group")

    def broken() -> None:
        """Break."""
        raise ZeroDivisionError("a bug")

    def register(app: typer.Typer) -> None:
        app.command()(broken)

    group.register = register
    monkeypatch.setitem(sys.modules, "a_group", group)
    monkeypatch.setattr(cli, "GROUPS", (*cli.GROUPS, "a_group"))
    assert run("broken") == (1, "", "ggufslice: unexpected ZeroDivisionError: a bug\n")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_names_it(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from ggufslice.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "inspect", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ggufslice: this needs the package {missing!r}: pip install 'ggufslice[cli]'\n"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ggufslice", *map(str, arguments)]


def test_a_terminal_shows_progress_and_stdout_stays_clean(model: Path) -> None:
    out = model.parent / "out.gguf"
    ours, theirs = pty.openpty()
    with subprocess.Popen(command("build", model, out), stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = bytearray()
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # how Linux says that the other end is closed
            pass
        printed = process.stdout.read().decode() if process.stdout else ""
    os.close(ours)
    assert process.returncode == 0
    assert b"writing" in seen
    assert b"\x1b[" in seen
    assert "\x1b" not in printed
    assert printed.splitlines()[-1].startswith("weight volume missing: ")


def test_an_interrupted_build_ends_with_130_and_goes_on(tmp_path: Path) -> None:
    metadata, tensors = synthetic(layers=4, experts=16, width=128, expert_ffn=128)
    data = build_gguf(metadata, tensors)
    assert len(data) > 4 << 20  # the header is read with the first MiB
    # The first reply with weights never ends; those of later runs do.
    path = "~stall:n=100000,after=1,times=1/model.gguf"
    with RangeServer({"model.gguf": data}) as server:
        url, out = server.url(path), tmp_path / "out.gguf"
        with subprocess.Popen(
            command("build", url, out, "--jobs", 1), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as first:
            deadline = time.monotonic() + 60
            while len(server.requests) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            first.send_signal(signal.SIGINT)
            printed, said = first.communicate(timeout=60)
        assert (first.returncode, printed) == (130, b"")
        assert said.startswith(b"ggufslice: interrupted")
        assert b"Traceback" not in said
        assert not out.exists()
        assert list(tmp_path.iterdir()) != []  # what was fetched
        again = subprocess.run(command("build", url, out), capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr
    assert out.read_bytes() == data
