# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name; a host that gets lost in a fleet's run fails instead of being dropped."""

from __future__ import annotations

from ansible_collections.gpuops.inference.plugins.plugin_utils._reach import ReachAction


class ActionModule(ReachAction):
    pass
