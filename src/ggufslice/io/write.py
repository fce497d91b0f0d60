"""`write`: from a plan to a complete file under its final name, or to a partial one that can be gone on with."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ggufslice.errors import SourceError
from ggufslice.io.engine import Engine
from ggufslice.io.journal import Identity, Journal, Ledger, merged, verified
from ggufslice.io.lock import locked
from ggufslice.io.loop import run
from ggufslice.io.open import RemoteGGUF
from ggufslice.io.plan import make_plan
from ggufslice.io.progress import Silent
from ggufslice.io.requests import outstanding
from ggufslice.io.sink import Sink, check_target, output_errors, relatives, shard_paths
from ggufslice.io.sources import LocalSource, source_of
from ggufslice.io.tally import Tally
from ggufslice.provenance import source_refs
from ggufslice.receipt import Receipt

if TYPE_CHECKING:
    from os import PathLike

    from ggufslice.io.journal import Claim, Recorded
    from ggufslice.io.plan import Plan
    from ggufslice.io.progress import Progress
    from ggufslice.view import GGUF

__all__ = ["write"]

_SAVE_SECONDS = 2.0  # between two records of what has arrived: each waits for the disk


def write(
    view: GGUF,
    path: str | PathLike[str],
    *,
    jobs: int | None = None,
    overwrite: bool = False,
    resume: bool = True,
    progress: Progress | None = None,
    max_shard_size: int | None = None,
    force: bool = False,
) -> Receipt:
    """Fetch and write; see `GGUF.write`."""
    started = time.monotonic()
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs!r}, not a positive number")
    plan = make_plan(view, max_shard_size=max_shard_size, force=force)
    path = Path(path)
    result = _Result(path, plan, progress or Silent())
    base = view.base
    shards = [shard.source for shard in base.shards] if isinstance(base, RemoteGGUF) else []
    refs = dict.fromkeys((*shards, *source_refs(base), *source_refs(view)))
    inputs = [source.path for ref in refs if isinstance(source := source_of(ref), LocalSource)]
    check_target(path, result.finals, inputs, overwrite=True)
    with locked(path.with_name(path.name + ".part.lock")):
        recorded = result.journal.load() if resume else None
        if recorded is not None and recorded.complete and recorded.identity != result.identity and not result.sink.begun():
            # Killed between the last rename and the end of its journal: the earlier result is there, and whole.
            recorded = None
        if recorded is not None:
            result.identity.check(recorded.identity, str(path))
        if not result.is_made(recorded):
            check_target(path, result.finals, inputs, overwrite=overwrite)
            result.make(recorded, jobs or plan.options.max_jobs)
        result.publish()
    transfer = result.tally.transfer(seconds=time.monotonic() - started, resumed=result.resumed)
    if isinstance(base, RemoteGGUF):
        transfer = base.transfer + transfer
    return Receipt.of_view(
        plan.view,
        transfer=transfer,
        forced=plan.forced,
        file_bytes=plan.file_bytes,
        metadata_bytes=plan.metadata_bytes,
    )


class _Result:
    """A result on its way to its final name.

    Parameters
    ----------
    path
        As the user gave it.
    plan
        What is to be made.
    progress
        Told what happens.
    """

    def __init__(self, path: Path, plan: Plan, progress: Progress) -> None:
        self.finals = shard_paths(path, len(plan.files))
        self.identity = Identity.of(plan.digest, plan.source_bytes)
        self.journal = Journal(path.with_name(path.name + ".part.journal"))
        self.sink = Sink(self.finals, plan.files)
        self.tally = Tally()
        self.resumed = 0
        self._path = path
        self._plan = plan
        self._progress = progress
        self._ledger = Ledger(checksums=plan.options.checksums)
        self._claims: list[Claim] = []
        self._shown = 0
        self._saved = time.monotonic()
        self._lock = Lock()

    def is_made(self, recorded: Recorded | None) -> bool:
        """Whether an earlier try has made all files, and only final names are lacking."""
        if recorded is None or not recorded.complete or not self.sink.finished():
            return False
        self.resumed = self._plan.tensor_bytes
        self._progress.started(self._plan, self.resumed)
        return True

    def make(self, recorded: Recorded | None, jobs: int) -> None:
        """Write the partial files until they are complete.

        Parameters
        ----------
        recorded
            What an earlier try has left of this result.
        jobs
            The most requests at a time.
        """
        plan = self._plan
        with self.sink:
            self._claims = self._open(recorded)
            done = merged(self._claims)
            self.resumed = sum(stop - start for start, stop in done)
            self._progress.started(plan, self.resumed)
            engine = Engine(self.sink, self._ledger, self.tally, plan.options, jobs, self._pulse)
            try:
                run(engine.run(outstanding(plan.copies(), done)))
            finally:
                self._keep(save=True)
            missing = sum(len(piece) for piece, _ in outstanding(plan.copies(), merged(self._claims)))
            if missing:
                raise SourceError(f"{self._path}: {missing} bytes did not arrive; write again to fetch them")
            run(engine.confirm(plan.source_bytes))
            self.sink.complete()
            self.journal.append([], complete=True)

    def publish(self) -> None:
        """Give the complete files their final names and clear up."""
        self.sink.publish()
        if len(self.finals) > 1:
            for stale in relatives(self._path):
                if stale not in self.finals:
                    stale.unlink()
        self.journal.remove()
        self._progress.finished()

    def _open(self, recorded: Recorded | None) -> list[Claim]:
        """Open the partial files, and return what is to be believed of what they hold."""
        if recorded is not None and not self.sink.exists():
            recorded = None
        unproven = [ref.display for ref in self._plan.source_bytes if not ref.validators]
        if recorded is not None and unproven:
            self._progress.noted(f"starting afresh: {unproven[0]} has nothing that tells whether it is still the same file")
            recorded = None
        if recorded is None:
            # The journal goes first: it must never speak of a file that was made anew.
            self.journal.remove()
        self.sink.open(fresh=recorded is None)
        claims = verified(recorded.claims, self.sink.read) if recorded else []
        if recorded and len(claims) < len(recorded.claims):
            self._progress.noted("the disk has lost some of what was written: it is fetched again")
        with output_errors(self._path):
            self.journal.begin(self.identity, claims)
        return claims

    def _pulse(self) -> None:
        self._keep(save=time.monotonic() - self._saved >= _SAVE_SECONDS)

    def _keep(self, *, save: bool) -> None:
        """Record what was written, once it is on the disk, and show it."""
        with self._lock:
            n_bytes = self._ledger.n_bytes
            claims = self._ledger.take() if save else []
            if claims:
                self.sink.sync()
                with output_errors(self._path):
                    self.journal.append(claims)
                self._claims += claims
                self._saved = time.monotonic()
            if n_bytes > self._shown:
                shown, self._shown = self._shown, n_bytes
                self._progress.advanced(n_bytes - shown)
