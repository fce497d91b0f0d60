"""Servers that misbehave: every write ends with the very file or with an error of the right type and no file at all."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggufslice as gs
from _writing import QUICK, check_accounts, names
from ggufslice.io.tally import Tally
from ggufslice.testing import RangeServer, build_gguf, synthetic

if TYPE_CHECKING:
    from collections.abc import Iterator

METADATA, TENSORS = synthetic(layers=2, experts=8, ffn=128, expert_ffn=64)
FILE = build_gguf(METADATA, TENSORS)
OPTIONS = attrs.evolve(QUICK, header_first=1 << 19)


@pytest.fixture(scope="module")
def server() -> Iterator[RangeServer]:
    files = {"m.gguf": FILE}
    with RangeServer(files) as other, RangeServer(files, other=other) as server:
        yield server


@pytest.fixture
def tallies(monkeypatch: pytest.MonkeyPatch) -> list[Tally]:
    """Return the counters of all writes, failed ones too."""
    made: list[Tally] = []

    def make() -> Tally:
        made.append(Tally())
        return made[-1]

    monkeypatch.setattr("ggufslice.io.write.Tally", make)
    return made


def check(tally: Tally) -> None:
    """Check that every byte that was received is accounted for."""
    transfer = tally.transfer()
    assert transfer.payload + transfer.gap + transfer.header + transfer.wasted == transfer.received


OK = [
    "status:code=500,after=1,times=2",
    "status:code=502,after=2,times=2",
    "status:code=503,after=1,times=2,retry_after=0",
    "status:code=429,after=1,times=2,retry_after=0,form=date",
    "status:code=429,after=1,times=1,retry_after=0,form=ratelimit",
    "status:code=408,after=3,times=1",
    "status:code=416,after=3,times=1",
    "no-head",
    "redirect",
    "redirect:to=relative,code=307",
    "sign:to=other,uses=4",
    "sign:to=same,uses=3,style=amz",
    "weak-etag:after=1",
    "weak-etag",
    "no-etag",
    "no-etag:modified=no",
    "gzip",
    "cap:n=20000,after=1",
    "unknown-total:after=1",
    "cut:n=0,after=1,times=2",
    "cut:n=20000,after=1",
    "cut:n=20000,length=no,after=1",
    "reset:n=20000,after=1",
    "reset:n=0,after=1,times=2",
    "stall:n=1000,after=1,times=2",
    "drip:n=30000,every=0.01,after=1",
    "rate:bytes_per_s=2000000,after=1",
    "chunked",
]
FAILS = [
    ("status:code=404,after=1", gs.SourceError),
    ("status:code=401,after=1", gs.AuthError),
    ("status:code=403,after=1", gs.AuthError),
    ("status:code=500,after=1", gs.SourceError),
    ("status:code=503,after=1", gs.SourceError),
    ("status:code=429,after=1,retry_after=9", gs.SourceError),
    ("new-etag:after=1", gs.SourceChangedError),
    ("new-etag:after=4", gs.SourceChangedError),
    ("swap:after=3", gs.SourceChangedError),
    ("weak-etag/~swap:after=3", gs.SourceChangedError),
    ("no-etag:after=3/~swap:after=3", gs.SourceChangedError),
    ("gzip:always=yes,after=1", gs.RangeNotSupportedError),
    ("gzip:always=yes,ranges=no,after=1", gs.RangeNotSupportedError),
    ("ignore-range:after=1", gs.RangeNotSupportedError),
    ("shift:after=1", gs.RangeNotSupportedError),
    ("shift:by=1,after=1", gs.RangeNotSupportedError),
    ("whole-206:after=1", gs.RangeNotSupportedError),
    ("multipart:after=1", gs.RangeNotSupportedError),
    ("no-content-range:after=1", gs.RangeNotSupportedError),
    ("wrong-total:after=1", gs.SourceChangedError),
    ("overlong:after=1", gs.RangeNotSupportedError),
    ("overlong:length=no,after=1", gs.RangeNotSupportedError),
    ("cut:n=0,after=1", gs.SourceError),
    ("reset:n=0,after=1", gs.SourceError),
    ("stall:n=0,after=1", gs.SourceError),
]


@pytest.mark.parametrize("fault", OK)
def test_what_can_be_overcome_ends_with_the_very_file(
    server: RangeServer, tmp_path: Path, tallies: list[Tally], fault: str
) -> None:
    # A link that is used up is renewed once for each request, so they mustn't use each other's up.
    jobs = 1 if "uses" in fault else None
    receipt = gs.open(server.url(f"~{fault}/m.gguf"), options=OPTIONS).write(tmp_path / "out.gguf", jobs=jobs)
    assert (tmp_path / "out.gguf").read_bytes() == FILE
    assert names(tmp_path) == ["out.gguf"]
    transfer = check_accounts(receipt)
    assert transfer.payload == sum(t.n_bytes for t in TENSORS)
    check(*tallies)


@pytest.mark.parametrize(("fault", "error"), FAILS, ids=[fault for fault, _ in FAILS])
def test_what_can_not_ends_with_an_error_and_no_file(
    server: RangeServer, tmp_path: Path, tallies: list[Tally], fault: str, error: type[gs.SourceError]
) -> None:
    out = tmp_path / "out.gguf"
    view = gs.open(server.url(f"~{fault}/m.gguf"), options=OPTIONS)
    with pytest.raises(error, match=r"m\.gguf") as caught:
        view.write(out)
    assert type(caught.value) is error
    assert not out.exists()
    check(*tallies)


faults = st.lists(
    st.one_of(
        st.builds(
            "status:code={},after={},times={},retry_after=0".format,
            st.sampled_from([429, 500, 502, 503, 404, 416]),
            st.integers(1, 8),
            st.integers(1, 2),
        ),
        st.builds(
            "{}:n={},after={},times={}".format,
            st.sampled_from(["cut", "reset", "cap"]),
            st.integers(0, 40_000),
            st.integers(1, 8),
            st.integers(1, 4),
        ),
        st.builds(
            "{}:after={},times=1".format,
            st.sampled_from(
                ["overlong", "shift", "new-etag", "swap", "ignore-range", "multipart", "gzip:always=yes,times=1"]
            ).map(lambda name: name.partition(":")[0]),
            st.integers(1, 12),
        ),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda fault: fault.partition(":")[0],
)


@settings(max_examples=25)
@given(faults, st.integers(1, 8), st.booleans())
def test_any_sequence_of_faults_ends_well_or_clearly_and_can_be_gone_on_with(
    sequence: list[str],
    jobs: int,
    checksums: bool,  # noqa: FBT001 - hypothesis gives arguments by position
) -> None:
    with tempfile.TemporaryDirectory() as folder, RangeServer({"m.gguf": FILE}) as server:
        out = Path(folder) / "out.gguf"
        url = server.url("/".join(f"~{fault}" for fault in sequence) + "/m.gguf")
        options = attrs.evolve(OPTIONS, checksums=checksums)
        view = gs.open(url, options=options)
        for _ in range(12):
            try:
                receipt = view.write(out, jobs=jobs)
            except gs.SourceError as error:
                assert not out.exists()
                if isinstance(error, gs.SourceChangedError):
                    with contextlib.suppress(gs.SourceError):
                        view = gs.open(url, options=options)
                continue
            break
        assert out.read_bytes() == FILE
        check_accounts(receipt)
