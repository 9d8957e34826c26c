# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make /models/Kimi-K2.5: 64 valid safetensors shards of 547 GB in all that take no disk space (holes)."""

from __future__ import annotations

import json
import os
from pathlib import Path

MODEL = Path("/models/Kimi-K2.5")
SHARDS = 64
LAYERS = 61
SHARD_BYTES = 8_546_875_000  # of tensor data: 64 of these are 547 GB
DENSE_BYTES = 7168 * 7168 * 2

CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": 7168,
        "num_hidden_layers": LAYERS,
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
}


def tensors(shard: int) -> dict[str, dict[str, object]]:
    """The header of one shard: its layer's attention output, and the packed experts that fill the rest."""
    layer = f"language_model.model.layers.{(shard - 1) % LAYERS}" if shard <= LAYERS else f"vision_tower.part_{shard}"
    experts = (SHARD_BYTES - DENSE_BYTES) // 4
    end = DENSE_BYTES + experts * 4
    header: dict[str, dict[str, object]] = {
        f"{layer}.self_attn.o_proj.weight": {
            "dtype": "BF16", "shape": [7168, 7168], "data_offsets": [0, DENSE_BYTES]},
        f"{layer}.mlp.experts.weight_packed": {
            "dtype": "I32", "shape": [experts], "data_offsets": [DENSE_BYTES, end]},
    }  # fmt: skip
    return header


def replace(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    path.chmod(0o644)


def main() -> None:
    MODEL.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    total = 0
    for number in range(1, SHARDS + 1):
        path = MODEL / f"model-{number:05d}-of-{SHARDS:06d}.safetensors"
        header = tensors(number)
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
    replace(MODEL / "model.safetensors.index.json", json.dumps(index, indent=2))
    replace(MODEL / "config.json", json.dumps(CONFIG, indent=2))


main()
