# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What a model needs of each GPU, reckoned from its files before anything is started.

Weights: the shards' bytes, divided by the GPUs that share a replica. Both engines shard nearly all of them; what each
GPU keeps whole, norms and a router, is small.

KV cache, bytes for each token on each GPU:

- multi-head latent attention (DeepSeek V3, Kimi K2; arXiv:2405.04434, section 2.1): layers x (kv_lora_rank +
  qk_rope_head_dim) x bytes. One latent serves all heads, so tensor parallelism does not divide it; decode context
  parallelism does.
- grouped-query attention (arXiv:2305.13245): layers x 2 x ceil(num_key_value_heads / tensor parallel) x head_dim x
  bytes.

A layout asks for its context length, times `concurrency` requests.

Headroom: a CUDA context with NCCL's buffers and captured graphs, and the activations of one step. It is an estimate,
and low on purpose: what is refused here could not have started. An engine that fits by little may still fail.

Memory that may be used: vLLM takes gpu-memory-utilization of a GPU for everything. SGLang takes mem-fraction-static of
it for weights and cache, and needs the headroom in what is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

GIB = 1 << 30

CONTEXT_BYTES = 1 << 30
"""CUDA context, NCCL and graphs; the context alone takes some hundred MiB."""
ACTIVATION_VALUES = 8
"""Of 2 bytes, for each token of a step and element of the hidden size: residual, attention and one layer's MLP."""


@dataclass(frozen=True)
class Terms:
    """What an engine calls the things that are reckoned with."""

    context: str
    fraction: str
    default_fraction: float
    step: str
    default_step: int
    parallel: tuple[str, ...]
    """Flags whose product is the number of GPUs that share the weights; the first is tensor parallelism."""
    context_parallel: str
    unreckoned: tuple[str, ...]
    """Flags that change the sum in ways that are not reckoned with."""


TERMS = {
    "vllm": Terms(
        context="max-model-len",
        fraction="gpu-memory-utilization",
        default_fraction=0.92,
        step="max-num-batched-tokens",
        default_step=2048,
        parallel=("tensor-parallel-size", "pipeline-parallel-size"),
        context_parallel="decode-context-parallel-size",
        unreckoned=("data-parallel-size", "cpu-offload-gb", "quantization", "kv-cache-memory-bytes"),
    ),
    "sglang": Terms(
        context="context-length",
        fraction="mem-fraction-static",
        default_fraction=0.9,
        step="chunked-prefill-size",
        default_step=2048,
        parallel=("tp-size", "pp-size"),
        context_parallel="decode-context-parallel-size",
        unreckoned=("dp-size", "nnodes", "cpu-offload-gb", "quantization", "max-total-tokens"),
    ),
}


@dataclass(frozen=True)
class Need:
    """Bytes on each GPU."""

    total: int
    usable: int
    """For weights and cache; the headroom is taken off."""
    weights: int
    token: int
    """KV cache of one token; 0 where the model's kind of cache is not known."""
    context: int
    concurrency: int
    headroom: int
    fraction: float

    @property
    def cache(self) -> int:
        return self.token * self.context * self.concurrency

    @property
    def fits(self) -> bool:
        return self.weights + self.cache <= self.usable

    @property
    def tokens(self) -> int:
        """How many tokens of cache there is room for."""
        return max(0, self.usable - self.weights) // self.token if self.token else 0


def reckon(
    engine: str, flags: Mapping[str, Any], config: Mapping[str, Any], weights: int, total: int, concurrency: int
) -> Optional[Need]:
    """The sum for a GPU of `total` bytes and shards of `weights` bytes; None where it cannot be told."""
    terms = TERMS[engine]
    if any(flag in flags for flag in terms.unreckoned):
        return None
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    sharing = 1
    for flag in terms.parallel:
        sharing *= int(flags.get(flag, 1))
    fraction = float(flags.get(terms.fraction, terms.default_fraction))
    headroom = (
        CONTEXT_BYTES
        + (tokens(flags.get(terms.step)) or terms.default_step) * _number(text, "hidden_size") * 2 * ACTIVATION_VALUES
    )
    usable = int(total * fraction) - headroom if engine == "vllm" else min(int(total * fraction), total - headroom)
    stages = int(flags.get(terms.parallel[1], 1))
    return Need(
        total=total,
        usable=usable,
        weights=weights // sharing,
        token=token_bytes(
            text, int(flags.get(terms.parallel[0], 1)), cache_bits(str(flags.get("kv-cache-dtype", "auto")), text),
            int(flags.get(terms.context_parallel, 1)),
        ) // stages,
        # vLLM must hold one request of the full length, SGLang makes do with less where nobody asked.
        context=tokens(flags.get(terms.context)) or (engine == "vllm") * _number(text, "max_position_embeddings"),
        concurrency=concurrency,
        headroom=headroom,
        fraction=fraction,
    )  # fmt: skip


def token_bytes(text: Mapping[str, Any], tensor_parallel: int, bits: int, context_parallel: int = 1) -> int:
    """KV cache of one token on one GPU; 0 for a model whose config.json describes neither kind."""
    layers = _number(text, "num_hidden_layers")
    latent = _number(text, "kv_lora_rank")
    if latent:
        return layers * (latent + _number(text, "qk_rope_head_dim")) * bits // 8 // context_parallel
    heads = _number(text, "num_attention_heads")
    shared = _number(text, "num_key_value_heads") or heads
    if not heads or isinstance(text.get("layer_types"), Sequence) or text.get("sliding_window"):
        # Layers of several kinds (windows, linear attention) keep less than every token.
        return 0
    size = _number(text, "head_dim") or _number(text, "hidden_size") // heads
    # Where there are fewer heads than GPUs, each GPU keeps a whole one.
    return layers * 2 * -(-shared // tensor_parallel) * size * bits // 8 // context_parallel


def cache_bits(kind: str, config: Mapping[str, Any]) -> int:
    """Of a value in the cache; `auto` is what the checkpoint asks for, else 16. What is not known counts as little."""
    if kind == "auto":
        scheme = (config.get("quantization_config") or {}).get("kv_cache_scheme") or {}
        return _number(scheme, "num_bits") or 16
    found = re.search(r"(?:fp|int|float|bf)(\d+)", kind)
    return int(found[1]) if found else 4


def tokens(value: Any) -> int:
    """A number of tokens as the engines' parsers read it (131072, 128k, 128K); 0 where it is left to the engine."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", str(value).strip())
    if not found:
        return 0
    power = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "": 1}[found[2]]
    return int(float(found[1]) * power)


def told(engine: str, need: Need) -> str:
    """The sum, for people."""
    terms = TERMS[engine]
    cache = (
        f"KV cache {_gib(need.cache)} ({need.context} tokens x {need.concurrency})"
        if need.token and need.context
        else "KV cache not reckoned"
    )
    spare = f"; {need.tokens} tokens of cache fit" if need.token else ""
    return (
        f"each GPU: weights {_gib(need.weights)} + {cache} = {_gib(need.weights + need.cache)} of the "
        f"{_gib(need.usable)} GiB that {terms.fraction} {need.fraction:g} leaves of {_gib(need.total)} "
        f"(headroom {_gib(need.headroom)}){spare}"
    )


def advice(engine: str, need: Need) -> str:
    """What to lower, or raise, so that it fits."""
    terms = TERMS[engine]
    if need.weights > need.usable:
        return f"raise {terms.fraction}, use more GPUs, or a smaller or further quantised model"
    longest = need.tokens // need.concurrency // 1024 * 1024
    fewer = f", concurrency to at most {need.tokens // need.context}" if need.concurrency > 1 and need.context else ""
    return f"lower {terms.context} to at most {longest}{fewer}, or raise {terms.fraction}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _number(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
