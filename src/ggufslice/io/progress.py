"""What a write tells whoever watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ggufslice.io.plan import Plan

__all__ = ["Progress"]


class Progress(Protocol):
    """Watches a write. Methods are called from another thread, a few times a second, and must return at once."""

    def started(self, plan: Plan, resumed: int) -> None:
        """Tell that bytes are about to move: ``plan.tensor_bytes``, of which an earlier run has written `resumed`."""

    def advanced(self, n_bytes: int) -> None:
        """Tell that so many more bytes of tensors have been written."""

    def noted(self, text: str) -> None:
        """Tell something that a reader should know, such as why a partial result was not gone on with."""

    def finished(self) -> None:
        """Tell that the result is complete and has its final name."""


class Silent:
    """Watches without a word."""

    def started(self, plan: Plan, resumed: int) -> None:
        """See `Progress`."""

    def advanced(self, n_bytes: int) -> None:
        """See `Progress`."""

    def noted(self, text: str) -> None:
        """See `Progress`."""

    def finished(self) -> None:
        """See `Progress`."""
