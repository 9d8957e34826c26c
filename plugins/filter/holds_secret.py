# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpuops.inference.holds_secret."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.inference.plugins.module_utils._masking import mask_text


def holds_secret(text: str) -> bool:
    """Whether anything in the text would be masked."""
    return mask_text(str(text)) != str(text)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filter by its name."""
        return {"holds_secret": holds_secret}
