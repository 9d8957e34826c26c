# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""The files that hold an engine's secrets. Apart from _layout, so that a task which needs them alone loads little."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.inference.plugins.plugin_utils._systemd import environment_file


def secret_files(engine: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, str]:
    """The text of each file that holds secrets, by path: variables for systemd, options for the engine's --config."""
    options = engine["configuration"]
    variables = {name: value for name, value in secrets.items() if name not in options.values()}
    files = {engine["secrets_path"]: environment_file(variables)}
    if options:
        # What JSON writes between double quotes, YAML reads.
        lines = (f"{option}: {json.dumps(secrets[name], ensure_ascii=False)}\n" for option, name in options.items())
        files[engine["configuration_path"]] = "".join(lines)
    return files


def digests(texts: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of each text."""
    return {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}
