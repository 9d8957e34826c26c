# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpuops.inference.layout_faults."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.filter.resolve_layout import resolve_layout


def layout_faults(layout: t.Any, **arguments: t.Any) -> str:
    """What resolve_layout would refuse, as one text; empty when it would refuse nothing."""
    try:
        resolve_layout(layout, **arguments)
    except AnsibleFilterError as error:
        return str(error)
    return ""


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filter by its name."""
        return {"layout_faults": layout_faults}
