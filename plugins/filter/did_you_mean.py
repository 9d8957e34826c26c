# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from os.path import commonprefix
from typing import Any

from ansible.errors import AnsibleFilterError


def did_you_mean(names: Iterable[str], known: Iterable[str]) -> list[str]:
    if isinstance(names, str) or isinstance(known, str):
        raise AnsibleFilterError("did_you_mean: give two lists of names, not a text")
    familiar = sorted(known)
    return [_describe(name, familiar) for name in sorted(set(names) - set(familiar))]


def _describe(name: str, familiar: list[str]) -> str:
    # What all names begin with would make any two of them look alike.
    shared = len(commonprefix([name, *familiar]))
    near = get_close_matches(name[shared:], [known[shared:] for known in familiar], n=1, cutoff=0.7)
    return f"{name} (did you mean {name[:shared]}{near[0]}?)" if near else name


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"did_you_mean": did_you_mean}
