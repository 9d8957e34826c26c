# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpuops.inference.systemd_environment."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.plugin_utils import _systemd


def systemd_environment(variables: t.Any) -> str:
    """Lines of an environment file; AnsibleFilterError names the variable that systemd cannot carry."""
    if not isinstance(variables, t.Mapping):
        raise AnsibleFilterError("systemd_environment needs a mapping of names to values")
    try:
        return _systemd.environment_file({str(name): str(value) for name, value in variables.items()})
    except ValueError as error:
        # Without its cause: a traceback must not lead back to a secret.
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filter by its name."""
        return {"systemd_environment": systemd_environment}
