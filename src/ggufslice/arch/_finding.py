"""What a check says."""

from __future__ import annotations

import attrs

__all__ = ["Finding"]


@attrs.frozen
class Finding:
    """One thing that a check found.

    Parameters
    ----------
    message
        What was found and what was expected.
    hint
        What to do: which cuts would work.
    refuse
        Whether llama.cpp would not load the result, or a kept layer would compute something else. Otherwise it is a
        remark for the receipt.
    """

    message: str
    hint: str = ""
    refuse: bool = True

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message
