# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: did_you_mean
short_description: Name what is not known, with what was probably meant
version_added: 1.0.0
description:
  - Keep the names that are not among the known ones, and say for each which known one is near.
  - A misspelled variable is otherwise silently without effect.
positional: known
options:
  _input:
    description: The names in use.
    type: list
    elements: str
    required: true
  known:
    description: The names that mean something.
    type: list
    elements: str
    required: true
author:
  - gpuops.inference contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Refuse variables that nothing reads
  ansible.builtin.assert:
    that: unknown | length == 0
    fail_msg: "unknown: {{ unknown | join('; ') }}"
  vars:
    unknown: "{{ query('ansible.builtin.varnames', '^app_') | gpuops.inference.did_you_mean(['app_port', 'app_user']) }}"
"""

RETURN = r"""
_value:
  description: One text for each unknown name.
  type: list
  elements: str
  sample: ["app_prot (did you mean app_port?)", "app_colour"]
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from ansible.errors import AnsibleFilterError


def did_you_mean(names: Iterable[str], known: Iterable[str]) -> list[str]:
    if isinstance(names, str) or isinstance(known, str):
        raise AnsibleFilterError("did_you_mean: give two lists of names, not a text")
    familiar = sorted(known)
    return [_describe(name, familiar) for name in sorted(set(names) - set(familiar))]


def _describe(name: str, familiar: list[str]) -> str:
    near = get_close_matches(name, familiar, n=1, cutoff=0.75)
    return f"{name} (did you mean {near[0]}?)" if near else name


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"did_you_mean": did_you_mean}
