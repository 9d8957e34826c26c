# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What templates see: results, or Ansible's own error with our words and without a secret."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpuops.inference.plugins.filter.flags_to_argv import flags_to_argv
from ansible_collections.gpuops.inference.plugins.filter.secret_files import secret_files
from ansible_collections.gpuops.inference.plugins.filter.systemd_environment import systemd_environment
from ansible_collections.gpuops.inference.plugins.filter.systemd_exec_start import systemd_exec_start
from ansible_collections.gpuops.inference.plugins.filter.systemd_words import systemd_words
from ansible_collections.gpuops.inference.plugins.module_utils._deployment import File, shown_difference
from ansible_collections.gpuops.inference.plugins.plugin_utils._layout import resolve

ENGINE: dict[str, Any] = {"configuration": {}, "secrets_path": "/s", "configuration_path": "/c"}
LAYOUT: dict[str, Any] = {
    "model": {"path": "/models/m", "served_name": "m"},
    "gpus": {"count": 1, "memory_mib": 1},
    "engines": {"vllm": {}, "sglang": {}},
}


def test_results() -> None:
    assert flags_to_argv({"tp-size": 8, "on": True}) == ["--tp-size", "8", "--on"]
    assert systemd_exec_start(["/bin/x", 8]) == ":/bin/x 8"
    assert systemd_words(["/a b", "/c"]) == '"/a b" /c'
    assert secret_files({"A": "x"}, ENGINE) == {"/s": "A=x\n"}
    assert secret_files({"A": "x"}, ENGINE, digests=True) == {"/s": hashlib.sha256(b"A=x\n").hexdigest()}
    assert systemd_environment({"A": 1, "B": "$"}) == 'A=1\nB="\\$"\n'


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flags_to_argv(["--tp-size"]), "needs a mapping"),
        (lambda: flags_to_argv({"on": False}), "flag 'on': false says too little"),
        (lambda: systemd_exec_start(["x"]), "absolute path"),
        (lambda: systemd_words(["\ud800"]), "a word holds something that is no Unicode character"),
        (lambda: systemd_environment(["A"]), "needs a mapping"),
        (lambda: secret_files(["A"], {}), "needs a mapping"),
        (lambda: secret_files({"KEY": "hunter2\0"}, ENGINE), "KEY holds a control character"),
        (lambda: systemd_environment({"KEY": "hunter2\0"}), "KEY holds a control character"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(AnsibleFilterError) as caught:
        call()
    assert message in str(caught.value) and "hunter2" not in str(caught.value)


def test_a_unit_with_a_key_in_it_is_known() -> None:
    def hidden(unit: str) -> bool:
        return shown_difference(File("/u", ""), unit)["before"] != unit

    for line in ('Environment="VLLM_API_KEY=hunter2"', "ExecStart=vllm serve /m --api-key hunter2", "HF_TOKEN=x"):
        assert hidden(f"[Service]\n{line}\n")
    ours = resolve(LAYOUT, {}, {"sglang": {"SGLANG_API_KEY": "x", "HF_TOKEN": "x"}}, "mine")
    for engine in ours["engines"].values():
        assert not hidden(f"# Secrets: {', '.join(engine['secrets'])}\nExecStart={engine['exec_start']}\n")
