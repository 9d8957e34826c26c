# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the models of our layouts in /models: valid safetensors shards of the real sizes, all of them holes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Model:
    name: str
    shards: int
    shard_bytes: int
    """Of tensor data."""
    hidden: int
    layers: int
    config: dict[str, Any]

    def tensors(self, shard: int) -> dict[str, dict[str, object]]:
        """The header of one shard: its layer's attention output, and the packed weights that fill the rest."""
        dense = self.hidden * self.hidden * 2
        layer = f"model.layers.{(shard - 1) % self.layers}" if shard <= self.layers else f"vision_tower.part_{shard}"
        packed = (self.shard_bytes - dense) // 4
        return {
            f"{layer}.self_attn.o_proj.weight": {
                "dtype": "BF16", "shape": [self.hidden, self.hidden], "data_offsets": [0, dense]},
            f"{layer}.mlp.weight_packed": {
                "dtype": "I32", "shape": [packed], "data_offsets": [dense, dense + packed * 4]},
        }  # fmt: skip


KIMI = Model(
    name="Kimi-K2.5",
    shards=64,
    shard_bytes=8_546_875_000,  # 547 GB in all
    hidden=7168,
    layers=61,
    config={
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "text_config": {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "kimi_k2",
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 384,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "max_position_embeddings": 262144,
            "vocab_size": 163840,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}},
            },
        },
    },
)
LLAMA = Model(
    name="Llama-3.3-70B-Instruct-FP8",
    shards=15,
    shard_bytes=4_847_000_000,  # 72.7 GB
    hidden=8192,
    layers=80,
    config={
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 28672,
        "max_position_embeddings": 131072,
        "vocab_size": 128256,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    },
)


def replace(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    path.chmod(0o644)


def make(model: Model) -> None:
    directory = Path("/models", model.name)
    directory.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    total = 0
    for number in range(1, model.shards + 1):
        path = directory / f"model-{number:05d}-of-{model.shards:06d}.safetensors"
        header = model.tensors(number)
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)  # the format asks for alignment
        data = max(tensor["data_offsets"][1] for tensor in header.values())  # type: ignore[index]
        size = 8 + len(encoded) + data
        if not path.exists() or path.stat().st_size != size:
            with path.open("wb") as file:
                file.write(len(encoded).to_bytes(8, "little") + encoded)
                os.truncate(file.fileno(), size)
        weight_map.update(dict.fromkeys(header, path.name))
        total += data
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    replace(directory / "model.safetensors.index.json", json.dumps(index, indent=2))
    replace(directory / "config.json", json.dumps(model.config, indent=2))


for each in (KIMI, LLAMA):
    make(each)
