"""Quantize with llama-quantize, and compare what came out with what was asked."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ggufslice.bench._binaries import Llama
from ggufslice.bench._process import run, tail
from ggufslice.errors import BenchError, OutputError
from ggufslice.io.open import open as open_model
from ggufslice.provenance import source_refs
from ggufslice.tensor_types import TensorType
from ggufslice.units import counted, percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from ggufslice.view import GGUF

__all__ = ["Fallback", "Quantized", "quantize"]

_PADDING = 32  # the constant that llama-quantize pads with, whatever general.alignment says
_PLAIN = ("F32", "F16", "BF16", "F64")
_MIXES = {"IQ2_M": "IQ2_S", "IQ3_XS": "IQ3_S", "IQ3_M": "IQ3_S", "MXFP4_MOE": "MXFP4"}
# llama-quantize makes these types of no other matrix than two without importances (src/llama-quant.cpp,
# tensor_requires_imatrix).
_NEED_IMATRIX = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"})
_NEED_NONE = frozenset({"token_embd.weight", "output.weight"})
_FELL_BACK = re.compile(r"warning: (\S+)\s+- ncols\s+(\d+) not divisible by (\d+) \(required for type\s+(\S+)\)")
# A tensor's entry in the log: other messages can come between its head and the type that follows.
_ENTRY = re.compile(r"^\[\s*\d+/\s*\d+\]\s+(\S+)\s+- \[", re.MULTILINE)
_TYPE = re.compile(r"converting to (\w+)|MiB \((\w+)\)\s*$", re.MULTILINE)


@attrs.frozen
class Fallback:
    """A tensor that has another type than the one asked for, because its rows aren't whole blocks of that.

    Parameters
    ----------
    tensor
        Its name.
    row
        Elements of a row.
    block
        Elements of a block of the type that was wanted.
    wanted, got
        The types.
    """

    tensor: str
    row: int
    block: int
    wanted: str
    got: str


@attrs.frozen
class Quantized:
    """A file that llama-quantize made and that was found to be what was asked for.

    Parameters
    ----------
    path
        File name.
    type
        What was asked for, such as ``Q1_0`` or ``Q4_K_M``.
    tensors
        How many there are.
    types
        Parameters by type, most first.
    fallbacks
        Tensors that got another type for their row length.
    fallback_share
        Part of all parameters that is in them, 0 to 1.
    flags
        The options that llama-quantize was given.
    seconds
        Wall time.
    """

    path: str
    type: str
    tensors: int
    types: dict[str, int]
    fallbacks: tuple[Fallback, ...]
    fallback_share: float
    flags: str
    seconds: float

    def __str__(self) -> str:
        n_params = sum(self.types.values())
        shares = ", ".join(f"{name} {percent_text(count / n_params)}" for name, count in self.types.items())
        fell = f"; {counted(len(self.fallbacks), 'tensor')} fell back, {percent_text(self.fallback_share)} of the parameters"
        return f"{self.path}: {self.type} asked; parameters by type: {shares}{fell if self.fallbacks else ''}"


def quantize(
    src: str | PathLike[str],
    dst: str | PathLike[str],
    type: str,  # noqa: A002 - llama-quantize's own word
    *,
    allow_requantize: bool = False,
    tensor_types: Mapping[str, str] | None = None,
    imatrix: str | PathLike[str] | None = None,
    overwrite: bool = False,
    llama: Llama | None = None,
    timeout: float | None = None,
) -> Quantized:
    """Quantize a GGUF with the stock llama-quantize.

    Parameters
    ----------
    src
        A GGUF file; of shards, the first.
    dst
        The file to make. It appears only once it was read back and found to be what was asked for.
    type
        A type that llama-quantize lists, such as ``Q1_0`` or ``Q4_K_M``.
    allow_requantize
        Quantize tensors that are quantized already.
    tensor_types
        Pattern of tensor names to type, for tensors that are to have another one.
    imatrix
        An importance matrix in the GGUF form.
    overwrite
        Replace a file that is there.
    llama
        Where the programs are.
    timeout
        Seconds; None allows an hour, and a second for every MB of the source.

    Raises
    ------
    BenchError
        llama-quantize is missing or fails, what was asked can't be made, or the result isn't what was asked.
    OutputError
        `dst` is there, or is a file that is read.
    """
    llama = llama or Llama()
    src, dst = Path(src), Path(dst)
    with open_model(src) as source:
        _check_paths(source, dst, overwrite=overwrite)
        _check_alignment(source, src)
        flags = [*(["--allow-requantize"] if allow_requantize else [])]
        for pattern, name in (tensor_types or {}).items():
            flags += ["--tensor-type", f"{pattern}={name.lower()}"]
        covered: frozenset[str] = frozenset()
        if imatrix is not None:
            covered = check_imatrix(source, Path(imatrix))
            flags += ["--imatrix", str(imatrix)]
        listed = re.findall(r"^\s+(?:\d+\s+or\s+)?([A-Z]\w+)\s+:", llama.help("llama-quantize"), re.MULTILINE)
        if listed and type.upper() not in listed:
            raise BenchError(f"this llama-quantize has no type {type!r}; it has {', '.join(listed)}")
        program = llama.tool("llama-quantize")
        if llama.supports("llama-quantize", "--dry-run"):
            plan = _rehearse([str(program), *flags, "--dry-run", str(src), type.upper()], source, type)
            _check_plan(source, plan, covered, allow_requantize=allow_requantize)
        temporary = dst.with_name(f".{dst.name}.{secrets.token_hex(4)}.partial")
        limit = 3600 + source.tensor_bytes / 1e6 if timeout is None else timeout
        try:
            done = run([program, *flags, src, temporary, type.upper()], timeout=limit)
            if done.returncode:
                _explain(done.text, source, type)
            done.check(f"quantizing {src} to {type}")
            if not temporary.is_file():
                raise BenchError(f"llama-quantize ended well and wrote no file. {tail(done.text)}")
            with open_model(temporary) as result:
                report = _compare(source, result, done.text, dst.name, type)
            temporary.replace(dst)
        finally:
            temporary.unlink(missing_ok=True)
    return attrs.evolve(report, flags=" ".join([*flags, type.upper()]), seconds=round(done.seconds, 3))


def asked_type(name: str) -> TensorType | None:
    """Return the tensor type that a quantization is named after, or None for one that keeps types (``COPY``)."""
    name = name.upper()
    for candidate in (_MIXES.get(name, name), re.sub(r"_(S|M|L)$", "", name)):
        try:
            return TensorType.parse(candidate)
        except ValueError:
            continue
    return None


def _check_paths(source: GGUF, dst: Path, *, overwrite: bool) -> None:
    inputs = {Path(ref.url).resolve() for ref in source_refs(source) if "://" not in ref.url}
    if dst.resolve() in inputs:
        raise OutputError(f"{dst} is a file that is read: give the result another name")
    if dst.exists() and not overwrite:
        raise OutputError(f"{dst} is there already; overwrite=True (--overwrite) replaces it")
    if not dst.parent.is_dir():
        raise OutputError(f"{dst.parent} is no folder")


def _check_alignment(source: GGUF, src: Path) -> None:
    if source.alignment != _PADDING:
        raise BenchError(
            f"{src}: general.alignment is {source.alignment}, but llama-quantize pads to {_PADDING} whatever the file says, "
            "and its result would not load: write the cut with set_metadata({'general.alignment': 32}) "
            "(--set general.alignment=u32:32) first"
        )


def check_imatrix(source: GGUF, path: Path) -> frozenset[str]:
    """Refuse an importance matrix whose entries don't fit the model's tensors; return the names that it has.

    Raises
    ------
    BenchError
        It isn't one in the GGUF form, names none of the tensors, or has entries of other sizes, as one made for the
        experts before a cut.
    """
    if not path.is_file():
        raise BenchError(f"{path}: no such importance matrix")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise BenchError(
                f"{path} is no importance matrix in the GGUF form; llama-imatrix --in-file {path.name} -o new.gguf converts "
                "an old one"
            )
    with open_model(path) as matrix:
        sizes = {name.removesuffix(".in_sum2"): t.n_elements for name, t in matrix.items() if name.endswith(".in_sum2")}
    known = {name: size for name, size in sizes.items() if name in source}
    if not known:
        raise BenchError(
            f"{path} names none of the model's {len(source)} tensors: it is no importance matrix, or another model's"
        )
    wrong = []
    for name, size in known.items():
        tensor = source[name]
        expected = tensor.ne[0] * (tensor.ne[2] if len(tensor.ne) > 2 else 1)
        if size != expected:
            wrong.append(f"{name} (has {size} values, the tensor needs {expected})")
    if wrong:
        raise BenchError(
            f"{path} doesn't fit {len(wrong)} of the model's tensors, among them {'; '.join(wrong[:3])}: cut it as the "
            "model was cut, with ggufslice.slice_imatrix"
        )
    return frozenset(known)


def _rehearse(command: list[str], source: GGUF, type_: str) -> dict[str, str]:
    """Let llama-quantize say what it would do."""
    done = run(command, timeout=600)
    if done.returncode:
        _explain(done.text, source, type_)
        done.check(f"planning a quantization to {type_}")
    return {name: wanted.upper() for name, wanted in log_entries(done.text).items() if wanted and name in source}


def _check_plan(source: GGUF, plan: Mapping[str, str], covered: frozenset[str], *, allow_requantize: bool) -> None:
    """Refuse what llama-quantize would give up on half-way."""
    again = [n for n, wanted in plan.items() if source[n].tensor_type.name not in (*_PLAIN, wanted)]
    if again and not allow_requantize:
        first = source[again[0]]
        raise BenchError(
            f"{len(again)} tensors are quantized already, such as {first.name} ({first.tensor_type}): allow_requantize=True "
            "(--allow-requantize) quantizes them again, from what is left of them"
        )
    bare = [n for n, wanted in plan.items() if wanted in _NEED_IMATRIX and n not in covered | _NEED_NONE]
    if bare:
        raise BenchError(
            f"{plan[bare[0]]} needs an importance matrix with entries for all its tensors; {len(bare)} have none, such as "
            f"{', '.join(bare[:3])}: make one with llama-imatrix, or give them another type with tensor_types "
            "(--tensor-type)"
        )


def _explain(text: str, source: GGUF, type_: str) -> None:
    """Turn llama-quantize's giving up over a tensor type or a row length into an error that says which."""
    if unknown := re.search(r"invalid ggml_type '(.*)'", text):
        raise BenchError(f"this llama-quantize has no tensor type {unknown[1]!r} (tensor_types, --tensor-type)")
    asked = asked_type(type_)
    if "no tensor type fallback" not in text or asked is None:
        return
    block = asked.block_size
    rows = {t.name: t.ne[0] for t in source.values() if len(t.ne) > 1 and t.name.endswith("weight") and t.ne[0] % block}
    for name, row, *_ in _FELL_BACK.findall(text)[-1:]:
        rows.setdefault(name, int(row))
    listed = ", ".join(f"{name} ({row})" for name, row in list(rows.items())[:6])
    more = f" and {len(rows) - 6} others" if len(rows) > 6 else ""
    raise BenchError(
        f"{type_} has blocks of {block}, llama-quantize has no other type to fall back to, and the rows of these tensors "
        f"aren't whole blocks: {listed}{more}; give them a type with smaller blocks, such as tensor_types={{'<pattern>': "
        "'q8_0'} (--tensor-type PATTERN=q8_0, blocks of 32)"
    )


def log_entries(text: str) -> dict[str, str | None]:
    """Return the type that llama-quantize says it converts each tensor to, or None for one that it keeps."""
    _, *entries = _ENTRY.split(text)
    found = {name: _TYPE.search(entry) for name, entry in zip(entries[::2], entries[1::2], strict=True)}
    return {name: (match[1] or match[2]) if match else None for name, match in found.items()}


def _compare(source: GGUF, result: GGUF, log: str, name: str, type_: str) -> Quantized:
    """Compare the result with the source and with what llama-quantize said that it did."""
    if missing := [n for n in source if n not in result]:
        raise BenchError(f"the quantized file has {len(result)} tensors of {len(source)}: {missing[0]} is missing")
    if more := [n for n in result if n not in source]:
        raise BenchError(f"the quantized file has a tensor that the source hasn't: {more[0]}")
    said = log_entries(log)
    fell = {row[0]: row for row in _FELL_BACK.findall(log)}
    asked = asked_type(type_)
    fallbacks: list[Fallback] = []
    types: Counter[str] = Counter()
    for tensor in result.values():
        before, got = source[tensor.name], tensor.tensor_type
        if tensor.ne != before.ne:
            raise BenchError(f"tensor {tensor.name} has the shape {tensor.ne} after quantizing, and {before.ne} before")
        wanted = (said[tensor.name] or before.tensor_type.name) if tensor.name in said else got.name
        if wanted.upper() != got.name:
            raise BenchError(f"tensor {tensor.name} is {got} in the quantized file; llama-quantize said {wanted.upper()}")
        types[got.name] += tensor.n_elements
        if tensor.name in fell:
            _, row, block, aim = fell[tensor.name]
            fallbacks.append(Fallback(tensor.name, int(row), int(block), aim.upper(), got.name))
        elif not said and asked and got not in (asked, before.tensor_type) and tensor.ne[0] % asked.block_size:
            fallbacks.append(Fallback(tensor.name, tensor.ne[0], asked.block_size, asked.name, got.name))
    if asked and asked.name not in types and not fallbacks:
        raise BenchError(f"no tensor of the result is {asked.name}: {type_} was asked for, and there are {', '.join(types)}")
    share = sum(result[f.tensor].n_elements for f in fallbacks) / (result.n_params or 1)
    return Quantized(name, type_.upper(), len(result), dict(types.most_common()), tuple(fallbacks), share, "", 0.0)
