"""Opening: every kind of source, what it costs, and where a view can go afterwards."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import attrs
import fsspec
import pytest

import ggufslice as gs
from ggufslice.io.loop import parallel, run
from ggufslice.io.read import read_pieces
from ggufslice.io.retry import fetch
from ggufslice.io.sources import Access, LocalSource, adopt, make_source, source_of
from ggufslice.io.tally import Tally
from ggufslice.spans import Literal, Remap, SourceRef, Span
from ggufslice.testing import TensorSpec, Typed, build_gguf, split_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Serve

METADATA, TENSORS = synthetic(layers=2, experts=4)
MODEL = build_gguf(METADATA, TENSORS)
FAST = gs.TransferOptions(backoff=0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(MODEL)
    return path


def filesystem(protocol: str, **options: Any) -> Any:
    return fsspec.filesystem(protocol, **options)  # type: ignore[no-untyped-call]  # fsspec has no types


@pytest.fixture
def broken() -> None:
    """Make fsspec know the backend `Broken`."""
    fsspec.register_implementation("broken", Broken, clobber=True)  # type: ignore[no-untyped-call]


def check(view: gs.GGUF) -> None:
    """Check that a view is the model of this file, to the last byte."""
    assert list(view) == [tensor.name for tensor in TENSORS]
    for tensor in TENSORS:
        mine = view[str(tensor.name)]
        assert mine.ne == tensor.ne
        assert mine.read() == tensor.tobytes()


# Local files


def test_a_path_in_any_form(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("HOME", str(file.parent))
    for source in (file, str(file), "m.gguf", Path("./m.gguf"), "~/m.gguf", f"file://{file}", f"local://{file}"):
        view = gs.open(source)
        assert Path(view.shards[0].source.url) == file
        check(view)


def test_what_is_known_of_a_local_file(file: Path) -> None:
    view = gs.open(file)
    (shard,) = view.shards
    stat = file.stat()
    assert shard.source == SourceRef(str(file), stat.st_size, {"mtime_ns": str(stat.st_mtime_ns)})
    assert (shard.header_bytes <= shard.data_start < len(MODEL), shard.n_tensors) == (True, len(TENSORS))
    assert view.version == 3
    assert view.metadata["general.architecture"] == METADATA["general.architecture"]


def test_links_are_named_as_they_are_so_that_siblings_are_found(tmp_path: Path) -> None:
    # How a Hub's cache keeps files: names in one folder, contents under other names in another.
    (tmp_path / "blobs").mkdir()
    (tmp_path / "names").mkdir()
    for i, data in enumerate(split_gguf(METADATA, TENSORS, 2), 1):
        (tmp_path / "blobs" / f"{i:064}").write_bytes(data)
        (tmp_path / "names" / f"m-{i:05d}-of-00002.gguf").symlink_to(tmp_path / "blobs" / f"{i:064}")
    check(gs.open(tmp_path / "names" / "m-00001-of-00002.gguf"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("other.gguf", "no such file"),
        ("m.gguf/m.gguf", "no such file"),
        ("pipe.gguf", "not a file"),
        ("n" * 300, "too long"),
    ],
)
def test_what_cannot_be_opened(file: Path, name: str, says: str) -> None:
    os.mkfifo(file.parent / "pipe.gguf")
    with pytest.raises(gs.SourceError, match=says):
        gs.open(file.parent / name)


def test_a_local_file_that_changes_is_noticed(file: Path) -> None:
    view = gs.open(file)
    stat = file.stat()
    file.write_bytes(MODEL[:-1] + b"\xff")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(gs.SourceChangedError, match="written to"):
        view[str(TENSORS[0].name)].read()

    view = gs.open(file)
    file.write_bytes(MODEL + b"x")
    with pytest.raises(gs.SourceChangedError, match=f"{len(MODEL) + 1} bytes, but had {len(MODEL)}"):
        view[str(TENSORS[0].name)].read()

    file.unlink()
    with pytest.raises(gs.SourceError, match="No such file"):
        view[str(TENSORS[0].name)].read()


def test_a_local_source_holds_no_handle(file: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    views = [gs.open(file) for _ in range(20)]
    check(views[0])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 10


# Headers


def big_header(n_bytes: int) -> bytes:
    """Pack a file whose header has about so many bytes, and 4 MB of data behind it."""
    return build_gguf({"general.architecture": "llama", "x": "y" * n_bytes}, [TensorSpec("a", (1 << 20,), 0, fill="zeros")])


@pytest.mark.parametrize("n_bytes", [100, 900_000, 1_100_000, 3_000_000, 5_000_000])
def test_a_header_costs_at_most_twice_its_size_or_a_mebibyte(serve: Serve, n_bytes: int) -> None:
    data = big_header(n_bytes)
    server = serve({"m.gguf": data})
    view = gs.open(server.url("m.gguf"))

    header = view.shards[0].header_bytes
    assert n_bytes < header < n_bytes + 200
    assert header <= server.bytes_sent <= max(1 << 20, 2 * header)
    ranges = [request.range for request in server.requests]
    # Each goes on where the one before it ended: no byte comes twice.
    assert [r[0] for r in ranges[1:] if r] == [r[1] + 1 for r in ranges[:-1] if r and r[1] is not None]
    assert view.transfer.header == view.transfer.received == server.bytes_sent


@pytest.mark.parametrize("first", [*range(24, 64), 1000])
def test_a_header_may_end_anywhere_in_a_chunk(serve: Serve, first: int) -> None:
    data = build_gguf({"general.architecture": "llama", "tokens": ["a", "bb", "ccc"] * 20}, [TensorSpec("a", (4,), 0)])
    server = serve({"m.gguf": data})
    view = gs.open(server.url("m.gguf"), options=gs.TransferOptions(header_first=first))
    assert view.metadata["tokens"] == ["a", "bb", "ccc"] * 20
    assert server.bytes_sent <= max(first, 2 * view.shards[0].header_bytes)


def test_a_header_behind_the_budget_is_refused_before_it_is_fetched(serve: Serve) -> None:
    server = serve({"m.gguf": big_header(3_000_000)})
    with pytest.raises(gs.FormatError, match="header_budget"):
        gs.open(server.url("m.gguf"), options=gs.TransferOptions(header_budget=2_000_000))
    assert server.bytes_sent <= 1 << 20


@pytest.mark.parametrize(
    "head",
    [
        b"GGUF\x03\0\0\0" + b"\xff" * 16,
        b"GGUF\x03\0\0\0" + (0).to_bytes(8, "little") + (1).to_bytes(8, "little") + (1 << 62).to_bytes(8, "little"),
        b"GGUF\x03\0\0\0" + (1 << 40).to_bytes(8, "little") + bytes(8),
        b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>",
    ],
)
def test_absurd_headers_cost_one_request(serve: Serve, head: bytes) -> None:
    server = serve({"m.gguf": head + bytes(4_000_000)})
    with pytest.raises(gs.FormatError):
        gs.open(server.url("m.gguf"))
    assert len(server.requests) == 1
    assert server.bytes_sent <= 1 << 20


def test_the_first_shard_is_asked_for_more_than_the_others(serve: Serve) -> None:
    shards = split_gguf(METADATA, TENSORS, 4)
    server = serve({f"m-{i:05d}-of-00004.gguf": data for i, data in enumerate(shards, 1)})
    view = gs.open(server.url("m-00003-of-00004.gguf"))
    check(view)
    first, *others = sorted((request for request in server.requests[:4]), key=lambda request: request.path)
    assert first.range == (0, (1 << 20) - 1)
    assert {request.range for request in others} == {(0, (1 << 16) - 1)}


def test_a_missing_remote_shard_is_named(serve: Serve) -> None:
    first, _ = split_gguf(METADATA, TENSORS, 2)
    server = serve({"m-00001-of-00002.gguf": first})
    with pytest.raises(gs.SourceError, match=r"m-00002-of-00002\.gguf: there is no such file"):
        gs.open(server.url("m-00001-of-00002.gguf"))


def test_siblings_keep_the_query(serve: Serve) -> None:
    shards = split_gguf(METADATA, TENSORS, 2)
    server = serve({f"m-{i:05d}-of-00002.gguf": data for i, data in enumerate(shards, 1)})
    view = gs.open(server.url("m-00001-of-00002.gguf?download=true&token=s3cretS3cret"))

    assert all(request.path.endswith("?download=true&token=s3cretS3cret") for request in server.requests)
    assert all(shard.source.url.endswith("?download=true") for shard in view.shards)
    check(view)
    assert "s3cret" not in repr(view) + repr(source_of(view.shards[0].source)) + pickle.dumps(view).decode("latin-1")


# Other backends


def test_memory(request: pytest.FixtureRequest) -> None:
    files = filesystem("memory")
    for i, data in enumerate(split_gguf(METADATA, TENSORS, 3), 1):
        files.pipe(f"/models/m-{i:05d}-of-00003.gguf", data)
    files.pipe("/models/notes.txt", b"")
    request.addfinalizer(lambda: files.rm("/models", recursive=True))

    for source in ("memory://models", "memory://models/", "memory://models/m-00002-of-00003.gguf"):
        view = gs.open(source, options=gs.TransferOptions(chunk_size=1000))
        check(view)
        assert all(dict(shard.source.validators) for shard in view.shards)
    for source, says in [("memory://models/other.gguf", "no such file"), ("memory://nothing", "no such file")]:
        with pytest.raises(gs.SourceError, match=says):
            gs.open(source)

    files.pipe("/models/m-00001-of-00003.gguf", bytes(5000))
    ref = view.shards[0].source
    with pytest.raises(gs.SourceChangedError):
        run(make_source(ref, Access()).confirm(Tally()))


def test_a_chain_of_backends(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    files = filesystem("memory")
    files.pipe("/chained/m.gguf", MODEL)
    request.addfinalizer(lambda: files.rm("/chained", recursive=True))
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    check(gs.open("simplecache::memory://chained/m.gguf", storage_options=options))


def test_backends_that_are_not_there() -> None:
    with pytest.raises(gs.SourceError, match="nosuch"):
        gs.open("nosuch://bucket/m.gguf")


class Broken(fsspec.AbstractFileSystem):
    """A backend that misbehaves: the first part of a path says how."""

    protocol = "broken"
    cachable = False

    def info(self, path: str, **_kwargs: object) -> dict[str, Any]:
        return {"name": path, "size": None if "sizeless" in path else len(MODEL), "type": "file", "ETag": '"1"'}

    def cat_file(self, path: str, start: int = 0, end: int = 0, **_kwargs: object) -> bytes:
        if "denied" in path:
            raise PermissionError("key=AKIA0123456789 is not allowed")
        if "failing" in path:
            raise RuntimeError("s3cretS3cret")
        if "lost" in path:  # as the HTTP backend of fsspec says it
            raise FileNotFoundError(path) from socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if "everything" in path:
            return MODEL
        return MODEL[start : max(start + 1, end - 1)] if "short" in path else MODEL[start:end]


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        (
            "everything",
            gs.RangeNotSupportedError,
            f"asked for bytes 0-999, but the backend Broken returned {len(MODEL)} bytes",
        ),
        ("denied", gs.AuthError, "storage_options"),
        ("failing", gs.SourceError, r"RuntimeError: … RuntimeError|RuntimeError: …\) \(5 times in a row\)"),
        ("lost", gs.SourceError, "^broken://lost/m.gguf: no host of that name is known"),
        ("sizeless", gs.SourceError, "does not tell its size"),
    ],
)
def test_backends_that_break_their_word(broken: None, path: str, error: type[Exception], says: str) -> None:
    options = attrs.evolve(FAST, chunk_size=1000)
    with pytest.raises(error, match=says):
        gs.open(f"broken://{path}/m.gguf", options=options, storage_options={"client_kwargs": {"secret": "s3cretS3cret"}})


def test_short_answers_of_a_backend_are_continued(broken: None) -> None:
    check(gs.open("broken://short/m.gguf", options=attrs.evolve(FAST, chunk_size=4096)))


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the storage options of a bucket store that runs here."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - slow to import

    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "s3cretS3cret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # What it holds belongs to the process: an earlier server's buckets would still be there.
    urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
    yield {"client_kwargs": {"endpoint_url": f"http://{host}:{port}"}, "skip_instance_cache": True}
    server.stop()


def test_s3(s3: dict[str, Any]) -> None:
    files = filesystem("s3", **s3)
    files.mkdir("models")
    for i, data in enumerate(split_gguf(METADATA, TENSORS, 2), 1):
        files.pipe(f"models/q4/m-{i:05d}-of-00002.gguf", data)

    for source in ("s3://models/q4", "s3://models/q4/m-00002-of-00002.gguf"):
        view = gs.open(source, storage_options=s3)
        check(view)
    ref = view.shards[0].source
    assert dict(ref.validators).keys() == {"etag"}
    with pytest.raises(gs.SourceError, match="no such file"):
        gs.open("s3://models/q4/other.gguf", storage_options=s3)

    files.pipe("models/q4/m-00001-of-00002.gguf", bytes(ref.size or 0))
    with pytest.raises(gs.SourceChangedError):
        run(make_source(ref, Access(storage_options=s3)).confirm(Tally()))


def test_a_bucket_without_credentials_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    here = {"client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}, "skip_instance_cache": True}
    with pytest.raises(gs.AuthError, match=r"s3://b/m.gguf: .*no credentials.*NoCredentialsError.*\{'anon': True\}"):
        gs.open("s3://b/m.gguf", options=FAST, storage_options=here)


# Tensors


def test_pieces_of_all_kinds_are_read_in_order(serve: Serve, tmp_path: Path) -> None:
    data = bytes(range(256)) * 400
    server = serve({"m.bin": data})
    local = tmp_path / "l.bin"
    local.write_bytes(data[::-1])
    remote = SourceRef(server.url("m.bin"), len(data))
    ids = SourceRef(str(tmp_path / "ids.bin"), 16)
    (tmp_path / "ids.bin").write_bytes(b"".join(i.to_bytes(4, "little") for i in (2, 0, 1, 2)))
    # Small parts, so that all are split, tables of ids too.
    adopt(make_source(remote, Access()), Access(options=gs.TransferOptions(split_size=1001)))
    adopt(make_source(ids, Access()), Access(options=gs.TransferOptions(split_size=6)))
    pieces = (
        Span(remote, 100, 50_000),
        Literal(b"between"),
        Span(SourceRef(str(local), len(data)), 0, 9),
        Remap(Span(ids, 0, 16), (7, 5, 3)),
        Span(remote, 5, 5),
        Span(remote, 5, 6),
    )
    expected = data[100:50_000] + b"between" + data[::-1][:9]
    expected += b"".join(i.to_bytes(4, "little") for i in (3, 7, 5, 3)) + data[5:6]

    assert read_pieces(pieces) == expected
    assert len(server.requests) == 51
    assert read_pieces((Literal(b"a"), Literal(b"b"))) == b"ab"
    assert read_pieces(()) == b""


def test_one_expert_is_one_range(serve: Serve) -> None:
    server = serve({"m.gguf": MODEL})
    view = gs.open(server.url("m.gguf"))
    name = next(name for name in view if "up_exps" in name)
    server.reset()

    slab = view[name][2].read()
    whole = next(tensor for tensor in TENSORS if tensor.name == name).tobytes()
    assert slab == whole[2 * len(slab) : 3 * len(slab)]
    assert len(slab) * 4 == len(whole)
    assert server.bytes_sent == len(slab)


def test_a_source_that_ends_too_early(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(bytes(100))
    with pytest.raises(gs.SourceError, match="ended at byte 100, before the 200"):
        read_pieces((Span(SourceRef(str(tmp_path / "m.bin")), 50, 200),))


# Where a view can go


def test_a_view_outlives_its_connections(serve: Serve) -> None:
    server = serve({"m.gguf": MODEL})
    with gs.open(server.url("m.gguf")) as view:
        check(view)
    check(view)
    view.close()
    view.close()
    check(view)


def test_operations_return_plain_views(file: Path) -> None:
    view = gs.open(file)
    cut = view.pipe(gs.set_metadata({"general.name": "x"}))
    assert type(cut) is gs.GGUF
    assert cut.base is view
    assert isinstance(cut.base, gs.RemoteGGUF)


def test_equal_files_opened_twice_are_equal_views(file: Path) -> None:
    assert gs.open(file) == gs.open(file)
    assert gs.open(file) != gs.open(file).pipe(gs.drop_tensors("output.weight"))


def test_inside_a_running_loop(serve: Serve) -> None:
    server = serve({"m.gguf": MODEL})

    async def notebook() -> None:
        check(gs.open(server.url("m.gguf")))

    asyncio.run(notebook())


def test_on_the_loop_itself_it_would_wait_for_itself(file: Path) -> None:
    async def nested() -> object:
        return gs.open(file)

    with pytest.raises(RuntimeError, match="event-loop thread"):
        run(nested())


def test_from_many_threads(serve: Serve) -> None:
    server = serve({"m.gguf": MODEL})

    async def many() -> None:
        await asyncio.gather(*(asyncio.to_thread(lambda: check(gs.open(server.url("m.gguf")))) for _ in range(8)))

    asyncio.run(many())


def program(text: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh process."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(text), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_a_pickled_view_reads_in_a_fresh_process(serve: Serve, tmp_path: Path) -> None:
    server = serve({"m.gguf": MODEL})
    (tmp_path / "view").write_bytes(pickle.dumps(gs.open(server.url("m.gguf"))))
    name = str(TENSORS[3].name)
    (tmp_path / "expected").write_bytes(TENSORS[3].tobytes())

    result = program(
        """
        import pickle, sys
        from pathlib import Path
        folder, name = Path(sys.argv[1]), sys.argv[2]
        view = pickle.loads((folder / "view").read_bytes())
        assert view[name].read() == (folder / "expected").read_bytes()
        print(type(view).__name__)
        """,
        str(tmp_path),
        name,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "RemoteGGUF\n", "")


def test_a_forked_child_reads_again_and_its_parent_too(serve: Serve) -> None:
    server = serve({"m.gguf": MODEL})
    result = program(
        """
        import os, sys, warnings
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        import ggufslice as gs
        options = {"headers": {"Authorization": "Bearer t0k"}}
        view = gs.open(sys.argv[1], storage_options=options)
        name = list(view)[2]
        before = view[name].read()
        child = os.fork()
        if child == 0:
            same = view[name].read() == before and len(gs.open(sys.argv[1], storage_options=options)) == len(view)
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert view[name].read() == before
        """,
        server.url("~auth:token=t0k/m.gguf"),
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_ctrl_c_ends_it(serve: Serve) -> None:
    server = serve({"m.gguf": MODEL})
    process = subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            "import sys, ggufslice as gs; gs.open(sys.argv[1])",
            server.url("~stall/m.gguf"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not server.requests:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)

    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in errors  # awaited, retrieved
    assert "Unclosed" not in errors


def test_nothing_is_left_open_at_the_end_of_a_program(serve: Serve) -> None:
    server = serve({"m.gguf": MODEL})
    result = program("import sys, ggufslice as gs; print(len(gs.open(sys.argv[1])))", server.url("m.gguf"))
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{len(TENSORS)}\n", "")


def test_a_local_model_loads_no_http(file: Path) -> None:
    result = program(
        "import sys, ggufslice as gs; view = gs.open(sys.argv[1]); view.close(); print('aiohttp' in sys.modules)", str(file)
    )
    assert result.stdout == "False\n"


# The parts


def test_run_returns_raises_and_cancels() -> None:
    async def give(value: int) -> int:
        await asyncio.sleep(0)
        if value < 0:
            raise ValueError(value)
        return value

    async def both(*values: int) -> list[int]:
        return await parallel([lambda v=v: give(v) for v in values], 2)  # type: ignore[misc]

    assert run(give(3)) == 3
    with pytest.raises(ValueError, match="-1"):
        run(give(-1))
    assert run(both(3, 1, 2)) == [3, 1, 2]
    with pytest.raises(ValueError, match="-5"):
        run(both(1, -5, 2))


def test_at_most_so_many_at_once() -> None:
    running = most = 0

    async def one() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async def many() -> None:
        await parallel([one] * 20, 3)

    run(many())
    assert most == 3


def test_a_source_is_made_once(file: Path) -> None:
    ref = gs.open(file).shards[0].source
    assert source_of(ref) is source_of(attrs.evolve(ref))
    assert isinstance(source_of(ref), LocalSource)


def test_local_bytes_are_counted(file: Path) -> None:
    ref = gs.open(file).shards[0].source
    tally = Tally()
    assert run(fetch(source_of(ref), 10, 3000, FAST, tally)) == MODEL[10:3000]
    assert (tally.of(ref).received, tally.requests) == (2990, 1)


@pytest.mark.parametrize(
    ("knob", "value"), [("max_jobs", 0), ("split_size", -1), ("attempts", True), ("header_first", 23), ("read_timeout", 0)]
)
def test_options_are_checked(knob: str, value: Any) -> None:
    with pytest.raises(ValueError, match=knob):
        gs.TransferOptions(**{knob: value})


def test_metadata_types_survive(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build_gguf({"general.architecture": "llama", "a": Typed(3, "u8")}, [TensorSpec("t", (4,), 0)]))
    assert gs.open(path).metadata.type("a") == "u8"


def test_shards_are_read_at_the_same_time(serve: Serve) -> None:
    shards = split_gguf(METADATA, TENSORS, 2)
    stalled = {f"m-{i:05d}-of-00002.gguf": data for i, data in enumerate(shards, 1)}
    server = serve(stalled)
    view = gs.open(
        server.url("~stall:n=1000,times=1/m-00001-of-00002.gguf"), options=gs.TransferOptions(backoff=0.0, read_timeout=0.3)
    )
    check(view)
    # Both shards' first replies stall: the second was asked before the first was asked again.
    assert {request.path.rpartition("/")[2] for request in server.requests[:2]} == set(stalled)
