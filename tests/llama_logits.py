"""What a model answers: the log-probabilities that llama-server gives for the token behind a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggufslice.bench._binaries import Llama
from ggufslice.bench._server import serve

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROMPTS = ([1, 2, 3, 4, 5, 6, 7], [9, 40, 3, 77, 101, 5, 64, 12, 90, 33], [120, 119, 1, 1, 50])
"""Token ids: prompts that need no tokenizer, for vocabularies of at least 128."""


def log_probabilities(
    llama: Path, model: Path, *, vocab: int = 128, prompts: Sequence[Sequence[int]] = PROMPTS
) -> np.ndarray[Any, Any]:
    """Return, for each prompt, the log-probability of every token as the next one: shape [prompts, vocab].

    Parameters
    ----------
    llama
        Folder of llama.cpp's programs.
    model
        A GGUF file.
    vocab
        Tokens of the vocabulary.
    prompts
        Lists of token ids.
    """
    out = np.full((len(prompts), vocab), np.nan)
    with serve(model, ngl=0, ctx=128, llama=Llama(llama), timeout=120) as server:
        for row, prompt in enumerate(prompts):
            request = {
                "prompt": list(prompt),
                "n_predict": 1,
                "n_probs": vocab,
                "temperature": 0.0,
                "cache_prompt": False,
                "post_sampling_probs": False,
            }
            reply = server._ask("POST", "/completion", request)
            for token in reply["completion_probabilities"][0]["top_logprobs"]:
                out[row, token["id"]] = token["logprob"]
    assert np.isfinite(out).all()
    return out
