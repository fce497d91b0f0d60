"""The shape of the package: who imports whom, and what `import ggufslice` costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import ggufslice

ROOT = Path(ggufslice.__file__).parent

# From the lowest layer up. A module imports from its own layer and those below; a package counts as one.
LAYERS = (
    {"errors"},
    {"_records", "accounting", "spans", "tensor_types", "units", "values"},
    {"header"},
    {"metadata", "tensor"},
    {"view"},
    {"classes"},
    {"arch"},
    {"selection", "layer_selection", "ops"},
    {"provenance", "claims", "layer_table", "summary", "_render", "receipt"},
    {"io"},
    {"imatrix", "lockfile", "recipe", "verify"},
    {"bench"},
    {"testing"},
    {"cli"},
    {"__main__"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def name_of(path: Path) -> str:
    return ".".join(("ggufslice", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


MODULES: dict[str, ast.AST] = {name_of(p): ast.parse(p.read_text(encoding="utf-8")) for p in ROOT.rglob("*.py")}


def imports(tree: ast.AST, *, late: bool) -> set[str]:
    """Return the modules of ours that a module imports: when it is imported itself, or also later in functions."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=module, names=names):
                full = {alias.name: f"{module}.{alias.name}" for alias in names}
                found |= {full[name] if full[name] in MODULES else str(module) for name in full}
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not late:
                pass
            case _:
                found |= imports(node, late=late)
    return found & set(MODULES)


def unit(module: str) -> str:
    """Return the module or package below ``ggufslice`` that a name belongs to."""
    return [*module.split("."), ""][1]


def test_every_module_has_a_layer() -> None:
    assert {unit(name) for name in MODULES} - {""} <= set(RANK)


def test_imports_go_downwards_only() -> None:
    upwards = [
        f"{name} imports {other}"
        for name, tree in MODULES.items()
        for other in imports(tree, late=False)
        if name != "ggufslice" and unit(other) and RANK[unit(other)] > RANK[unit(name)]
    ]
    assert upwards == []


def test_no_module_needs_itself() -> None:
    graph = {name: imports(tree, late=False) - {"ggufslice"} for name, tree in MODULES.items() if name != "ggufslice"}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)  # a CycleError names the cycle


def test_operations_and_io_never_meet_and_only_the_command_line_uses_the_test_kit() -> None:
    for name, tree in MODULES.items():
        used = {unit(other) for other in imports(tree, late=True)}
        assert not (unit(name) == "ops" and "io" in used), name
        assert not (unit(name) == "io" and "ops" in used), name
        assert "testing" not in used or unit(name) in {"testing", "cli"}, name


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_import_is_cheap() -> None:
    loaded = loaded_by("import ggufslice")
    assert not loaded & {"aiohttp", "fsspec", "gguf", "matplotlib", "typer", "rich", "hypothesis", "asyncio"}
    assert not {name for name in loaded if name.startswith(("ggufslice.io", "ggufslice.ops", "ggufslice.testing"))}


def test_a_view_is_cut_and_measured_without_the_network() -> None:
    loaded = loaded_by("from ggufslice import Receipt, select_experts, set_metadata")
    assert not loaded & {"aiohttp", "fsspec", "matplotlib", "typer", "rich"}


def test_the_public_names_are_there() -> None:
    assert len(set(ggufslice.__all__)) == len(ggufslice.__all__)
    assert set(ggufslice._LAZY) < set(ggufslice.__all__)
    for name in ggufslice.__all__:
        assert getattr(ggufslice, name).__doc__, name
