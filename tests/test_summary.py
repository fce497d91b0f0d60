"""What a view shows of itself."""

from __future__ import annotations

import json
import math

from _views import opened
from ggufslice.ops import select_experts
from ggufslice.summary import plain, summary
from ggufslice.testing import TensorSpec, Typed, build_gguf, kimi_k3, split_gguf
from ggufslice.view import GGUF, Metadata


def test_a_model_is_shown_in_ten_lines() -> None:
    metadata, tensors = kimi_k3(layers=5, experts=8, used=2, width=256, latent=256, expert_ffn=256, vocab=512)
    shards = split_gguf(metadata | {"general.license": "other", "kimi-k3.nextn_predict_layers": 1}, tensors, 3)
    view = opened(*shards, url="https://me:secret@example.org/k3.gguf")
    n_bytes, params = sum(t.n_bytes for t in tensors), view.n_params
    lines = dict(line.split("  ", 1) for line in repr(view).splitlines())
    assert len(lines) == 10
    assert {label: text.strip() for label, text in lines.items() if label != "types"} == {
        "model": "Kimi-K3 (synthetic)",
        "source": "https://example.org/k3-00001-of-00003.gguf and 2 more",
        "architecture": "kimi-k3",
        "layers": "5, 1 of them for multi-token prediction",
        "experts": "8 in a layer, 2 used a token",
        "parameters": f"{params / 1e6:.2f} M",
        "size": f"{n_bytes / 1e6:.2f} MB in {len(tensors)} tensors",
        "bits/param": f"{8 * n_bytes / params:.3f}",
        "licence": "other",
    }
    assert str(view) == repr(view)


def test_a_cut_shows_what_it_is_a_part_of() -> None:
    metadata, tensors = kimi_k3(layers=2, experts=8, used=2, width=16, vocab=300)
    cut = opened(build_gguf(metadata, tensors)).pipe(select_experts(3))
    assert "2: [0-1] of 2" in repr(cut)
    assert "3 of 8 in a layer, 2 used a token" in repr(cut)


def test_types_are_ranked_by_bytes_and_used_experts_may_differ() -> None:
    data = build_gguf(
        {"general.architecture": "zzz", "zzz.expert_count": 4, "zzz.expert_used_count": [0, 2, 2]},
        [TensorSpec(f"t{kind}", (32, 8), kind) for kind in (0, 1, 2, 3, 6, 7, 8)],
    )
    text = summary(opened(data))
    # 1024, 512, 144, 160, 176, 192 and 272 bytes of 2480
    assert "F32 41.3%, F16 20.6%, Q8_0 11.0%, Q5_1 7.7%, Q5_0 7.1%, 2 more" in text
    assert "4 in a layer, 0 to 2 used a token" in text


def test_an_empty_view_can_be_shown() -> None:
    assert "without a name" in repr(GGUF(Metadata(()), ()))


def test_numbers_that_json_lacks_are_texts() -> None:
    keys = {"a": Typed(math.nan, "f32"), "b": Typed([math.inf, -math.inf, 1.5], "arr", "f64")}
    metadata = plain(opened(build_gguf(keys)))["metadata"]
    assert [metadata[key]["value"] for key in keys] == ["nan", ["inf", "-inf", 1.5]]
    json.dumps(metadata, allow_nan=False)
