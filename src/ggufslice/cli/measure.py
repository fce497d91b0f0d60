"""Commands that drive llama.cpp, run recipes and verify: ``quantize``, ``bench``, ``sample``, ``ladder``, ``card``, ``run``,
``verify``.
"""  # noqa: D205 - one sentence

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from ggufslice.cli.console import note, parsed, progress_bar, result
from ggufslice.cli.cut import with_cut_options
from ggufslice.ops import Op, keep_layers, select_experts, set_expert_used

if TYPE_CHECKING:
    from ggufslice.bench import Results
    from ggufslice.recipe import Recipe, Rung

__all__ = ["register"]

# bench, recipes and pictures are imported by the commands that need them: the others start without.
# ruff: noqa: PLC0415

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file; of shards, the first.")]
LlamaDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="llama.cpp's programs; else $GGUFSLICE_LLAMA_DIR, the extra llama, PATH."),
]
Ngl = Annotated[int, typer.Option("--ngl", metavar="N", min=0, help="Layers to offload; no matter without a GPU.")]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="Use this device, or none for the CPU alone; fail if it isn't used.")
]
Prompt = Annotated[str, typer.Option(help="What the model is to go on from.")]
Bandwidth = Annotated[
    float | None, typer.Option(metavar="GB/S", help="What the machine's memory can deliver: adds the share of it.")
]
PromptTokens = Annotated[int, typer.Option("-p", metavar="N", min=0, help="Tokens of the measured prompt.")]
Generated = Annotated[int, typer.Option("-n", metavar="N", min=0, help="Tokens to generate.")]
Repetitions = Annotated[int, typer.Option("-r", metavar="N", min=1, help="Repetitions.")]
AllowRequantize = Annotated[bool, typer.Option("--allow-requantize", help="Quantize tensors that are quantized already.")]
TensorType = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN=TYPE", help="Another type for these tensors. Repeatable.")
]
Imatrix = Annotated[Path | None, typer.Option(metavar="FILE", help="An importance matrix in the GGUF form.")]

_PROMPT = "Write one sentence about quantization:"
_RUNG = re.compile(r"(\d+)(?:x(\d+)(?:x(\d+))?)?")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (verify, run, quantize, bench, sample, ladder, card):
        app.command()(command)


def verify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A cut; a path or URL.")],
    *,
    source: Annotated[str | None, typer.Option(metavar="SRC", help="Its source, where the file doesn't say it.")] = None,
    lock: Annotated[Path | None, typer.Option(metavar="LOCK", help="Compare checksums with a lock; fetch nothing.")] = None,
    sample: Annotated[int, typer.Option(metavar="N", min=1, help="Compare N random chunks of at most 1 MiB.")] = 64,
    full: Annotated[bool, typer.Option("--full", help="Compare all bytes.")] = False,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Repeat the random choice of an earlier run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a cut with its source, byte for byte, or with its lock. Exit code 1 where they differ."""
    from ggufslice.verify import verify as compare

    if lock is not None and (source is not None or full):
        raise typer.BadParameter("a lock is compared without the source", param_hint="--lock")
    found = compare(file, source=source, lock=lock, sample=sample, full=full, seed=seed)
    result(json.dumps(attrs.asdict(found) | {"ok": found.ok}, indent=2) if as_json else found)
    if not found.ok:
        raise typer.Exit(1)


def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="A recipe.")],
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where files go; else a folder named after the recipe.")
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="SRC", help="Another place of the same source.")] = None,
    lock: Annotated[
        Path | None, typer.Option(metavar="LOCK", help="The lock; else beside the recipe, with the suffix .lock.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="The most requests at a time.")] = None,
    llama_dir: LlamaDir = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe from source to card. What an earlier run has finished isn't done again."""
    from ggufslice.recipe import load_recipe

    loaded = load_recipe(recipe)
    if source is not None:
        loaded = attrs.evolve(loaded, source=source if "://" in source else str(Path(source).absolute()))
    folder = out or recipe.with_suffix("")
    results = _run(loaded, folder, lock or recipe.with_suffix(".lock"), jobs, llama_dir)
    _show(results, folder, as_json=as_json)


def quantize(
    src: Model,
    dst: Annotated[Path, typer.Argument(metavar="OUT", help="The file to make.")],
    type: Annotated[str, typer.Argument(metavar="TYPE", help="Such as Q1_0 or Q4_K_M.")],  # noqa: A002 - llama-quantize's word
    *,
    allow_requantize: AllowRequantize = False,
    tensor_type: TensorType = None,
    imatrix: Imatrix = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    llama_dir: LlamaDir = None,
    as_json: AsJson = False,
) -> None:
    """Quantize with llama-quantize, and check that the result is what was asked for."""
    from ggufslice.bench import Llama
    from ggufslice.bench import quantize as make

    made = make(
        src,
        dst,
        type,
        allow_requantize=allow_requantize,
        tensor_types=_tensor_types(tensor_type),
        imatrix=imatrix,
        overwrite=overwrite,
        llama=Llama(llama_dir),
    )
    result(json.dumps(attrs.asdict(made), indent=2) if as_json else made)


def bench(
    model: Model,
    *,
    p: PromptTokens = 128,
    n: Generated = 128,
    r: Repetitions = 3,
    ngl: Ngl = 99,
    device: Device = None,
    bandwidth: Bandwidth = None,
    llama_dir: LlamaDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure prefill and decode speed with llama-bench, and the weight traffic of decoding."""
    from ggufslice.bench import Llama, Machine, traffic
    from ggufslice.bench import bench as measure
    from ggufslice.receipt import Receipt

    llama = Llama(llama_dir)
    machine = Machine.of(llama)
    made = measure(model, p=p, n=n, r=r, ngl=ngl, device=device, llama=llama)
    token_bytes = Receipt.of(model).token_bytes
    moved = traffic(token_bytes, made.decode.per_second) if made.decode else None
    if as_json:
        figures = {"token_bytes": token_bytes, "traffic": moved, "machine": attrs.asdict(machine)}
        result(json.dumps(attrs.asdict(made) | figures, indent=2))
        return
    lines = [f"prefill  {made.prefill or 'not measured'}", f"decode   {made.decode or 'not measured'}"]
    if moved is not None:
        share = f", {moved / bandwidth:.1%} of {bandwidth:g} GB/s" if bandwidth else ""
        lines.append(f"traffic  {moved:.3g} GB/s of weights{share}")
    lines += [f"on       {machine.words}; backends {made.backends}; load before {machine.load}", f"flags    {made.flags}"]
    result("\n".join(lines + [f"warning  {text}" for text in made.warnings]))


def sample(
    model: Model,
    *,
    prompt: Prompt = _PROMPT,
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Tokens to generate.")] = 48,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token each time.")] = 0.0,
    ngl: Ngl = 99,
    llama_dir: LlamaDir = None,
    as_json: AsJson = False,
) -> None:
    """Let llama-server go on from a prompt, and judge whether there is any output to speak of."""
    from ggufslice.bench import Llama, judge, serve

    with serve(model, ngl=ngl, llama=Llama(llama_dir)) as server:
        made = server.sample(prompt, n, temperature=temperature)
    gate = judge(made)
    if as_json:
        result(json.dumps({"sample": attrs.asdict(made), "gate": attrs.asdict(gate)}, indent=2))
        return
    result("\n".join([made.text, "", f"gate: {gate.verdict}", *(f"  {check}" for check in gate.checks)]))


@with_cut_options
def ladder(  # noqa: PLR0913 - an argument for each option
    src: Annotated[str, typer.Argument(metavar="SRC", help="A path, a folder of shards, or a URL.")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    rungs: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Layers of each rung, with experts and used ones where they change: 93,24,12x8x2."
        ),
    ],
    *,
    cut: list[Op],
    to_type: Annotated[
        str | None, typer.Option("--quantize", metavar="TYPE", help="Quantize each rung, such as to Q1_0.")
    ] = None,
    allow_requantize: AllowRequantize = False,
    tensor_type: TensorType = None,
    imatrix: Imatrix = None,
    p: PromptTokens = 128,
    n: Generated = 128,
    r: Repetitions = 3,
    ngl: Ngl = 99,
    device: Device = None,
    prompt: Prompt = _PROMPT,
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="Measure perplexity on this text.")] = None,
    ctx: Annotated[int, typer.Option(metavar="N", min=8, help="Tokens of a chunk of the text.")] = 512,
    chunks: Annotated[int | None, typer.Option(metavar="N", min=1, help="The most chunks of the text.")] = None,
    bandwidth: Bandwidth = None,
    parameters: Annotated[str | None, typer.Option(metavar="COUNT", help="Divide by this, such as 2.8e12.")] = None,
    name: Annotated[str | None, typer.Option(help="Title; else the source's name.")] = None,
    llama_dir: LlamaDir = None,
    as_json: AsJson = False,
) -> None:
    """Cut, quantize, measure and sample a source at several depths: the same weights, less and less of them.

    The cut options are applied once, the rungs to the result. What an earlier run has finished isn't done again.
    """
    from ggufslice.recipe import BenchSettings, Quantization, Recipe
    from ggufslice.units import parse_count

    absolute = src if "://" in src else str(Path(src).absolute())
    title = name or re.sub(r"-\d{5}-of-\d{5}$", "", Path(src.rstrip("/").rpartition("/")[2]).stem)
    recipe = Recipe(
        name=title,
        source=absolute,
        ops=cut,
        output=re.sub(r"[^\w.+-]", "-", title) + ".gguf",
        parameters=None if parameters is None else parsed("--parameters", parse_count, parameters),
        rungs=parsed("--rungs", _rungs, rungs),
        quantization=None
        if to_type is None
        else Quantization(
            type=to_type,
            allow_requantize=allow_requantize,
            tensor_types=_tensor_types(tensor_type),
            imatrix=None if imatrix is None else str(imatrix.absolute()),
        ),
        bench=BenchSettings(
            prompt_tokens=p,
            generated_tokens=n,
            repetitions=r,
            ngl=ngl,
            device=device,
            prompt=prompt,
            text=None if text is None else str(text.absolute()),
            ctx=ctx,
            chunks=chunks,
            bandwidth=bandwidth,
        ),
    )
    _show(_run(recipe, out, None, None, llama_dir), out, as_json=as_json)


def card(
    results: Annotated[Path, typer.Argument(metavar="RESULTS.json", help="What run or ladder wrote.")],
    out: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Files to make: .svg or .png.")],
    *,
    step: Annotated[str | None, typer.Option(metavar="RUNG", help="Which rung; else the last.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the card of a results file."""
    from ggufslice.bench import Results
    from ggufslice.bench.pictures import draw_card

    for path in out:
        if path.suffix not in {".svg", ".png"}:
            raise typer.BadParameter(f"pictures are .svg or .png, not {path.name!r}", param_hint="OUT")
    draw_card(Results.load(results), *out, step=step)
    if as_json:
        result(json.dumps({"files": [str(path) for path in out]}))
    note(f"wrote {', '.join(map(str, out))}")


def _run(recipe: Recipe, folder: Path, lock: Path | None, jobs: int | None, llama_dir: Path | None) -> Results:
    from ggufslice.bench import Llama, run_recipe

    with progress_bar() as bar:
        return run_recipe(recipe, folder, lock=lock, llama=Llama(llama_dir), jobs=jobs, progress=bar, say=note)


def _show(results: Results, folder: Path, *, as_json: bool) -> None:
    """Print the results, and leave table, README and pictures beside them."""
    from ggufslice.bench import markdown, readme, text
    from ggufslice.errors import MissingExtraError

    for file, written in (("ladder.md", markdown(results)), ("README.md", readme(results))):
        (folder / file).write_text(written, encoding="utf-8", errors="backslashreplace")
    try:
        from ggufslice.bench.pictures import draw_card, draw_ladder

        draw_card(results, folder / "card.svg", folder / "card.png")
        if len(results.steps) > 1:
            draw_ladder(results, folder / "ladder.svg", folder / "ladder.png")
    except MissingExtraError as error:
        note(f"no pictures: {error}")
    result(results.to_json() if as_json else text(results))
    note(f"everything is in {folder}")


def _rungs(text: str) -> list[Rung]:
    from ggufslice.recipe import Rung

    rungs = []
    for part in text.split(","):
        match = _RUNG.fullmatch(part.strip())
        if not match:
            raise ValueError(f"{part.strip()!r} is no rung: expected layers, or layers x experts x used, such as 12x16x2")
        layers, experts, used = (int(group) if group else None for group in match.groups())
        steps: list[Op] = [keep_layers(layers)]
        steps += [select_experts(experts)] if experts else []
        steps += [set_expert_used(used)] if used else []
        rungs.append(Rung(f"L{layers}" + (f"-E{experts}" if experts else "") + (f"-U{used}" if used else ""), steps))
    return rungs


def _tensor_types(options: list[str] | None) -> dict[str, str]:
    def split(text: str) -> tuple[str, str]:
        pattern, equals, name = text.rpartition("=")
        if not (pattern and equals and name):
            raise ValueError(f"expected PATTERN=TYPE, such as ffn_down=q8_0, got {text!r}")
        return pattern, name

    return dict(parsed("--tensor-type", split, text) for text in options or ())
