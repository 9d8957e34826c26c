# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show a directory of this machine inside a running container: share.py PID SOURCE TARGET, as root.

Containers are made without it, and copying 2.5 GB into each would take longer than the engine's start. The mount
belongs to the container and goes with it.
"""

import ctypes
import os
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
AT_FDCWD, OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_MOUNT_F_EMPTY_PATH = -100, 1, os.O_CLOEXEC, 4


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def main() -> None:
    pid, source, target = sys.argv[1:]
    tree = checked(LIBC.syscall(SYS_OPEN_TREE, AT_FDCWD, source.encode(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC))
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY)
    checked(LIBC.setns(namespace, 0))
    os.fchdir(root)
    os.chroot(".")
    os.makedirs(target, exist_ok=True)
    if not os.path.ismount(target):
        checked(LIBC.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH))


main()
