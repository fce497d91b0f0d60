"""`ExpertPlan`: the experts that each block keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ggufslice.errors import FormatError, SourceError, UnsupportedCutError
from ggufslice.selection._imatrix import WAYS, scores
from ggufslice.selection._rules import Rule, expert_ids, positive, whole
from ggufslice.units import blocks_by_count, ranges_text
from ggufslice.view import GGUF, source_name

if TYPE_CHECKING:
    from collections.abc import Collection
    from os import PathLike

__all__ = ["ExpertPlan", "is_plan"]

_FORMS = '{"layers": {"1": {"keep": [0, 3]}}}, {"1": [0, 3]}, a list of ids, or JSON lines'


def is_plan(value: Mapping[Any, Any]) -> bool:
    """Whether a mapping is a plan as JSON, and not ids by block."""
    return bool({"layers", "rule"} & set(value))


def _keep(keep: Mapping[Any, Any]) -> dict[int, tuple[int, ...]]:
    return {int(block): expert_ids(ids, f"block {block}") for block, ids in keep.items()}


@attrs.frozen
class ExpertPlan:
    """Which experts each block keeps, in the numbers of the view that the plan is applied to.

    Parameters
    ----------
    keep
        Block number to kept ids, in their new order.
    rule
        For blocks that `keep` doesn't name: all of them where it is empty, else only MTP blocks, with a note in the receipt.
    source
        Where the choice comes from, in words.
    blocks
        For each block of the view the number that `rule` knows it by, where that is another one.

    Examples
    --------
    >>> ExpertPlan.strided(2).resolve({0: 8, 1: 8})[0]
    {0: (0, 4), 1: (0, 4)}
    >>> ExpertPlan({0: [7, 1], 2: [0, 3]}).for_layers([2]).keep
    {0: (0, 3)}
    """

    keep: Mapping[int, tuple[int, ...]] = attrs.field(factory=dict, converter=_keep)
    rule: Rule | None = None
    source: str = ""
    blocks: tuple[int, ...] | None = None

    @classmethod
    def first(cls, n: int) -> ExpertPlan:
        """Keep the first `n` experts of each block."""
        return cls(rule=Rule("first", n))

    @classmethod
    def strided(cls, n: int) -> ExpertPlan:
        """Keep `n` experts of each block, spread evenly from the first on."""
        return cls(rule=Rule("strided", n))

    @classmethod
    def random(cls, n: int, *, seed: int = 0) -> ExpertPlan:
        """Keep `n` experts of each block by chance; the same seed makes the same choice everywhere."""
        return cls(rule=Rule("random", n, seed))

    @classmethod
    def from_imatrix(cls, path_or_url: str | PathLike[str] | GGUF, n: int, *, by: str = "count") -> ExpertPlan:
        """Keep the `n` experts of each block that an importance matrix saw most.

        Fetches the counts (four bytes an expert), not the whole file. MTP blocks, which llama-imatrix doesn't visit unless
        told to, fall back to their first `n` experts, and the receipt says so.

        Parameters
        ----------
        path_or_url
            A GGUF that llama-imatrix wrote, as for `ggufslice.open`, or one that is open.
        n
            Experts to keep.
        by
            ``"count"``: how many tokens were routed to the expert. ``"count*activation"``: that, times the mean square of
            what reaches its down projection.

        Raises
        ------
        FormatError
            The file isn't an importance matrix, or has no counts by expert.
        ValueError
            No such `by`, or `n` isn't a positive number.

        Notes
        -----
        llama.cpp b11434, tools/imatrix/imatrix.cpp:599-672: ``counts`` has one entry for each expert; ``in_sum2`` sums the
        squares.
        """
        from ggufslice.io.open import open as open_source  # noqa: PLC0415 - the front door to I/O

        if by not in WAYS:
            raise ValueError(f"by={by!r}: experts are ranked by {' or by '.join(map(repr, WAYS))}")
        n = positive(n, "experts to keep")
        view = path_or_url if isinstance(path_or_url, GGUF) else open_source(path_or_url)
        keep: dict[int, list[int]] = {}
        for block, of_experts in scores(view, by).items():
            if n > len(of_experts):
                raise UnsupportedCutError(
                    f"{source_name(view)}: block {block} has {len(of_experts)} experts: {n} of them can't be kept"
                )
            if of_experts.any():
                keep[block] = sorted(np.argsort(-of_experts, kind="stable")[:n].tolist())
        return cls(keep, Rule("first", n), f"imatrix {source_name(view)} by {by}")

    @classmethod
    def from_json(cls, path: str | PathLike[str], *, n: int | None = None) -> ExpertPlan:
        """Read a plan from a file.

        Parameters
        ----------
        path
            JSON: what `save` wrote, ``{"layers": {"1": {"keep": [...]}}}``, ``{"1": [...]}``, or one list of ids for all
            blocks. Or JSON lines of ``{"1": [...]}``.
        n
            The lists rank experts, the best first: keep the first `n` of each.

        Raises
        ------
        FormatError
            None of these forms, or ids that can't be.
        SourceError
            The file can't be read.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            try:
                value = json.loads(text)
            except json.JSONDecodeError:
                lines = [json.loads(line) for line in text.splitlines() if line.strip()]
                value = {block: ids for line in lines for block, ids in line.items()}
                if len(value) != sum(map(len, lines)):
                    raise ValueError("a block is there twice") from None
            plan = cls.of(value)
        except OSError as error:
            raise SourceError(
                f"{path}: the plan of experts can't be read ({error.strerror or error}); expected a file of JSON, {_FORMS}"
            ) from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise FormatError(f"{path}: not a plan of experts ({error}); expected {_FORMS}") from None
        plan = plan if n is None else plan.best(n)
        return plan if plan.source else attrs.evolve(plan, source=f"file {Path(path).name}")

    @classmethod
    def of(cls, value: Any) -> ExpertPlan:
        """Make a plan of what `select_experts` takes: a number, a list of ids, ids by block, a plan, or one as JSON.

        Raises
        ------
        TypeError
            Something else, or ids that aren't whole numbers.
        ValueError
            A number below 1, ids that are negative or there twice.
        """
        if isinstance(value, ExpertPlan):
            return value
        if not isinstance(value, Iterable):
            return cls.first(whole(value, "experts to keep"))
        if not isinstance(value, Mapping):
            ids = expert_ids(value)
            return cls(rule=Rule("listed", len(ids), listed=ids))
        if not value:
            raise ValueError("a plan names at least one block or a rule")
        if not is_plan(value):
            return cls(value)
        layers = {b: v["keep"] if isinstance(v, Mapping) else v for b, v in value.get("layers", {}).items()}
        rule = Rule(**value["rule"]) if value.get("rule") else None
        blocks = value.get("blocks")
        return cls(layers, rule, str(value.get("source", "")), None if blocks is None else tuple(blocks))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON-able values; `of` reads them."""
        out: dict[str, Any] = {}
        if self.keep:
            out["layers"] = {str(block): {"keep": list(ids)} for block, ids in self.keep.items()}
        if self.rule:
            out["rule"] = self.rule.to_json()
        if self.source:
            out["source"] = self.source
        if self.blocks is not None:
            out["blocks"] = list(self.blocks)
        return out

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON, for `from_json` and for ``--experts @plan.json``."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    def best(self, n: int) -> ExpertPlan:
        """Return a plan with the first `n` of each list, in ascending order.

        Raises
        ------
        ValueError
            A list is shorter.
        """
        n = positive(n, "experts to keep")
        for block, ids in self.keep.items():
            if len(ids) < n:
                raise ValueError(f"block {block} lists {len(ids)} experts: {n} of them can't be kept")
        rule = self.rule
        if rule and rule.kind == "listed":
            if rule.n < n:
                raise ValueError(f"{rule.n} experts are listed: {n} of them can't be kept")
            rule = Rule("listed", n, listed=tuple(sorted(rule.listed[:n])))
        elif rule:
            rule = attrs.evolve(rule, n=n)
        return attrs.evolve(self, keep={block: sorted(ids[:n]) for block, ids in self.keep.items()}, rule=rule)

    def for_layers(self, kept: Iterable[int]) -> ExpertPlan:
        """Bring the plan along when layers are cut: ``plan.for_layers(kept)`` goes behind ``keep_layers(kept)``.

        Parameters
        ----------
        kept
            Numbers of the kept blocks, in their new order; those of MTP blocks too, where they stay.
        """
        numbers = [whole(i, "layers") for i in kept]
        known = numbers if self.blocks is None else [self.blocks[i] for i in numbers]
        return attrs.evolve(
            self,
            keep={new: self.keep[old] for new, old in enumerate(numbers) if old in self.keep},
            blocks=tuple(known) if self.rule else None,
        )

    def resolve(
        self, experts: Mapping[int, int], mtp: Collection[int] = ()
    ) -> tuple[dict[int, tuple[int, ...]], tuple[str, ...]]:
        """Work out the kept ids of every MoE block.

        Parameters
        ----------
        experts
            Block number to how many experts it has.
        mtp
            Which of the blocks are MTP blocks.

        Returns
        -------
        ids : dict
            Block number to kept ids, in their new order.
        notes : tuple of str
            What a reader of the receipt should know.

        Raises
        ------
        UnsupportedCutError
            A block that the plan doesn't cover, one that has no experts, an id out of range, or blocks that keep different
            numbers.
        """
        for block in self.keep:
            if block not in experts:
                raise UnsupportedCutError(
                    f"block {block} has no routed experts to choose from; those with experts are {ranges_text(experts)}"
                )
        ids: dict[int, tuple[int, ...]] = {}
        by_rule: list[int] = []
        missing: list[int] = []
        for block, count in experts.items():
            if block in self.keep:
                ids[block] = self.keep[block]
            elif self.rule and (not self.keep or block in mtp):
                known = self.blocks[block] if self.blocks is not None and block < len(self.blocks) else block
                ids[block] = self.rule.ids(known, count)
                by_rule.append(block)
            else:
                missing.append(block)
        if missing:
            are_mtp = " (MTP blocks are cut too: their experts share the count)" if set(missing) & set(mtp) else ""
            raise UnsupportedCutError(
                f"the plan says nothing of the experts of block{_s(missing)} {ranges_text(missing)}{are_mtp}; name all of "
                f"{ranges_text(experts)}"
            )
        for block, chosen in ids.items():
            if max(chosen) >= experts[block]:
                raise UnsupportedCutError(
                    f"block {block} has experts 0 to {experts[block] - 1}: there is no expert {max(chosen)}"
                )
        _same_count(ids)
        notes: tuple[str, ...] = ()
        if self.keep and by_rule and self.rule:
            which = f"MTP block{_s(by_rule)} {ranges_text(by_rule)}"
            notes = (f"experts of {which} were not counted: kept the {self.rule.kind} {self.rule.n}",)
        return ids, notes


def _same_count(ids: Mapping[int, Sequence[int]]) -> None:
    counts = {block: len(chosen) for block, chosen in ids.items()}
    if len(set(counts.values())) > 1:
        raise UnsupportedCutError(
            f"blocks keep different numbers of experts ({blocks_by_count(counts)}), but expert_count is one number for the "
            "whole model"
        )


def _s(items: Collection[int]) -> str:
    return "" if len(items) == 1 else "s"
