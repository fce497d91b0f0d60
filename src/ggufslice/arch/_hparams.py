"""A model's numbers as llama.cpp reads them: scalars that stand for every block, arrays with an entry for each."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from ggufslice.metadata import Metadata
    from ggufslice.view import GGUF

__all__ = ["MAX_BLOCKS", "Hparams"]

MAX_BLOCKS = 512  # llama.cpp b11434, src/llama-hparams.h:11, LLAMA_MAX_LAYERS


@attrs.frozen(eq=False)
class Hparams:
    """The metadata of a model, read as llama.cpp does.

    Parameters
    ----------
    architecture
        ``general.architecture``: the prefix of the keys.
    metadata
        The records.
    """

    architecture: str
    metadata: Metadata

    @classmethod
    def of(cls, view: GGUF) -> Hparams:
        """Read those of a view."""
        return cls(view.architecture, view.metadata)

    @cached_property
    def _values(self) -> dict[str, Any]:
        return {}

    def get(self, suffix: str, default: Any = None) -> Any:
        """Return the value of an architecture's key; each array is decoded once."""
        key = f"{self.architecture}.{suffix}"
        if key not in self._values:
            self._values[key] = self.metadata.get(key)
        value = self._values[key]
        return default if value is None else value

    def number(self, suffix: str) -> int:
        """Return the value of a key that is one number; 0 where it isn't there or is something else."""
        value = self.get(suffix, 0)
        return int(value) if isinstance(value, int | float) else 0

    def at(self, suffix: str, block: int, default: Any = None) -> Any:
        """Return the entry of a block: of an array, or the one value for all (src/llama-model-loader.cpp:459)."""
        value = self.get(suffix)
        if isinstance(value, list):
            return value[block] if block < len(value) else default
        return default if value is None else value

    @cached_property
    def n_blocks(self) -> int:
        """All blocks, those for multi-token prediction at the tail included."""
        return self.number("block_count")

    @cached_property
    def n_trunk(self) -> int:
        """Blocks of the trunk: without those for multi-token prediction (src/llama-hparams.cpp:348)."""
        return min(self.n_blocks - self.number("nextn_predict_layers"), self.n_named)

    @cached_property
    def n_named(self) -> int:
        """Blocks that have tensors: fewer where the same block runs more than once (src/models/hrm-text.cpp:21)."""
        stack = self.number("hrm.layers_per_stack") if self.architecture == "hrm_text" else 0
        return 2 * stack or self.n_blocks

    @cached_property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary, as src/models/deepseek2.cpp:5 counts them."""
        return self.number("vocab_size") or len(self.metadata.get("tokenizer.ggml.tokens", ()))

    @cached_property
    def head_dims(self) -> tuple[int, int, int]:
        """Length of a key, of a value and of what rope turns; 0 where block 0 has no heads (src/llama-model.cpp:1437)."""
        heads = self.at("attention.head_count", 0, 0)
        if not heads:
            return 0, 0, 0
        width = self.number("embedding_length") // heads
        key = self.get("attention.key_length", width)
        return key, self.get("attention.value_length", width), self.get("rope.dimension_count", key)
