# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report shows of the variables that users set."""

from __future__ import annotations

from ansible.parsing.vault import EncryptedString

from ansible_collections.gpuops.inference.plugins.callback.report import without_vault


def test_what_is_in_a_vault_stays_there_however_deep_it_stands() -> None:
    locked = EncryptedString(ciphertext="$ANSIBLE_VAULT;1.1;AES256\n31")
    hook = {"http": {"url": "https://lb/hook", "headers": {"X-Whatever": locked}}}
    assert without_vault({"gpuops_hook_after": [hook], "gpuops_reason": locked, "gpuops_serial": 1}) == {
        "gpuops_hook_after": [{"http": {"url": "https://lb/hook", "headers": {"X-Whatever": "(vault)"}}}],
        "gpuops_reason": "(vault)",
        "gpuops_serial": 1,
    }
