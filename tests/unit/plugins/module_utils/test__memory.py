# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sum against what is published of models and machines."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._memory import (
    advice,
    cache_bits,
    reckon,
    token_bytes,
    tokens,
    told,
)

RTX_PRO_6000 = 97887 << 20
KIMI = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168,
        "max_position_embeddings": 262144}  # fmt: skip
LLAMA_70B = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
             "head_dim": 128, "max_position_embeddings": 131072}  # fmt: skip
VLLM_KIMI = {"tensor-parallel-size": 8, "gpu-memory-utilization": 0.93, "max-num-batched-tokens": 4096}


def need(engine: str, flags: dict[str, Any], config: dict[str, Any], weights: float, concurrency: int = 1) -> Any:
    return reckon(engine, flags, config, int(weights), RTX_PRO_6000, concurrency)


def test_bytes_for_a_token() -> None:
    # DeepSeek V3, whose cache Kimi K2 has: 70.272 KB a token in BF16 (arXiv:2505.09343, table 1).
    assert token_bytes(KIMI, 8, 16) == 70_272
    # Shaped like Qwen 2.5 72B and, below, Llama 3.1 405B: 327.680 and 516.096 KB in the same table.
    assert token_bytes(LLAMA_70B, 1, 16) == 327_680
    assert token_bytes({**LLAMA_70B, "num_hidden_layers": 126, "head_dim": 128}, 1, 16) == 516_096
    assert token_bytes(LLAMA_70B, 4, 8) == 40_960
    assert token_bytes(LLAMA_70B, 16, 16) == token_bytes(LLAMA_70B, 8, 16), "a head is not divided"
    assert token_bytes(KIMI, 8, 16, context_parallel=8) == 70_272 // 8
    assert token_bytes({**LLAMA_70B, "layer_types": ["sliding_attention"]}, 1, 16) == 0


@pytest.mark.parametrize(("cache", "published"), [("auto", 190_000), ("fp8", 450_000)])
def test_what_fits_on_the_machine_that_the_layout_is_for(cache: str, published: int) -> None:
    """Tokens of cache that people report for the native INT4 (595 GB) at 0.93: what is reckoned is a little more."""
    found = need("vllm", {**VLLM_KIMI, "kv-cache-dtype": cache, "max-model-len": 131072}, {"text_config": KIMI}, 595e9)
    assert found.fits
    assert published <= found.tokens < published * 1.6


def test_what_does_not_fit_is_told_with_what_to_lower() -> None:
    found = need("vllm", VLLM_KIMI, KIMI, 595e9)
    assert found.context == 262144, "the model's own length, where nobody asked for less"
    assert need("vllm", {**VLLM_KIMI, "max-model-len": "131k"}, KIMI, 595e9, concurrency=3).fits is False
    text = told("vllm", found) + advice("vllm", found)
    assert "weights 69.3 + KV cache 17.2 (262144 tokens x 1) = 86.4 of the " in text
    assert need("vllm", {"tensor-parallel-size": 4}, KIMI, 595e9).fits is False
    assert "use more GPUs" in advice("vllm", need("vllm", {"tensor-parallel-size": 4}, KIMI, 595e9))
    two = need("vllm", {**VLLM_KIMI, "max-model-len": "131072"}, KIMI, 595e9, concurrency=4)
    assert not two.fits and "concurrency to at most 2" in advice("vllm", two)


def test_sglang_keeps_its_headroom_outside_of_its_fraction() -> None:
    flags = {"tp-size": 4, "mem-fraction-static": 0.88, "context-length": 65536, "chunked-prefill-size": 4096}
    found = need("sglang", flags, LLAMA_70B, 72.7e9, concurrency=4)
    assert found.fits and found.usable == int(RTX_PRO_6000 * 0.88)
    greedy = need("sglang", {**flags, "mem-fraction-static": 0.999}, LLAMA_70B, 72.7e9)
    assert greedy.usable == RTX_PRO_6000 - greedy.headroom
    assert need("sglang", {"tp-size": 4}, LLAMA_70B, 72.7e9).context == 0, "it makes do with what there is"


@pytest.mark.parametrize("flags", [{"data-parallel-size": 2}, {"cpu-offload-gb": 10}, {"quantization": "fp8"}])
def test_what_is_not_reckoned_with_is_not_refused(flags: dict[str, Any]) -> None:
    assert need("vllm", {"tensor-parallel-size": 1, **flags}, LLAMA_70B, 141e9) is None


def test_a_model_of_another_kind_is_judged_by_its_weights() -> None:
    found = need("vllm", {"tensor-parallel-size": 1, "max-model-len": 1000}, {"hidden_size": 1024}, 50e9)
    assert found.fits and "KV cache not reckoned" in told("vllm", found)
    assert not need("vllm", {"tensor-parallel-size": 1}, {"hidden_size": 1024}, 200e9).fits


def test_words_that_the_engines_take() -> None:
    assert [tokens(text) for text in (131072, "128k", "128K", "1.5k", "auto", None, -1)] == [
        131072, 128000, 131072, 1500, 0, 0, 0]  # fmt: skip
    scheme = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}
    kinds = ("auto", "fp8", "fp8_e5m2", "bfloat16", "fp4_e2m1", "something new")
    assert [cache_bits(kind, {}) for kind in kinds] == [16, 8, 8, 16, 4, 4]
    assert cache_bits("auto", scheme) == 8
