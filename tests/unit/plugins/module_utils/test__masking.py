# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._masking import (
    MASK,
    is_secret_name,
    mask_command,
    mask_text,
    printable,
)


@pytest.mark.parametrize(
    "name",
    [
        "--api-key",
        "VLLM_API_KEY",
        "HF_TOKEN",
        "--hf-token",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "apikey",
        "Authorization",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "--tokenizer",
        "--max-num-batched-tokens",
        "--speculative-num-draft-tokens",
        "--kv-cache-dtype",
        "--monkey",
    ],
)
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)
    assert mask_command([name, "4096"]) == f"{name} 4096"


def test_a_command_line_shows_all_but_its_secrets() -> None:
    argv = ["vllm", "serve", "/models/K", "--api-key", "s3cret", "--port=8000", "--hf-token=abc", "-tp", "8"]
    assert mask_command(argv) == f"vllm serve /models/K --api-key {MASK} --port=8000 --hf-token={MASK} -tp 8"


def test_a_flag_after_a_secret_flag_is_its_value() -> None:
    assert mask_command(["x", "--api-key", "--api-key", "a"]) == f"x --api-key {MASK} a"


@pytest.mark.parametrize(
    "text, masked",
    [
        ("argument --api-key: expected one argument", "argument --api-key: expected one argument"),
        ("unrecognized arguments: --api-key s3cret", f"unrecognized arguments: --api-key {MASK}"),
        ("https://lb/hook?host=gpu1&token=s3cret&x=1", f"https://lb/hook?host=gpu1&token={MASK}&x=1"),
        ("{'Authorization': 'Basic dTpw'}", f"{{'Authorization': '{MASK}'}}"),
        (
            "non-default args: {'api_key': ['s3cret'], 'port': 8000}",
            f"{{'api_key': ['{MASK}'], 'port': 8000}}",
        ),
        ('env VLLM_API_KEY="s3cret" is set', f'env VLLM_API_KEY="{MASK}" is set'),
        ("Authorization: Bearer s3cret.x", f"Authorization: Bearer {MASK}"),
        ("token hf_abcdefghijklmnopqrstuvwx given", f"token hf_{MASK} given"),
        ("--store redis://me:s3cret@cache:6379/0", f"redis://me:{MASK}@cache:6379/0"),
        ("http://127.0.0.1:8000/v1/models", "http://127.0.0.1:8000/v1/models"),
        ("KeyError: 'model.layers.0'", "KeyError: 'model.layers.0'"),
        ("max_total_num_tokens=190000, key=value", "max_total_num_tokens=190000, key=value"),
    ],
)
def test_secrets_where_they_usually_stand(text: str, masked: str) -> None:
    assert mask_text(text).endswith(masked)


def test_known_values_are_hidden_wherever_they_stand() -> None:
    assert mask_text("tell swordfish42 and swordfish", ["swordfish", "swordfish42"]) == f"tell {MASK} and {MASK}"


def test_a_value_too_short_to_be_a_secret_does_not_blot_out_the_output() -> None:
    assert mask_text("loaded 8 of 8 shards", ["8"]) == "loaded 8 of 8 shards"


@given(st.text(), st.integers(min_value=4, max_value=64))
def test_whatever_comes_is_one_short_printable_line(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=40))
def test_no_part_of_the_line_gives_the_key_away(key: str) -> None:
    assert key not in mask_command(["vllm", "serve", "--api-key", key, f"--other={key}"], [key])


def test_escapes_of_a_terminal_are_shown_and_not_obeyed() -> None:
    assert printable("\x1b[2Jgone\r\n") == r"\x1b[2Jgone\r\n"


@pytest.mark.parametrize("hostile", ["-" * 1_000_000, "--api-key=" * 100_000, "'" * 1_000_000])
def test_a_megabyte_is_cheap(hostile: str) -> None:
    begun = time.process_time()
    mask_command([hostile])
    mask_text(hostile[:50_000])
    assert time.process_time() - begun < 2
