# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What one invocation of a unit says, followed live."""

from __future__ import annotations

import codecs
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from ansible_collections.gpuops.inference.plugins.module_utils._units import UnitsError

# More than any start says. A unit that has served for weeks is not read from its beginning.
_LINES = 20000
_LONGEST_LINE = 1 << 16


def journalctl(invocation_id: str) -> list[str]:
    """The command that follows the unit's own lines and what systemd says about this invocation."""
    return [
        "journalctl",
        "--quiet",
        "--follow",
        f"--lines={_LINES}",
        "--output=cat",
        f"_SYSTEMD_INVOCATION_ID={invocation_id}",
        "+",
        f"INVOCATION_ID={invocation_id}",
    ]


class Log:
    """A context manager around a command that prints lines; nothing here blocks. UnitsError if it cannot run.

    `fileno` is readable when lines() has something to give, and for ever once the command has ended.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._out, theirs = os.pipe()
        os.set_blocking(self._out, False)
        try:
            # AnsibleModule.run_command waits for the end, which a follower never reaches.
            self._child = subprocess.Popen(  # pylint: disable=ansible-bad-function
                list(argv), stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            os.close(self._out)
            raise UnitsError(f"cannot run {argv[0]}: {error.strerror}") from error
        finally:
            os.close(theirs)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self.ended = False

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *unused: object) -> None:
        self._child.kill()
        os.close(self._out)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1)

    def fileno(self) -> int:
        return self._out

    def lines(self) -> list[str]:
        """Whole lines that came since the last call. Progress bars that redraw by carriage return are many lines."""
        while not self.ended and len(self._rest) < _LONGEST_LINE:
            try:
                chunk = os.read(self._out, 1 << 16)
            except BlockingIOError:
                break
            self.ended = not chunk
            self._rest += self._decoder.decode(chunk, self.ended)
        *whole, self._rest = self._rest.split("\n")
        if self.ended or len(self._rest) >= _LONGEST_LINE:
            whole.append(self._rest)
            self._rest = ""
        return [line for text in whole for line in text.split("\r") if line.strip()]
