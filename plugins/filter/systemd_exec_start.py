# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpuops.inference.systemd_exec_start."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.plugin_utils import _systemd


def systemd_exec_start(argv: t.Any) -> str:
    """The value of `ExecStart=` for argv; AnsibleFilterError when systemd cannot carry it."""
    try:
        return _systemd.exec_start([str(word) for word in argv])
    except ValueError as error:
        raise AnsibleFilterError(f"a word of the command line {error}") from error


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filter by its name."""
        return {"systemd_exec_start": systemd_exec_start}
