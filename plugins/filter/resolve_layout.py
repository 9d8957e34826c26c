# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpuops.inference.resolve_layout."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.plugin_utils import _layout


def resolve_layout(
    layout: t.Any,
    *,
    name: str,
    overrides: t.Optional[t.Mapping[str, t.Any]] = None,
    secrets: t.Optional[t.Mapping[str, t.Mapping[str, str]]] = None,
    eagle3: bool = False,
    part: str = "",
) -> dict[str, t.Any]:
    """The layout as later roles read it; AnsibleFilterError lists what is wrong with it."""
    if not isinstance(layout, t.Mapping):
        raise AnsibleFilterError(f"the layout {name} is not a mapping")
    try:
        return _layout.resolve(layout, overrides or {}, secrets or {}, name, eagle3, str(part or ""))
    except _layout.LayoutError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filter by its name."""
        return {"resolve_layout": resolve_layout}
