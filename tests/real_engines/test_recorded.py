# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stand-ins play and we know of the engines, against what the scenario real_engines kept of the real ones."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES, recognise

ROOT = Path(__file__).resolve().parent.parent.parent
SEEN = ROOT / ".cache" / "real"
sys.path.insert(0, str(ROOT / "tests" / "simulator" / "engines"))
from standin import recorded  # noqa: E402

STANDINS = {"vllm": recorded.VLLM, "sglang": recorded.SGLANG}
LIFE = ("start", "configured", "core", "worker", "connected", "weights", "loaded", "kv", "engine", "listening", "ready")
"""What is said in every start, in this order; faults and the end are not part of it."""

NOT_HERE = {
    # NCCL, and figures of GPU memory
    "vllm": ("world_size=", "vLLM is using nccl", "Model loading took", "Available KV cache", "GPU KV cache size"),
    # CUDA graphs; a quantised model; a model with latent attention
    "sglang": ("Capture ", "Load weight end", "KV Cache is allocated"),
}
"""Beginnings of lines that are said otherwise, or not at all, for a tiny Llama on CPUs."""

PHASES_ON_GPUS = {"vllm": ("joining the GPUs", "profiling memory"), "sglang": ("capturing graphs",)}


def journal(engine: str) -> str:
    return (SEEN / f"{engine}.journal").read_text(errors="replace")


def wildcard(text: str) -> str:
    """A stand-in's line with everything that differs from start to start left open: its fields, and its figures."""
    fixed = re.split(r"\{[^}]*\}|\d[\d.,]*", text)
    return ".*".join(map(re.escape, fixed))


def lines(engine: str) -> list[str]:
    said = [entry[-1] for part in LIFE for entry in STANDINS[engine]["log"].get(part, ())]
    return [line for line in said if not line.startswith(NOT_HERE[engine])]


@pytest.mark.parametrize(("engine", "line"), [(engine, line) for engine in STANDINS for line in lines(engine)])
def test_the_real_engine_says_what_its_stand_in_says(engine: str, line: str) -> None:
    assert re.search(wildcard(line), journal(engine)), line


@pytest.mark.parametrize("engine", STANDINS)
def test_the_phases_of_a_start_are_seen_in_their_order(engine: str) -> None:
    expected = [each for each in ENGINES[engine].milestones if each.phase not in PHASES_ON_GPUS[engine]]
    found = [re.search(milestone.line, journal(engine)) for milestone in expected]
    assert None not in found, [each.line.pattern for each, at in zip(expected, found) if not at]
    places = [at.start() for at in found if at]
    assert places == sorted(places)


@pytest.mark.parametrize("engine", STANDINS)
def test_its_processes_are_recognised_and_named_like_the_stand_ins(engine: str) -> None:
    commands = (SEEN / f"{engine}.titles").read_text().splitlines()
    titled = {line.strip() for line in commands if ENGINES[engine].title.match(line.split()[0])}
    forms = STANDINS[engine]["title"]
    named = {forms["ranked"].format(rank=rank) for rank in (0, 1)} | {
        title for role, title in forms.items() if role not in ("ranked", "worker", "scheduler")
    }
    assert titled == named
    main = [line.split() for line in commands if recognise(line.split(), "/usr/bin/python3") is not None]
    assert {seen.role for line in main if (seen := recognise(line, "/usr/bin/python3"))} == {"main", "worker"}
