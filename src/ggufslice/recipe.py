"""Recipes: a TOML file that says how a model is cut, quantized and measured.

::

    name = "Kimi-K3 at 12 layers"
    source = "hf://unsloth/Kimi-K3-GGUF/UD-IQ1_S"
    output = "kimi-k3-e16.gguf"
    intent = "experimental"          # not to be deployed: failing the gate is what it is for

    [[ops]]                          # one table for each operation, its arguments by name
    op = "select_experts"
    keep = 16

    [[rungs]]                        # of a ladder: each is cut from the result of the operations above
    name = "L12"
    ops = [{ op = "keep_layers", layers = 12 }]

    [quantization]
    type = "Q1_0"
    allow_requantize = true

    [bench]
    prompt_tokens = 128

Operations have the one form that the metadata key ``ggufslice.recipe`` of a cut file holds as JSON, so that a file's own key
is the recipe for it.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice import ops as operations
from ggufslice._records import load, plain
from ggufslice.errors import FormatError, redact_url
from ggufslice.ops import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike

    from ggufslice.view import GGUF

__all__ = ["BenchSettings", "Quantization", "Recipe", "Rung", "load_recipe", "op_of"]

EXPERIMENTAL = "experimental"
_FILE_NAME = re.compile(r"[\w.+-]+")


@attrs.frozen(kw_only=True)
class Quantization:
    """How the cut is quantized.

    Parameters
    ----------
    type
        A type of llama-quantize, such as ``Q1_0``.
    allow_requantize
        Quantize tensors that are quantized already.
    tensor_types
        Pattern of tensor names to type, for tensors that are to have another one.
    imatrix
        Path of an importance matrix.
    """

    type: str
    allow_requantize: bool = False
    tensor_types: dict[str, str] = attrs.field(factory=dict)
    imatrix: str | None = None


@attrs.frozen(kw_only=True)
class BenchSettings:
    """What is measured.

    Parameters
    ----------
    prompt_tokens, generated_tokens, repetitions
        Of llama-bench: ``-p``, ``-n``, ``-r``.
    ngl
        Layers to offload.
    device
        A device that must be used.
    prompt, sample_tokens
        Of the greedy sample. A model without a tokenizer needs token ids for a prompt.
    text, ctx, chunks
        Of perplexity: a text file, tokens of a chunk, the most chunks. Without a text it isn't measured.
    max_perplexity
        The gate's limit, below that of guessing evenly.
    bandwidth
        What the machine's memory can deliver at most, in GB/s (10^9 bytes).
    """

    prompt_tokens: int = 128
    generated_tokens: int = 128
    repetitions: int = 3
    ngl: int = 99
    device: str | None = None
    prompt: str | list[int] = "Write one sentence about quantization:"
    sample_tokens: int = 48
    text: str | None = None
    ctx: int = 512
    chunks: int | None = None
    max_perplexity: float | None = None
    bandwidth: float | None = None


def _ops(ops: Iterable[Op]) -> tuple[Op, ...]:
    return tuple(ops)


@attrs.frozen
class Rung:
    """One step of a ladder.

    Parameters
    ----------
    name
        Short: part of file names.
    ops
        What is done to the recipe's result.
    """

    name: str
    ops: tuple[Op, ...] = attrs.field(default=(), converter=_ops)

    def __attrs_post_init__(self) -> None:
        if not _FILE_NAME.fullmatch(self.name):
            raise ValueError(f"a rung's name is part of file names, which {self.name!r} can't be")


def _rungs(rungs: Iterable[Rung]) -> tuple[Rung, ...]:
    return tuple(rungs)


@attrs.frozen(kw_only=True)
class Recipe:
    """How a model is cut, quantized and measured.

    Parameters
    ----------
    name
        What it is called.
    source
        What `ggufslice.open` takes; a relative path is looked up beside the recipe.
    ops
        The operations, in order.
    output
        File name of the cut.
    intent
        ``"experimental"`` for a model that is not to be deployed; else empty.
    parameters
        A parameter count for the denominator of the declared figure, such as an advertised one.
    rungs
        The steps of a ladder; none is one step, the cut itself.
    quantization
        None leaves the cut as it is.
    bench
        None measures nothing.
    folder
        Where relative paths are looked up: no part of what the recipe says.
    """

    name: str
    source: str
    ops: tuple[Op, ...] = attrs.field(default=(), converter=_ops)
    output: str = "model.gguf"
    intent: str = attrs.field(default="", validator=attrs.validators.in_(("", EXPERIMENTAL)))
    parameters: int | None = None
    rungs: tuple[Rung, ...] = attrs.field(default=(), converter=_rungs)
    quantization: Quantization | None = None
    bench: BenchSettings | None = None
    folder: Path = attrs.field(factory=Path, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not _FILE_NAME.fullmatch(self.output) or not self.output.endswith(".gguf"):
            raise ValueError(f"output is a file name that ends in .gguf, not {self.output!r}")
        names = [rung.name for rung in self.rungs]
        if len(set(names)) < len(names):
            raise ValueError(f"two rungs have the same name: {', '.join(names)}")

    @property
    def experimental(self) -> bool:
        """Whether the result is not to be deployed."""
        return self.intent == EXPERIMENTAL

    @property
    def address(self) -> str:
        """The source, a relative path beside the recipe made one that can be opened from anywhere."""
        return self.source if "://" in self.source else str(self.path(self.source))

    def path(self, name: str) -> Path:
        """Return a path of the recipe: a relative one is beside the recipe."""
        return self.folder / name

    def apply(self, view: GGUF) -> GGUF:
        """Return what the operations make of a view."""
        return view.pipe(*self.ops)

    def describe(self) -> dict[str, Any]:
        """Return the recipe as JSON-able values, in the form of a TOML file.

        Of local files it has the names without their folders, and of URLs no credentials.
        """
        described = {
            **plain(attrs.evolve(self, source=_public(self.source), ops=(), rungs=())),
            "ops": [op.describe() for op in self.ops],
            "rungs": [{"name": rung.name, "ops": [op.describe() for op in rung.ops]} for rung in self.rungs],
        }
        del described["folder"]
        for table, key in (("quantization", "imatrix"), ("bench", "text")):
            if (described[table] or {}).get(key):
                described[table][key] = _public(described[table][key])
        return described


def _public(address: str) -> str:
    return redact_url(address) if "://" in address else PurePath(address).name


def op_of(description: Mapping[str, Any]) -> Op:
    """Make an operation of what `Op.describe` returned.

    Parameters
    ----------
    description
        Its name under ``op``, and its arguments by name.

    Raises
    ------
    ValueError
        No such operation, an argument that it doesn't have or that it refuses.
    """
    arguments = dict(description)
    name = arguments.pop("op", None)
    kind = getattr(operations, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, Op) and kind is not Op):
        known = sorted(n for n in operations.__all__ if isinstance(getattr(operations, n), type) and n != "Op")
        raise ValueError(f"no operation is called {name!r}; there are {', '.join(known)}")
    starred = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.VAR_POSITIONAL]
    several = [value for star in starred for value in arguments.pop(star, ())]
    try:
        return kind(*several, **arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def ops_of(descriptions: Iterable[Any]) -> tuple[Op, ...]:
    """Make operations of a list such as a cut file's ``ggufslice.recipe`` holds.

    Raises
    ------
    ValueError
        One that isn't ours (``"custom:..."``), so that it can't be repeated, or as of `op_of`.
    """
    made = []
    for description in descriptions:
        if not isinstance(description, dict):
            raise ValueError(  # noqa: TRY004 - a wrong value in a file, not a wrong argument
                f"{description!r} is not an operation of ggufslice: it can't be repeated"
            )
        made.append(op_of(description))
    return tuple(made)


def load_recipe(path: str | PathLike[str]) -> Recipe:
    """Read a recipe.

    Parameters
    ----------
    path
        A TOML file.

    Raises
    ------
    FormatError
        Not TOML, or not a recipe: names the key and what is expected.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} can't be read as a recipe: {error}") from None
    try:
        ops = ops_of(data.pop("ops", ()))
        rungs = [Rung(str(rung.get("name", "")), ops_of(rung.get("ops", ()))) for rung in data.pop("rungs", ())]
        if isinstance(data.get("parameters"), float):
            data["parameters"] = round(data["parameters"])
        return attrs.evolve(load(Recipe, data, str(path)), ops=ops, rungs=rungs, folder=path.parent)
    except (ValueError, AttributeError) as error:
        said = str(error)
        raise FormatError(said if said.startswith(str(path)) else f"{path}: {said}") from None
