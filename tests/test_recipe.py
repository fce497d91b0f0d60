"""Recipes and locks: one schema, one result, and what was flipped is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ggufslice as gs
from ggufslice import FormatError, OutputError, SourceChangedError, ops
from ggufslice.bench import run_recipe
from ggufslice.lockfile import Lock
from ggufslice.provenance import Origin
from ggufslice.recipe import BenchSettings, Quantization, Recipe, Rung, load_recipe, op_of, ops_of
from ggufslice.testing import HubServer, RangeServer, build_gguf, split_gguf, synthetic

if TYPE_CHECKING:
    from ggufslice.ops import Op

RECIPES = Path(__file__).parent.parent / "recipes"

TEXT = """
name = "Tiny at 2 layers"
source = "tiny.gguf"
output = "cut.gguf"
intent = "experimental"
parameters = 2.8e12

[[ops]]
op = "select_experts"
keep = [3, 1]

[[ops]]
op = "set_expert_used"
n = 1

[[rungs]]
name = "L2"
ops = [{ op = "keep_layers", layers = 2 }, { op = "set_metadata", values = { "general.name" = "tiny" } }]

[quantization]
type = "Q8_0"
tensor_types = { ffn_down = "q4_0" }

[bench]
prompt_tokens = 4
prompt = [1, 2, 3]
bandwidth = 273
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_what_a_recipe_says(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, TEXT))

    assert recipe == Recipe(
        name="Tiny at 2 layers",
        source="tiny.gguf",
        ops=[gs.select_experts([3, 1]), gs.set_expert_used(1)],
        output="cut.gguf",
        intent="experimental",
        parameters=2_800_000_000_000,
        rungs=[Rung("L2", [gs.keep_layers(2), gs.set_metadata({"general.name": "tiny"})])],
        quantization=Quantization(type="Q8_0", tensor_types={"ffn_down": "q4_0"}),
        bench=BenchSettings(prompt_tokens=4, prompt=[1, 2, 3], bandwidth=273),
    )
    assert recipe.experimental
    assert recipe.address == str(tmp_path / "tiny.gguf")
    assert recipe_of(tmp_path / "tiny.gguf").describe()["source"] == "tiny.gguf", "no folders of this machine"
    assert recipe_of("https://me:secret@example.org/m.gguf?key=1").describe()["source"] == "https://example.org/m.gguf"
    json.dumps(recipe.describe())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "Tiny at 2 layers"', "", "has no name"),
        ('output = "cut.gguf"', 'outptu = "cut.gguf"', "has outptu, which this version doesn't know"),
        (
            'output = "cut.gguf"',
            'output = "../cut.gguf"',
            r"output is a file name that ends in \.gguf, not '\.\./cut\.gguf'",
        ),
        ('intent = "experimental"', 'intent = "joke"', "intent"),
        ("keep = [3, 1]", "keep = [3, 3]", "select_experts: "),
        ("keep = [3, 1]", "keeps = 3", "select_experts: .*keeps"),
        ('op = "select_experts"', 'op = "chop"', "no operation is called 'chop'; there are drop_layers, drop_tensors, "),
        ('op = "select_experts"', 'op = "Op"', "no operation is called 'Op'"),
        ("prompt_tokens = 4", 'prompt_tokens = "4"', r"bench\.prompt_tokens should be int, and is '4'"),
        ("prompt = [1, 2, 3]", 'prompt = [1, "a"]', r"bench\.prompt\[1\] should be int, and is 'a'"),
        ('name = "L2"', 'name = "a/b"', "a rung's name is part of file names, which 'a/b' can't be"),
        ("[bench]", "[[rungs]]\nname = 'L2'\n[bench]", "two rungs have the same name"),
        ("[bench]", "[bench", "can't be read as a recipe"),
    ],
)
def test_what_is_no_recipe_is_refused_by_name(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    path = written(tmp_path, TEXT.replace(old, new))

    with pytest.raises(FormatError, match=said) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(str(path))


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="can't be read as a recipe"):
        load_recipe(tmp_path / "none.toml")


OPERATIONS: list[Op] = [
    gs.select_experts(4),
    gs.select_experts([3, 0]),
    gs.select_experts({0: [1, 0], 1: [2, 3]}),
    gs.select_experts(gs.ExpertPlan.random(3, seed=7), groups="reset"),
    gs.set_expert_used(2),
    gs.keep_layers(2),
    gs.keep_layers(range(3)),
    gs.keep_layers([0, -1], mtp=True),
    gs.drop_layers([1, 2], mtp=False),
    gs.set_metadata({"a": 1, "b": "x", "c": [1.5]}, types={"a": "u64", "c": "arr[f32]"}),
    gs.remove_metadata("a", "b"),
    gs.keep_tensors(r"^blk\.0\."),
    gs.drop_tensors("norm"),
    gs.rename_tensors({"a": "b"}),
    gs.graft("https://example.org/m.gguf", "output"),
]


@pytest.mark.parametrize("op", OPERATIONS, ids=repr)
def test_an_operation_is_made_again_of_its_own_description(op: Op) -> None:
    again = op_of(json.loads(json.dumps(op.describe())))

    assert again.describe() == op.describe()
    assert repr(again).partition("(")[0] == repr(op).partition("(")[0]


def test_every_operation_is_in_the_schema() -> None:
    named = {n for n in ops.__all__ if isinstance(getattr(ops, n), type) and n != "Op"}

    assert named == {type(op).__name__ for op in OPERATIONS}


def test_a_foreign_operation_can_not_be_repeated() -> None:
    with pytest.raises(ValueError, match=r"'custom:somebody\.cut' is not an operation of ggufslice"):
        ops_of(["custom:somebody.cut"])


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    metadata, tensors = synthetic(layers=4, experts=8, used=2, metadata={"general.license": "mit"})
    path = tmp_path / "tiny.gguf"
    path.write_bytes(build_gguf(metadata, tensors))
    return path


def recipe_of(tiny: Path | str, **changes: Any) -> Recipe:
    return Recipe(
        **{
            "name": "Tiny",
            "source": str(tiny),
            "ops": [gs.select_experts([3, 1, 6]), gs.set_expert_used(1)],
            "output": "cut.gguf",
            **changes,
        }
    )


@pytest.fixture(autouse=True)
def without_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """These recipes measure nothing, so nothing of llama.cpp is needed."""
    monkeypatch.setenv("GGUFSLICE_LLAMA_DIR", "/nowhere")


def test_a_files_own_key_is_the_recipe_for_it(tiny: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tiny, ops=[gs.keep_layers([0, 2]), gs.select_experts(2), gs.set_metadata({"general.name": "x"})])
    with gs.open(tiny) as model:
        recipe.apply(model).write(tmp_path / "a.gguf")
        with gs.open(tmp_path / "a.gguf") as cut:
            origin = Origin.of(cut)
        assert origin is not None
        assert list(origin.recipe) == recipe.describe()["ops"]

        model.pipe(*ops_of(origin.recipe)).write(tmp_path / "b.gguf")

    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_two_runs_make_the_same_bytes_and_the_lock_proves_it(tiny: Path, tmp_path: Path) -> None:
    said: list[str] = []
    lock = tmp_path / "recipe.lock"

    run_recipe(recipe_of(tiny), tmp_path / "first", lock=lock, say=said.append)
    moved = tmp_path / "elsewhere" / "tiny.gguf"
    moved.parent.mkdir()
    shutil.copyfile(tiny, moved)  # another time of change
    run_recipe(recipe_of(moved), tmp_path / "second", lock=lock, say=said.append)

    first, second = ((tmp_path / name / "cut.gguf").read_bytes() for name in ("first", "second"))
    assert first == second
    assert said[0] == "licence of the source: mit"
    assert any("recipe.lock was written: digest" in line for line in said)
    assert any(line.startswith("cut.gguf has the digest of the lock: ") for line in said)


def test_a_lock_of_shards_behind_http(tiny: Path, tmp_path: Path) -> None:
    shards = {f"m-{i:05d}-of-00003.gguf": d for i, d in enumerate(split_gguf(*synthetic(layers=4, experts=8, used=2), 3), 1)}
    with RangeServer(shards) as server:
        results = run_recipe(recipe_of(server.url("m-00001-of-00003.gguf")), tmp_path / "out", lock=tmp_path / "r.lock")

    lock = Lock.load(tmp_path / "r.lock")
    assert [source.address.rpartition("/")[2] for source in lock.source] == list(shards)
    assert [source.size for source in lock.source] == [len(data) for data in shards.values()]
    assert all("etag" in source.validators for source in lock.source)
    assert results.fetched is not None
    assert results.fetched.received > 0
    assert results.fetched.never_requested is not None


def test_the_spans_of_a_lock_are_gapless_and_each_has_its_checksum(tiny: Path, tmp_path: Path) -> None:
    import hashlib  # noqa: PLC0415 - an independent count

    run_recipe(recipe_of(tiny), tmp_path / "out", lock=tmp_path / "r.lock")

    lock = Lock.load(tmp_path / "r.lock")
    data = (tmp_path / "out" / "cut.gguf").read_bytes()
    assert lock.sha256 == hashlib.sha256(data).hexdigest()
    assert lock.size == len(data)
    assert [s.start for s in lock.spans] == [0, *(s.stop for s in lock.spans[:-1])]
    assert lock.spans[-1].stop == len(data)
    for span in lock.spans:
        assert span.sha256 == hashlib.sha256(data[span.start : span.stop]).hexdigest()
    experts = [s for s in lock.spans if s.tensor == "blk.0.ffn_up_exps.weight"]
    assert len(experts) == 3, "experts 3, 1 and 6 are three places of the source"


def test_another_source_is_refused_before_anything_is_written(tiny: Path, tmp_path: Path) -> None:
    run_recipe(recipe_of(tiny), tmp_path / "out", lock=tmp_path / "r.lock")
    metadata, tensors = synthetic(layers=4, experts=8, used=2, metadata={"general.license": "another" * 20})
    tiny.write_bytes(build_gguf(metadata, tensors))

    with pytest.raises(SourceChangedError, match=r"tiny\.gguf has \d+ bytes, and had \d+ when the lock was made"):
        run_recipe(recipe_of(tiny), tmp_path / "again", lock=tmp_path / "r.lock")
    assert list((tmp_path / "again").iterdir()) == []


def test_a_commit_other_than_the_locked_one_is_refused(tmp_path: Path) -> None:
    data = build_gguf(*synthetic(layers=2, experts=4, used=1))
    with HubServer({"org/m": {"m.gguf": data}}) as hub:
        with gs.open("hf://org/m/m.gguf", endpoint=hub.url()) as model:
            view = model.pipe(gs.select_experts(2))
            view.write(tmp_path / "cut.gguf")
            lock = Lock.of({}, view.plan().view, tmp_path / "cut.gguf")
            assert "commit" in lock.source[0].validators
            lock.check_source(model)
        old = lock.source[0]
        changed = Lock(
            recipe={},
            source=(type(old)(old.address, old.size, {**old.validators, "commit": "0" * 40}),),
            licence={},
            file=lock.file,
            size=lock.size,
            sha256=lock.sha256,
            spans=lock.spans,
        )
        with pytest.raises(SourceChangedError, match=f"its commit is .*, and was {'0' * 40} when the lock was made"):
            changed.check_source(view)


def test_a_mirror_of_the_same_bytes_will_do_and_one_of_others_is_found_out(tmp_path: Path) -> None:
    data = build_gguf(*synthetic(layers=2, experts=4, used=1))
    lock = tmp_path / "r.lock"
    ops = [gs.select_experts(2)]
    with RangeServer({"m.gguf": data}) as first, RangeServer({"other/m.gguf": data}) as mirror:
        run_recipe(recipe_of(first.url("m.gguf"), ops=ops), tmp_path / "a", lock=lock)
        said: list[str] = []
        run_recipe(recipe_of(mirror.url("other/m.gguf"), ops=ops), tmp_path / "b", lock=lock, say=said.append)
    assert any("has the tensor bytes of the lock; its header differs" in line for line in said)
    other = bytearray(data)
    other[-10] ^= 1
    with RangeServer({"m.gguf": bytes(other)}) as altered, pytest.raises(OutputError, match="is not what the lock says"):
        run_recipe(recipe_of(altered.url("m.gguf"), ops=ops), tmp_path / "c", lock=lock)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_byte_flipped_in_the_source_is_named(tiny: Path, tmp_path: Path) -> None:
    run_recipe(recipe_of(tiny), tmp_path / "out", lock=tmp_path / "r.lock")
    with gs.open(tiny) as model:
        span = model["blk.2.ffn_up_exps.weight"][6].pieces[0]
    flip(tiny, getattr(span, "start"))  # noqa: B009 - a span, as the file is whole

    with pytest.raises(
        OutputError, match=r"cut\.gguf is not what the lock says.*the first is tensor blk\.2\.ffn_up_exps\.weight"
    ):
        run_recipe(recipe_of(tiny), tmp_path / "again", lock=tmp_path / "r.lock")


@pytest.mark.parametrize("at", [0.02, 0.5, 0.98])
def test_a_byte_flipped_in_the_lock_is_noticed(tiny: Path, tmp_path: Path, at: float) -> None:
    lock = tmp_path / "r.lock"
    run_recipe(recipe_of(tiny), tmp_path / "out", lock=lock)
    flip(lock, int(at * lock.stat().st_size))

    with pytest.raises(FormatError, match=r"r\.lock"):
        Lock.load(lock)


def test_a_lock_that_is_none(tmp_path: Path) -> None:
    for text, said in (("{", "can't be read as a lock"), ("{}", "is not a lock of version 1"), ("[]", "is not a lock")):
        (tmp_path / "r.lock").write_text(text)
        with pytest.raises(FormatError, match=said):
            Lock.load(tmp_path / "r.lock")


def test_rungs_without_common_operations_have_locks_of_their_own(tiny: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tiny, ops=[], rungs=[Rung("L4", [gs.keep_layers(4)]), Rung("L1", [gs.keep_layers(1)])])

    results = run_recipe(recipe, tmp_path / "out", lock=tmp_path / "r.lock")

    assert sorted(p.name for p in tmp_path.glob("*.lock")) == ["r.L1.lock", "r.L4.lock"]
    assert [(s.figures.layers, s.figures.source_layers) for s in results.steps] == [(4, 4), (1, 4)]
    assert {s.gate.verdict for s in results.steps} == {"NOT MEASURED"}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda p: p.stem)
def test_the_recipes_that_come_along_are_recipes(path: Path) -> None:
    recipe = load_recipe(path)

    assert recipe.experimental
    assert recipe.ops
    assert recipe.bench is not None


def test_the_founding_recipe_on_a_model_of_that_shape() -> None:
    from ggufslice.testing import kimi_k3  # noqa: PLC0415 - in this test alone

    recipe = load_recipe(RECIPES / "kimi-k3-16-experts.toml")
    metadata, tensors = kimi_k3(width=16, vocab=512)
    with RangeServer({"k3.gguf": build_gguf(metadata, tensors)}) as server, gs.open(server.url("k3.gguf")) as model:
        view = recipe.apply(model)
        cuts = [view.pipe(*rung.ops) for rung in recipe.rungs]
        for cut in cuts:
            cut.plan()

    assert [cut.block_count for cut in cuts] == [93, 24, 12]
    assert {(cut.expert_count, cut.expert_used_count) for cut in cuts} == {(16, 2)}
