# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What a caller can ask for that nobody can mean, told before anything is looked at."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._hold import UNIT_NAME, HoldError, end_of_hold

_PROTECTED = re.compile(r"\d+|/.+|.+\.(service|scope)( of uid \d+)?|container:\S+")


def service_name(name: str) -> str:
    """`vllm` and `vllm.service` are the same unit, as for systemctl."""
    return name if name.endswith(".service") else f"{name}.service"


def knob(name: str, value: object) -> str:
    """How to set an option, for whoever calls a module and for whoever runs the playbooks."""
    return f"`{name}: {value}` (gpuops_{name})"


def option_faults(params: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a module's options beyond their types, each with what to write instead."""
    for name, value in params.items():
        # Not only what is below zero: a wait of `nan` or `inf` seconds never ends.
        if isinstance(value, (int, float)) and not 0 <= value < math.inf:
            yield f"{name} is {value}; it must be a number that is not negative"
    for name in ("warmup_tokens", "warmup_concurrency"):
        if params.get(name) == 0:
            yield f"{name} is 0; it must be at least 1"
    port = params.get("port")
    if port is not None and not 0 < port < 65536:
        yield f"port is {port}; it must be between 1 and 65535"
    if params.get("hold_until"):
        try:
            end_of_hold(params["hold_until"], time.time())
        except HoldError as error:
            yield f"hold_until: {error}"
    if params.get("keep_hold") is False:
        yield from (f"{name} needs keep_hold: true" for name in ("hold_until", "hold_over_reboot") if params.get(name))
    for unit in params.get("units") or ():
        if not UNIT_NAME.match(service_name(unit)):
            yield f"units: {unit!r} is no name of a service unit"
    # A word that fits nobody would leave unprotected whom it means, without a sound.
    for word in params.get("protect") or ():
        if not _PROTECTED.fullmatch(word):
            yield f"protect: {word!r} is no pid, no unit (NAME.service), no absolute path and no container:NAME"


def rights_faults(uid: Optional[int] = None) -> Iterator[str]:
    """Only root sees every process's descriptors. uid is by default our own."""
    if os.geteuid() if uid is None else uid:
        yield "only root sees who holds the GPUs, and may act on them; run with `become: true`"
