# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lay out a stand-in as its real engine is installed: a virtual environment with the engine's package and script.

/proc/PID/exe of what runs there is the system's Python, its command line the real one's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = """#!{venv}/bin/python
import sys
from {engine}.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


def version(engine: str) -> str:
    sys.path.insert(0, str(HERE))
    from standin import recorded

    return str(getattr(recorded, engine.upper())["version"])


def make(engine: str, venv: Path, python: str, paths: Sequence[Path] = ()) -> None:
    """Make venv, which runs this interpreter and also finds what is in paths. Nothing is changed if it is right."""
    run = [python, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
    site = venv / "lib" / subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    site /= "site-packages"
    metadata = site / f"{engine}-{version(engine)}.dist-info" / "METADATA"
    for directory in (venv / "bin", metadata.parent):
        directory.mkdir(parents=True, exist_ok=True)
    link(venv / "bin" / "python", Path(python))
    link(venv / "bin" / "python3", Path("python"))
    link(site / engine, HERE / "packages" / engine)
    home = os.path.dirname(os.path.realpath(python))
    write(venv / "pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = true\n")
    write(site / "simulator.pth", "".join(f"{path}\n" for path in (HERE, HERE.parent, *paths)))
    write(metadata, f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version(engine)}\n")
    module = "vllm.entrypoints" if engine == "vllm" else engine
    write(venv / "bin" / engine, SCRIPT.format(venv=venv, engine=module))
    (venv / "bin" / engine).chmod(0o755)


def link(path: Path, target: Path) -> None:
    if not path.is_symlink() or Path(os.readlink(path)) != target:
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    path.chmod(0o644)
