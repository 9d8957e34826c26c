# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible loads what lies here with each playbook beside it: a report is written without any configuration."""

from __future__ import annotations

from ansible_collections.gpuops.inference.plugins.callback import report


class CallbackModule(report.CallbackModule):
    CALLBACK_NAME = "gpuops_report"
    CALLBACK_NEEDS_ENABLED = False
