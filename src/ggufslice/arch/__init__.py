"""What a layer or an expert is in each architecture, and whether a cut keeps them what they are.

`check` compares a view with the one that it was made from. It knows, from llama.cpp's source, what its loader and graphs
derive from a block's number or the number of blocks, so that a cut that would not load, or in which a kept layer would
silently compute something else, is found before a byte is fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufslice.arch import _experts
from ggufslice.arch._check import check_layers, sound
from ggufslice.arch._experts import expert_axis
from ggufslice.arch._finding import Finding
from ggufslice.arch._hparams import Hparams
from ggufslice.arch._kinds import kinds
from ggufslice.arch._stored import check_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufslice.view import GGUF

__all__ = ["Finding", "check", "expert_axis", "kinds", "trunk_length", "would_load"]


def check(view: GGUF) -> tuple[Finding, ...]:
    """Return what would be wrong with a view, or what is worth knowing of it.

    Parameters
    ----------
    view
        What operations made; a view as it was opened can only have findings about its files, and a fragment isn't
        meant to load.

    Returns
    -------
    tuple of Finding
        Refusals and remarks about files, then about layers, then about experts. Nothing is read.
    """
    return (*check_stored(view), *check_layers(view), *_experts.check(view))


def trunk_length(view: GGUF) -> int:
    """Return how many layers a model has, those for multi-token prediction at the tail left out."""
    return Hparams.of(view).n_trunk


def would_load(view: GGUF, layers: Sequence[int]) -> bool:
    """Tell from metadata alone whether these layers of a view, ascending, would load and stay what they are."""
    return sound(Hparams.of(view), layers)
