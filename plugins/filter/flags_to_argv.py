# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpuops.inference.flags_to_argv."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.plugin_utils import _flags


def flags_to_argv(flags: t.Any) -> list[str]:
    """Words for a mapping of flags; AnsibleFilterError says which flag cannot be written."""
    if not isinstance(flags, t.Mapping):
        raise AnsibleFilterError("flags_to_argv needs a mapping of flags to values")
    try:
        return _flags.flags_to_argv(flags)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filter by its name."""
        return {"flags_to_argv": flags_to_argv}
