"""Run a recipe: cut, quantize, measure, sample and judge each rung of its ladder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import ggufslice
from ggufslice._records import load, plain
from ggufslice.bench._binaries import Llama
from ggufslice.bench._gate import judge
from ggufslice.bench._machine import Machine
from ggufslice.bench._perplexity import perplexity
from ggufslice.bench._quantize import quantize
from ggufslice.bench._results import Fetched, Figures, Results, Step
from ggufslice.bench._server import serve
from ggufslice.bench._speed import bench
from ggufslice.errors import FormatError
from ggufslice.io.open import open as open_model
from ggufslice.lockfile import Lock
from ggufslice.provenance import source_refs
from ggufslice.receipt import Receipt
from ggufslice.recipe import BenchSettings, Recipe, Rung
from ggufslice.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from ggufslice.io.progress import Progress
    from ggufslice.view import GGUF

__all__ = ["run_recipe"]


def _silent(_: str) -> None:
    pass


def run_recipe(
    recipe: Recipe,
    folder: str | PathLike[str],
    *,
    lock: str | PathLike[str] | None = None,
    llama: Llama | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = _silent,
) -> Results:
    """Run a recipe from its source to measurements.

    Parameters
    ----------
    recipe
        What to do.
    folder
        Where the files go; it is made. What an earlier run finished there, of the same inputs, isn't done again.
    lock
        A file. Where it is there, the source must be the one of the lock, and the cut must come out the same; else it is
        written. Of a recipe without common operations each rung has a lock of its own, its name before the suffix.
    llama
        Where llama.cpp's programs are.
    jobs
        The most requests at a time.
    progress
        Told about the transfer.
    say
        Told in words what is being done; the licence of the source comes first, before anything is fetched.

    Returns
    -------
    Results
        Also written to ``results.json``.

    Raises
    ------
    UnsupportedCutError, SourceError, OutputError
        As of `GGUF.write`, and where source or result aren't those of the lock.
    BenchError
        A program of llama.cpp is missing or failed. Steps that were finished stay.
    """
    return _Run(recipe, Path(folder), llama or Llama(), None if lock is None else Path(lock), jobs, progress, say).all()


@attrs.frozen
class _Run:
    recipe: Recipe
    folder: Path
    llama: Llama
    lock: Path | None
    jobs: int | None
    progress: Progress | None
    say: Callable[[str], None]

    def all(self) -> Results:
        recipe = self.recipe
        self.folder.mkdir(parents=True, exist_ok=True)
        with open_model(recipe.address) as model:
            licence = {k: str(v) for k, v in model.metadata.items() if k.startswith("general.license")}
            self.say(f"licence of the source: {', '.join(licence.values()) or 'not stated in the file'}")
            refs = source_refs(model)
            results = Results(
                name=recipe.name,
                intent=recipe.intent,
                source=refs[0].display if "://" in recipe.source else Path(refs[0].display).name,
                revision=dict(refs[0].validators).get("commit"),
                licence=licence,
                recipe=recipe.describe(),
                fetched=None,
                steps=(),
                ggufslice=ggufslice.__version__,
            )
            if recipe.ops or not recipe.rungs:
                base = self.folder / recipe.output
                results = attrs.evolve(results, fetched=self._cut(recipe.apply(model), base, self.lock))
                with open_model(base) as cut:
                    steps = [self._step(rung, cut, base) for rung in recipe.rungs or [Rung(base.stem)]]
            else:
                steps = [self._step(rung, model, None) for rung in recipe.rungs]
        results = attrs.evolve(results, steps=tuple(steps))
        results.check()
        results.save(self.folder / "results.json")
        return results

    def _cut(self, view: GGUF, path: Path, lock_path: Path | None) -> Fetched | None:
        """Write a cut, unless it is there already, and compare it with its lock."""
        lock = Lock.load(lock_path) if lock_path is not None and lock_path.exists() else None
        if lock is not None:
            lock.check_source(view)
        plan = view.plan()
        key = _digest(plan.digest, _sources(view))
        state = path.with_name(f"{path.name}.state.json")
        known = _read(state)
        remote = any("://" in ref.url for ref in source_refs(view))
        if known.get("key") == key and path.exists() and path.stat().st_size == plan.file_bytes:
            self.say(f"{path.name} is there already")
            fetched = load(Fetched, known["fetched"], str(state)) if known.get("fetched") else None
        else:
            self.say(str(plan) if remote else f"{path.name}: {bytes_text(plan.file_bytes)} to copy")
            receipt = view.write(path, jobs=self.jobs, overwrite=True, progress=self.progress)
            receipt.save(path.with_name(f"{path.name}.receipt.json"))
            moved = receipt.transfer
            fetched = None
            if moved is not None and remote:
                fetched = Fetched(
                    received=moved.received,
                    never_requested=receipt.never_requested,
                    requests=moved.requests,
                    seconds=moved.seconds,
                    resumed=moved.resumed,
                )
            _write(state, {"key": key, "fetched": plain(fetched)})
        if lock_path is not None:
            made = Lock.of(self.recipe.describe(), plan.view, path)
            if lock is not None:
                self.say(f"{path.name} {lock.compare(made)} ({lock_path.name})")
            else:
                made.save(lock_path)
                self.say(f"{lock_path.name} was written: digest {made.sha256}")
        return fetched

    def _step(self, rung: Rung, model: GGUF, base: Path | None) -> Step:
        """Make and measure a rung, unless a finished one is there."""
        recipe, settings = self.recipe, self.recipe.bench
        stem = Path(recipe.output).stem
        cut = base if base is not None and not recipe.rungs else self.folder / f"{stem}-{rung.name}.gguf"
        quantized_type = recipe.quantization.type.upper() if recipe.quantization else None
        measured = cut.with_name(f"{cut.stem}-{quantized_type}.gguf") if quantized_type else cut
        machine = Machine.of(self.llama if settings else None)
        key = _digest(
            _sources(model),
            [op.describe() for op in rung.ops],
            plain(recipe.quantization),
            plain(settings),
            [_file_state(recipe.path(name)) for name in self._inputs()],
            [recipe.intent, recipe.parameters, machine.host, machine.llama_version, ggufslice.__version__],
        )
        state = measured.with_name(f"{measured.name}.step.json")
        known = _read(state)
        if known.get("key") == key and measured.exists():
            self.say(f"{rung.name} is finished already")
            return load(Step, known, str(state))
        if cut != base:
            lock = self.lock.with_suffix(f".{rung.name}.lock") if self.lock is not None and base is None else None
            self._cut(model.pipe(*rung.ops), cut, lock)
        done = None
        if recipe.quantization is not None:
            self.say(f"{rung.name}: quantizing to {quantized_type}")
            q = recipe.quantization
            done = quantize(
                cut,
                measured,
                q.type,
                allow_requantize=q.allow_requantize,
                tensor_types=q.tensor_types,
                imatrix=recipe.path(q.imatrix) if q.imatrix else None,
                overwrite=True,
                llama=self.llama,
            )
        step = self._measure(rung, key, measured, settings, machine)
        step = attrs.evolve(step, quantized=done)
        _write(state, plain(step))
        return step

    def _inputs(self) -> list[str]:
        q, b = self.recipe.quantization, self.recipe.bench
        return [name for name in (q.imatrix if q else None, b.text if b else None) if name]

    def _measure(self, rung: Rung, key: str, path: Path, settings: BenchSettings | None, machine: Machine) -> Step:
        receipt = Receipt.of(path, parameters=self.recipe.parameters)
        receipt.save(path.with_name(f"{path.name}.receipt.json"))
        with open_model(path) as model:
            vocabulary = len(model.metadata.get("tokenizer.ggml.tokens", ())) or None
        speeds = sample = measured = None
        if settings is not None:
            self.say(f"{rung.name}: measuring speed, sampling")
            speeds = bench(
                path,
                p=settings.prompt_tokens,
                n=settings.generated_tokens,
                r=settings.repetitions,
                ngl=settings.ngl,
                device=settings.device,
                llama=self.llama,
            )
            with serve(path, ngl=settings.ngl, llama=self.llama) as server:
                sample = server.sample(settings.prompt, settings.sample_tokens)
            if settings.text is not None:
                measured = perplexity(
                    path,
                    self.recipe.path(settings.text),
                    ctx=settings.ctx,
                    chunks=settings.chunks,
                    ngl=settings.ngl,
                    llama=self.llama,
                )
        return Step(
            name=rung.name,
            key=key,
            file=path.name,
            vocabulary=vocabulary,
            figures=Figures.of(receipt),
            quantized=None,
            bench=speeds,
            sample=sample,
            perplexity=measured,
            gate=judge(
                sample,
                measured,
                vocabulary=vocabulary,
                max_perplexity=settings.max_perplexity if settings else None,
                experimental=self.recipe.experimental,
            ),
            machine=machine,
        )


def _sources(view: GGUF) -> list[Any]:
    return [[ref.url, ref.size, list(ref.validators)] for ref in source_refs(view.base)]


def _file_state(path: Path) -> list[Any]:
    if not path.is_file():
        raise FormatError(f"{path}, which the recipe names, is not there")
    stat = path.stat()
    return [path.name, stat.st_size, stat.st_mtime_ns]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """Return what an earlier run left, or nothing where it left nothing that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write(path: Path, data: Any) -> None:
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
