# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpuops.inference.systemd_words."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.plugin_utils import _systemd


def systemd_words(words: t.Any) -> str:
    """The words, quoted and joined; AnsibleFilterError when systemd cannot carry one."""
    try:
        return _systemd.directive_words(str(word) for word in words)
    except ValueError as error:
        raise AnsibleFilterError(f"a word {error}") from error


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filter by its name."""
        return {"systemd_words": systemd_words}
