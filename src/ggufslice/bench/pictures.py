"""Pictures of results: the card and the ladder's plot. Needs the extra ``card``."""

from __future__ import annotations

from ggufslice.bench._card import draw_card
from ggufslice.bench._plot import draw_ladder

__all__ = ["draw_card", "draw_ladder"]
