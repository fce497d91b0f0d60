"""A model's numbers as llama.cpp reads them: scalars that stand for every block, arrays with an entry for each."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ggufslice.metadata import Metadata
    from ggufslice.view import GGUF

__all__ = ["MAX_BLOCKS", "Hparams"]

MAX_BLOCKS = 512  # llama.cpp b11434, src/llama-hparams.h:11, LLAMA_MAX_LAYERS


@attrs.frozen(eq=False)
class Hparams:
    """The metadata of a model, read as llama.cpp does, with changes that aren't written yet.

    Parameters
    ----------
    architecture
        ``general.architecture``: the prefix of the keys.
    metadata
        The records.
    changed
        Key to another value; None where the key goes.
    types
        Types of keys that `changed` brings, or gives another type.
    """

    architecture: str
    metadata: Metadata
    changed: Mapping[str, Any] = attrs.field(factory=dict)
    types: Mapping[str, str] = attrs.field(factory=dict)
    _decoded: dict[str, Any] = attrs.field(factory=dict, repr=False)

    @classmethod
    def of(cls, view: GGUF) -> Hparams:
        """Read those of a view."""
        return cls(view.architecture, view.metadata)

    def key(self, suffix: str) -> str:
        """Return the full key."""
        return f"{self.architecture}.{suffix}"

    def value(self, key: str) -> Any:
        """Return the value of a full key, or None; each array is decoded once."""
        if key in self.changed:
            return self.changed[key]
        if key not in self._decoded:
            self._decoded[key] = self.metadata.get(key)
        return self._decoded[key]

    def names(self) -> Iterator[str]:
        """Yield the full keys that are there."""
        yield from (
            key for key in {**dict.fromkeys(self.metadata), **self.changed} if self.changed.get(key, self) is not None
        )

    def but(self, values: Mapping[str, Any], type_: str | None = None) -> Hparams:
        """Return these numbers with other values of full keys; values that are there already change nothing."""
        news = {key: value for key, value in values.items() if self.value(key) != value}
        if not news:
            return self
        types = {**self.types, **dict.fromkeys(news, type_)} if type_ else self.types
        return attrs.evolve(self, changed={**self.changed, **news}, types=types)

    def written(self) -> Metadata:
        """Return metadata with the changes; records that don't change keep their bytes and their place."""
        gone = [key for key, value in self.changed.items() if value is None]
        values = {key: value for key, value in self.changed.items() if value is not None}
        return self.metadata.set(values, types=self.types).remove(gone) if self.changed else self.metadata

    def get(self, suffix: str, default: Any = None) -> Any:
        """Return the value of an architecture's key."""
        value = self.value(f"{self.architecture}.{suffix}")
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
        """Blocks of the trunk: without those for multi-token prediction (src/llama-hparams.cpp:348), unless all are."""
        return min(self.n_blocks - self.number("nextn_predict_layers") or self.n_blocks, self.n_named)

    @cached_property
    def n_named(self) -> int:
        """Blocks that have tensors: fewer where the same block runs more than once (src/models/hrm-text.cpp:21)."""
        stack = self.number("hrm.layers_per_stack") if self.architecture == "hrm_text" else 0
        return 2 * stack or self.n_blocks

    @cached_property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary, as src/models/deepseek2.cpp:5 counts them."""
        return self.number("vocab_size") or len(self.value("tokenizer.ggml.tokens") or ())

    @cached_property
    def head_dims(self) -> tuple[int, int, int]:
        """Length of a key, of a value and of what rope turns; 0 where block 0 has no heads (src/llama-model.cpp:1437)."""
        heads = self.at("attention.head_count", 0, 0)
        if not isinstance(heads, int) or not heads:
            return 0, 0, 0
        width = self.number("embedding_length") // heads
        key = self.get("attention.key_length", width)
        return key, self.get("attention.value_length", width), self.get("rope.dimension_count", key)
