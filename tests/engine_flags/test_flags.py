# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What our layouts write is what the engines' own argument parsers take, in several versions of each.

The parsers are real and run: vLLM's with pydantic and its own configuration classes, SGLang's with its own fields.
Libraries that they import and only an engine needs (torch, transformers, kernels) are stubbed, see stubs.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES, unknown_to, version_numbers
from ansible_collections.gpuops.inference.plugins.plugin_utils._layout import LayoutError, resolve
from ansible_collections.gpuops.inference.plugins.plugin_utils._secrets import secret_files

sys.path.insert(0, str(Path(__file__).parent))

import fetch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARSING = ROOT / "plugins/module_utils/_parsing.py"
VERSIONS = [pytest.param(*each, id="-".join(each)) for each in fetch.WHEELS]
SGLANG = [version for engine, version in fetch.WHEELS if engine == "sglang"]
PROFILING = {
    "vllm": {"flags": {"profiler-config": {"profiler": "torch", "torch_profiler_dir": "/var/tmp/profiles"}}},
    "sglang": {"environment": {"SGLANG_TORCH_PROFILER_DIR": "/var/tmp/profiles"}},
}
OLDEST = {"kimi_k25_int4_tp8": {"vllm": "0.19.1"}}
"""Where a layout says that it needs a newer engine than the collection does."""


def ask(engine: str, version: str, *requests: Any) -> list[Any]:
    """What this version answers to each request."""
    child = subprocess.run(
        [
            str(fetch.interpreter()),
            "-B",
            str(HERE / "ask.py"),
            engine,
            str(fetch.source(engine, version)),
            str(PARSING),
        ],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert child.returncode == 0, child.stderr[-2000:]
    answers: list[Any] = json.loads(child.stdout)
    return answers


def modes() -> list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Name, layout, arguments of `resolve` and overrides: every shipped layout, instance, EAGLE-3 and profiler."""
    found = []
    for path in sorted((ROOT / "roles/layout/files").glob("*.yml")):
        layout = yaml.safe_load(path.read_text())
        for instance in layout.get("instances") or [""]:
            for eagle3 in sorted({False, "eagle3" in layout}):
                for profiling in (False, True):
                    mode = {"instance": instance, "eagle3": eagle3}
                    found.append((path.stem, layout, mode, {"engines": PROFILING} if profiling else {}))
    return found


def words(layout: dict[str, Any], engine: str, version: str, mode: dict[str, Any], patch: dict[str, Any]) -> list[str]:
    written = {"engines": {engine: {**patch.get("engines", {}).get(engine, {}), "version": version}}}
    resolved = resolve(layout, written, {}, "test", **mode)
    arguments: list[str] = resolved["engines"][engine]["arguments"]
    return arguments


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_every_flag_of_every_layout_is_taken(engine: str, version: str) -> None:
    asked, refused = [], []
    for name, layout, mode, patch in modes():
        try:
            asked.append((name, words(layout, engine, version, mode, patch)))
        except LayoutError as error:
            # What the table says this version does not know is refused by name; without it the rest is taken.
            flags = re.findall(r"engines\.\w+\.flags\.([\w-]+): \w+ \S+ does not know it", str(error))
            assert flags and len(flags) == str(error).count("\n- "), error
            oldest = OLDEST.get(name, {}).get(engine, "")
            assert not oldest or version_numbers(version) < version_numbers(oldest), error
            mine = patch.get("engines", {}).get(engine, {})
            less = {**mine, "flags": {**mine.get("flags", {}), **dict.fromkeys(flags)}}
            asked.append((name, words(layout, engine, version, mode, {"engines": {engine: less}})))
            refused += [(name, words(layout, engine, "", mode, patch))]
    answers = ask(engine, version, *(each for _name, each in asked + refused))
    for (name, said), answer in zip(asked, answers):
        assert answer["version"].startswith(version)
        assert not {"broken", "rejected"} & set(answer), (name, answer, said)
    for (name, said), answer in zip(refused, answers[len(asked) :]):
        assert "rejected" in answer, (name, "the table refuses what the engine takes", said)


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_what_is_wrong_is_rejected(engine: str, version: str) -> None:
    name, layout, mode, patch = modes()[0]
    del name, patch
    good = words(layout, engine, "", mode, {"engines": {engine: {"flags": {"shutdown-timeout": None}}}})
    choice = {"vllm": "--mm-encoder-tp-mode", "sglang": "--load-format"}[engine]
    number = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests"}[engine]
    taken, *wrong = ask(
        engine, version, good, [*good, "--no-such-flag"], [*good, choice, "sideways"], [*good, number, "many"]
    )
    assert "rejected" not in taken
    assert all("rejected" in answer for answer in wrong), wrong


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_the_table_of_changes_tells_the_truth(engine: str, version: str) -> None:
    (flags,) = ask(engine, version, None)
    modules = ("vllm/envs.py", "vllm/config/profiler.py") if engine == "vllm" else ("sglang/srt/environ.py",)
    texts = [fetch.source(engine, version) / module for module in modules]
    variables = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", "".join(path.read_text() for path in texts if path.exists())))
    for change in ENGINES[engine].changes:
        there = change.name in variables if change.name.isupper() else f"--{change.name}" in flags
        assert there == (unknown_to(engine, version, change.name) is None), change
        if change.other:
            assert there or f"--{change.other}" in flags, change


@pytest.mark.parametrize("engine", ENGINES)
def test_stubs_lose_no_flag(engine: str) -> None:
    """The same list as was recorded where the engine was installed whole (tests/simulator/engines/record_flags.py)."""
    recorded = json.loads((ROOT / f"tests/simulator/engines/flags/{engine}.json").read_text())
    (flags,) = ask(engine, recorded["version"], None)
    there = {flag for option in recorded["options"] for flag in option["flags"] if flag.startswith("-")}
    assert there - {"-h", "--help"} == set(flags) - {"-h", "--help"}


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_reads_our_file_of_keys(version: str) -> None:
    keys = ["plain", "it's", 'a "b" c', "back\\slash\\n", "100% $HOME #1", "true", "8", "key: value", "{}", "éß"]
    engine = {"configuration": {"api-key": "KEY"}, "secrets_path": "/s", "configuration_path": "/c"}
    answers = ask("sglang", version, *(secret_files(engine, {"KEY": key})["/c"] for key in keys))
    assert answers == [["--api-key", key] for key in keys]
