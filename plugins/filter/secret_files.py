# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpuops.inference.secret_files."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.plugin_utils import _secrets


def secret_files(secrets: t.Any, engine: t.Mapping[str, t.Any], digests: bool = False) -> dict[str, str]:
    """Texts by path, or their digests; AnsibleFilterError names what cannot be written, never a value."""
    if not isinstance(secrets, t.Mapping):
        raise AnsibleFilterError("secret_files needs a mapping of variables to strings")
    try:
        texts = _secrets.secret_files(engine, {str(name): str(value) for name, value in secrets.items()})
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from None
    return _secrets.digests(texts) if digests else texts


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filter by its name."""
        return {"secret_files": secret_files}
