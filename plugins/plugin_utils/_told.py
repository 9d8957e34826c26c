# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""Lines that action plugins print while a task goes on, and that a callback may show in another way."""

from __future__ import annotations


class Told(str):
    """Text to everyone; whoever knows the type also learns whom it is about.

    A callback hears of a task's end only. What an action plugin displays reaches the controller's process at once, as
    the object that it is, so this is how progress gets to a callback, and without one it is a line on the screen.
    """

    host: str = ""
    status: str = ""
    """What the host does; '' for a story that its result tells as well."""


def told(text: str, host: str, status: str = "") -> Told:
    line = Told(text)
    line.host, line.status = host, status
    return line
