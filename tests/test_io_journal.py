"""The journal, its ledger and the lock: what is believed of a partial result, and what isn't."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from itertools import pairwise
from threading import Thread
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggufslice.errors import OutputError, SourceChangedError
from ggufslice.io.journal import Claim, Identity, Journal, Ledger, merged, verified
from ggufslice.io.lock import locked
from ggufslice.spans import SourceRef

if TYPE_CHECKING:
    from pathlib import Path

REF = SourceRef("https://user:pw@host/m.gguf?key=secret", 1000, {"etag": '"a"'})
IDENTITY = Identity.of("digest", [REF])


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "out.part.journal")


def test_what_was_recorded_is_read_back(journal: Journal) -> None:
    journal.begin(IDENTITY, [Claim(0, 10)])
    journal.append([Claim(20, 30, "abc"), Claim(40, 50)])
    recorded = journal.load()
    assert recorded is not None
    assert recorded.identity == IDENTITY
    assert recorded.claims == (Claim(0, 10), Claim(20, 30, "abc"), Claim(40, 50))
    assert not recorded.complete
    journal.append([], complete=True)
    again = journal.load()
    assert again is not None
    assert again.complete
    assert again.claims == recorded.claims


def test_it_holds_no_secret(journal: Journal) -> None:
    journal.begin(IDENTITY, [])
    text = journal.path.read_text()
    assert "secret" not in text
    assert "pw" not in text
    assert "https://host/m.gguf" in text


def test_no_journal_is_none(journal: Journal) -> None:
    assert journal.load() is None
    journal.remove()


def test_a_line_that_is_torn_or_changed_ends_what_is_believed(journal: Journal) -> None:
    journal.begin(IDENTITY, [])
    ends = [journal.path.stat().st_size]
    for i in range(3):
        journal.append([Claim(10 * i, 10 * i + 5)])
        ends.append(journal.path.stat().st_size)
    whole = journal.path.read_bytes()
    for size in range(len(whole)):
        journal.path.write_bytes(whole[:size])
        recorded = journal.load()
        # The line break behind a line is not needed to believe it.
        lines = sum(size >= end - 1 for end in ends)
        assert (recorded is None) == (lines == 0)
        if recorded:
            assert recorded.claims == tuple(Claim(10 * i, 10 * i + 5) for i in range(lines - 1))
    for at in range(0, len(whole), 7):
        journal.path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        recorded = journal.load()
        line = sum(at >= end for end in ends)
        found = -1 if recorded is None else len(recorded.claims)
        assert found < max(line, 1)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"not a journal\n", b"\0" * 4096, b"GGUF" + bytes(100)])
def test_foreign_content_is_not_believed(journal: Journal, content: bytes) -> None:
    journal.path.write_bytes(content)
    assert journal.load() is None


def test_claims_behind_a_torn_line_need_a_new_beginning(journal: Journal) -> None:
    journal.begin(IDENTITY, [Claim(0, 1)])
    with journal.path.open("ab") as file:
        file.write(b"torn")
    recorded = journal.load()
    assert recorded is not None
    journal.begin(IDENTITY, recorded.claims)
    journal.append([Claim(5, 6)])
    again = journal.load()
    assert again is not None
    assert again.claims == (Claim(0, 1), Claim(5, 6))


@pytest.mark.parametrize(
    "changed",
    [attrs.evolve(REF, size=999), attrs.evolve(REF, validators={"etag": '"b"'}), attrs.evolve(REF, validators={})],
)
def test_a_changed_source_is_named(changed: SourceRef) -> None:
    with pytest.raises(SourceChangedError, match=r"https://host/m\.gguf has changed since out was begun.*resume=False"):
        Identity.of("another", [changed]).check(IDENTITY, "out")


def test_another_cut_is_not_gone_on_with() -> None:
    with pytest.raises(OutputError, match=r"out holds part of another cut.*resume=False"):
        Identity.of("another", [REF]).check(IDENTITY, "out")
    IDENTITY.check(IDENTITY, "out")


def test_a_fresh_signature_in_the_query_is_the_same_source() -> None:
    fresh = attrs.evolve(REF, url="https://host/m.gguf?key=other")
    Identity.of("digest", [fresh]).check(IDENTITY, "out")


def test_the_ledger_joins_what_was_written_one_behind_the_other() -> None:
    ledger = Ledger(checksums=False)
    for at, data in [(0, b"abc"), (100, b"x"), (3, b"de"), (101, b"yz"), (50, b"q")]:
        ledger.note(at, data)
    ledger.note(5, 10)
    assert ledger.n_bytes == 19
    assert ledger.take() == [Claim(0, 15), Claim(50, 51), Claim(100, 103)]
    assert ledger.take() == []
    ledger.note(15, b"f")
    assert ledger.take() == [Claim(15, 16)]


def test_the_ledger_computes_a_digest_of_each_run() -> None:
    ledger = Ledger(checksums=True)
    for at, data in [(0, b"abc"), (9, b"x"), (3, b"de")]:
        ledger.note(at, data)
    assert ledger.take() == [
        Claim(0, 5, hashlib.sha256(b"abcde").hexdigest()),
        Claim(9, 10, hashlib.sha256(b"x").hexdigest()),
    ]


def test_the_ledger_may_be_told_by_many_threads() -> None:
    ledger = Ledger(checksums=True)

    def work(first: int) -> None:
        for i in range(500):
            ledger.note(first + i, bytes([i % 251]))

    threads = [Thread(target=work, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    digest = hashlib.sha256(bytes(i % 251 for i in range(500))).hexdigest()
    assert ledger.take() == [Claim(1000 * k, 1000 * k + 500, digest) for k in range(4)]


def test_a_claim_that_the_disk_does_not_hold_is_dropped() -> None:
    disk = b"0123456789"
    good, bad = hashlib.sha256(b"234").hexdigest(), hashlib.sha256(b"lost").hexdigest()
    claims = [Claim(0, 1), Claim(2, 5, good), Claim(5, 9, bad)]
    assert verified(claims, lambda start, stop: [disk[start:stop][:2], disk[start:stop][2:]]) == claims[:2]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=10))
def test_merged_claims_cover_the_same_bytes(pairs: list[tuple[int, int]]) -> None:
    intervals = merged([Claim(start, start + n) for start, n in pairs])
    assert {i for a, b in intervals for i in range(a, b)} == {i for start, n in pairs for i in range(start, start + n)}
    assert all(a[1] < b[0] for a, b in pairwise(intervals))


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        with (
            pytest.raises(OutputError, match=rf"another process writes this output \(process {os.getpid()} on"),
            locked(path),
        ):
            pass
        assert path.exists()
    assert list(tmp_path.iterdir()) == []


def test_another_process_can_not_take_it(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    program = f"from ggufslice.io.lock import locked; from pathlib import Path\nwith locked(Path({lock!r})): pass"
    with locked(tmp_path / "lock"):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "another process writes this output" in done.stderr
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("kind", ["a process that is gone", "an earlier process with our number", "never written to"])
def test_a_stale_lock_is_taken_over(tmp_path: Path, kind: str) -> None:
    path, host = tmp_path / "lock", socket.gethostname()
    path.write_text(
        {
            "a process that is gone": f"{host} {ended_process()} 00",
            "an earlier process with our number": f"{host} {os.getpid()} 00",
            "never written to": "",
        }[kind]
    )
    with locked(path):
        assert path.read_text().split()[:2] == [host, str(os.getpid())]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_another_host_is_never_stale(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("elsewhere 1 00")
    with pytest.raises(OutputError, match=r"process 1 on elsewhere, by .*lock.*remove that file"), locked(path):
        pass
    assert path.exists()
