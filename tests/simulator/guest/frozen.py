# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A frozen file system, /run/gpusim/frozen: whoever writes to it sleeps uninterruptibly, as in a wedged driver.

usage: frozen.py           mount and freeze it
       frozen.py thaw      thaw and remove it: the sleepers wake up
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FROZEN = Path("/run/gpusim/frozen")
IMAGE = Path("/run/gpusim/frozen.img")


def thaw() -> None:
    """Thaw the file system if it is there; it stays mounted, for who woke up still uses it."""
    if os.path.ismount(FROZEN):
        # "Invalid argument" where it is not frozen, which is as well
        subprocess.run(["fsfreeze", "--unfreeze", FROZEN], stderr=subprocess.DEVNULL, timeout=10, check=False)


def remove() -> None:
    """Unmount it, which detaches the loop device too."""
    if os.path.ismount(FROZEN):
        subprocess.run(["umount", FROZEN], timeout=30, check=True)
    IMAGE.unlink(missing_ok=True)


def freeze() -> None:
    if not os.path.ismount(FROZEN):
        FROZEN.mkdir(parents=True, exist_ok=True)
        with IMAGE.open("wb") as image:
            image.truncate(8 << 20)
        subprocess.run(["mkfs.ext4", "-q", IMAGE], check=True)
        for number in range(16):  # a container's /dev gets no nodes of later loop devices
            if not os.path.exists(f"/dev/loop{number}"):
                os.mknod(f"/dev/loop{number}", 0o60660, os.makedev(7, number))
        subprocess.run(["mount", "-o", "loop", IMAGE, FROZEN], check=True)
        FROZEN.chmod(0o777)
    subprocess.run(["fsfreeze", "--freeze", FROZEN], check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["thaw"]:
        thaw()
    else:
        freeze()
