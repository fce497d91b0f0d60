"""The directive ``cut-rules``: what a cut must respect in each architecture, from the rules that the checks use."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sphinx.util.docutils import SphinxDirective

from ggufslice.arch._experts import PER_LAYER_USED, WIDTH_BY_USED
from ggufslice.arch._hparams import Hparams
from ggufslice.arch._table import ARCHITECTURES
from ggufslice.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from docutils import nodes
    from sphinx.application import Sphinx

    from ggufslice.arch._rules import Arch

_SOURCE = re.compile(r"\s*\((?=[^)]*\.(?:cpp|h):)[^)]*\)")  # where in llama.cpp a rule comes from: of interest in the code

_ASPECTS = {  # of rules that are made by another function, and so have no sentence of their own
    "mixer": "some are recurrent, the others attend",
    "recurrent": "which ones are",
    "window": "some attend within a window only",
    "rope": "some do without rope",
    "indexer": "some have an indexer",
    "indexer of": "some use that of a layer before",
    "compress ratio": "by how much keys and values are compressed",
}


class CutRules(SphinxDirective):
    """Lists every architecture once: those with rules of their own in a table, the others by name."""

    def run(self) -> list[nodes.Node]:
        """Generate Markdown, and parse it."""
        return self.parse_text_to_nodes(markdown())


def markdown() -> str:
    """Return the tables as Markdown."""
    by_rule: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, rule in sorted(ARCHITECTURES.items()):
        by_rule[_row(name, rule)].append(name)
    plain = by_rule.pop(("", "", ""), [])
    lines = [
        "| architecture | what a layer's number decides | keys that a cut writes or recounts | what must hold |",
        "|---|---|---|---|",
        *(f"| {_names(names)} | {' | '.join(row)} |" for row, names in sorted(by_rule.items(), key=lambda item: item[1])),
        "",
        "In every architecture arrays with an entry for each layer are cut along, layers that are dense because they come",
        "first (`leading_dense_block_count`) are counted again, and MTP blocks stay last.",
        "",
        f"Nothing else depends on a layer's number in these {len(plain)}, so any layers can be kept:",
        f"{_names(plain)}.",
        "",
        "Experts of these are as wide as `feed_forward_length` divided by `expert_used_count`, where nothing else says",
        "their width; `set_expert_used` writes it out first:",
        f"{_names(sorted(WIDTH_BY_USED))}.",
        "",
        "Only these honour another number of used experts for each layer:",
        f"{_names(sorted(PER_LAYER_USED))}.",
    ]
    return "\n".join(lines)


def _row(name: str, rule: Arch) -> tuple[str, str, str]:
    reason = rule.refuse(Hparams(name, Metadata())) or rule.refuse(_with_layer_embeddings(name))
    decided = [_aspect(aspect, trait) for aspect, trait in rule.traits.items()]
    decided += [_aspect(aspect, None) for aspect in rule.patterns if aspect not in rule.traits]
    written = [f"`{pattern.key}`" for pattern in rule.patterns.values()]
    written += [f"`{key}`" for key in (*rule.written, *rule.steps, *rule.heads, *rule.tails)]
    must = [f"keep {need.what}" for need in rule.needs]
    must += [
        f"the number of layers decides, and must not change: {aspect}" for aspect in rule.whole if aspect not in rule.written
    ]
    if reason:
        must.append(f"**no layer is dropped**: {_plain(reason)}")
    return "; ".join(decided), ", ".join(dict.fromkeys(written)), "; ".join(dict.fromkeys(must))


def _aspect(aspect: str, trait: Callable[..., Any] | None) -> str:
    said = _plain((getattr(trait, "__doc__", None) or "").partition("\n")[0]) or _ASPECTS.get(aspect, "")
    if not said:
        return f"*{aspect}*"
    # A docstring may not start with "The", so they say "Dense are the first blocks".
    said = re.sub(r"^(Dense|Recurrent) are (.+)", lambda m: f"{m[2]} are {m[1].lower()}", said)
    return f"*{aspect}*: {said if said[1:2].isupper() else said[0].lower() + said[1:]}"


def _plain(text: str) -> str:
    return _SOURCE.sub("", text).strip().rstrip(".").replace("|", "\\|")


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _with_layer_embeddings(name: str) -> Hparams:
    """Return numbers of a model for which a refusal that depends on them applies."""
    return Hparams(
        name,
        Metadata().set(
            {f"{name}.embedding_length_per_layer_input": 256}, types={f"{name}.embedding_length_per_layer_input": "u32"}
        ),
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("cut-rules", CutRules)
    return {"parallel_read_safe": True}
