#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify_free
short_description: Wait until GPUs are proven free, or fail with the reason for each that is not
version_added: 0.1.0
description:
  - A GPU is free when NVML lists no context on it, no engine's and no foreign process has its node open, its memory is
    below the threshold, and all of this stays so for O(stable_for) seconds.
  - A source that cannot be read makes the verdict C(unknown), never C(free).
  - Ends nothing and changes nothing. Fails with the same structured data as it succeeds with.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
  - gpuops.inference.attributes.read_only
  - gpuops.inference.gpus
  - gpuops.inference.gpus.release
options:
  timeout:
    description: How long to wait for the GPUs to become free, in seconds.
    type: float
    default: 120
  leftovers:
    description:
      - What may keep the next engine from starting though the GPUs are free is always looked for, segments in
        C(/dev/shm) that nobody uses and ports of engine units that do not run but on which somebody listens.
      - V(report) tells it, V(fail) fails the task on it, and also where it cannot be told.
    type: str
    choices: [report, fail]
    default: report
  health:
    description:
      - What to check of the GPUs' health besides. A fault fails the task, and so does a value that cannot be read.
      - What a card does not have is told as not applicable, and passes.
      - V(ecc) fails on an uncorrected memory error since the driver was loaded; those of the card's lifetime, whose
        counter never goes back, are a note.
      - V(remap) fails on a memory row that waits for a reset to be remapped, or that could not be.
      - V(pcie) fails on a link with fewer lanes than card and slot have. Its generation is not looked at, since it
        falls whenever a GPU idles.
      - V(slowdown) fails where the board slows itself down for heat or power.
      - V(fabric) fails where a GPU has not joined its NVLink fabric, or NVSwitches have no fabric manager.
      - V(xid) fails on an Xid in the kernel's log of the last O(xid_window) seconds. Those that a program causes itself
        (13, 31, 43, 45, 68, 109) are a note.
    type: list
    elements: str
    choices: [all, ecc, remap, pcie, slowdown, fabric, xid]
    default: []
  xid_window:
    description:
      - How far back V(health=xid) looks, in seconds, and never beyond the last boot.
      - An Xid stays in the log after the GPU was reset. Make this shorter than the time since the reset then.
    type: float
    default: 86400
"""

EXAMPLES = r"""
- name: Prove all 8 GPUs free before driver work
  gpuops.inference.gpu_verify_free:
    gpu_count: 8
  become: true

- name: The same, and that their hardware is well
  gpuops.inference.gpu_verify_free:
    gpu_count: 8
    health: [all]
  become: true
"""

RETURN = r"""
free:
  description: Whether every GPU was proven free.
  returned: always
  type: bool
would_be_free:
  description: Whether a drain would end well now. In check mode GPUs that an engine holds are no failure.
  returned: in check mode
  type: bool
verdicts:
  description:
    - By GPU index, the C(verdict) and C(why).
    - The verdict is one of free, held, exiting, unkillable, respawning, leaked, ghost, inconclusive, gpu_lost, unknown.
  returned: always
  type: dict
  sample:
    "0": {"verdict": "free", "why": "no holder, 4 MiB in use"}
leftovers:
  description:
    - Room in C(/dev/shm) in MiB, the C(segments) of dead engines there, and who has C(ports) of units that do not run.
    - C(unclear) says why segments could not be judged, and is empty where they were.
  returned: always
  type: dict
health:
  description:
    - What the checks of O(health) found, each with C(check), C(gpus), C(text) and C(kind).
    - The kind is one of fault, unreadable, note, not applicable. The first two fail the task.
  returned: always
  type: list
  elements: dict
gpus:
  description: The GPUs as M(gpuops.inference.gpu_info) returns them.
  returned: always
  type: list
  elements: dict
processes:
  description: The processes as M(gpuops.inference.gpu_info) returns them.
  returned: always
  type: list
  elements: dict
seconds:
  description: How long it took.
  returned: always
  type: float
driver_version:
  description: Version of the kernel driver.
  returned: always
  type: str
nvml_version:
  description: Version of the NVML library.
  returned: always
  type: str
source:
  description: Where the figures come from, nvml, nvidia-smi or none.
  returned: always
  type: str
problems:
  description: What could not be seen, and what to do about it.
  returned: always
  type: list
  elements: str
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._arguments import (
    GPU_ARGUMENTS,
    RELEASE_ARGUMENTS,
    capped,
    gpu_rows,
    host_facts,
    process_rows,
)
from ansible_collections.gpuops.inference.plugins.module_utils._drain import Timeouts, holders, release_watch
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuSelectionError
from ansible_collections.gpuops.inference.plugins.module_utils._health import CHECKS, find_health
from ansible_collections.gpuops.inference.plugins.module_utils._leftovers import find_leftovers
from ansible_collections.gpuops.inference.plugins.module_utils._options import option_faults
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Policy, ghost_faults, make_plan
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import (
    PROBE_TIMEOUT,
    load_units,
    take_snapshot,
)
from ansible_collections.gpuops.inference.plugins.module_utils._telling import not_free_lines
from ansible_collections.gpuops.inference.plugins.module_utils._units import Units, UnitsError

ARGUMENTS: dict[str, Any] = {
    **GPU_ARGUMENTS,
    **RELEASE_ARGUMENTS,
    "timeout": {"type": "float", "default": 120.0},
    "leftovers": {"type": "str", "choices": ["report", "fail"], "default": "report"},
    "health": {"type": "list", "elements": "str", "choices": ["all", *CHECKS], "default": []},
    "xid_window": {"type": "float", "default": 86400.0},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    if faults := list(option_faults(params)):
        module.fail_json(msg="; ".join(faults))
    policy = Policy(
        gpus=tuple(params["gpus"]),
        gpu_count=params["gpu_count"] or 0,
        protect=tuple(params["protect"]),
        threshold_mib=params["threshold_mib"],
    )
    began = time.monotonic()
    try:
        with Probe() as probe:
            loaded = load_units(Units())
            snapshot = take_snapshot(probe, loaded)
            plan = make_plan(snapshot, policy)
            waits = not module.check_mode
            timeouts = Timeouts(
                stable_for=params["stable_for"] if waits else 0.0, release=params["timeout"] if waits else 0.0
            )
            watch = release_watch(probe, snapshot, plan, policy, timeouts, holders(plan), wait_stable=waits)
            free = watch.wait() and not plan.missing
            snapshot = take_snapshot(probe, loaded)
            plan = make_plan(snapshot, policy)
            left = find_leftovers(probe, snapshot, plan.judged)
            health = find_health(
                lambda: probe.health(PROBE_TIMEOUT),
                plan.gpus,
                snapshot.reading.gpus,
                loaded,
                params["health"],
                params["xid_window"],
            )
    except (GpuSelectionError, UnitsError) as error:
        module.fail_json(msg=str(error))

    result = {
        "changed": False,
        "free": free,
        "verdicts": {str(index): verdict.as_dict() for index, verdict in sorted(watch.verdicts.items())},
        "leftovers": {**left.as_dict(), "segments": capped(left.as_dict()["segments"])},
        "health": [finding.as_dict() for finding in health],
        "gpus": gpu_rows(plan.gpus),
        "processes": process_rows(plan.judged),
        "seconds": round(time.monotonic() - began, 3),
        **host_facts(snapshot),
    }
    ill = [str(finding) for finding in health if finding.fails]
    left_lines = left.lines()
    if params["leftovers"] == "fail":
        ill, left_lines = [*ill, *left_lines], []
    not_free = [*plan.missing, *not_free_lines(watch.verdicts)]
    # What fails comes first: the first line is all that some see.
    free_line = [] if not_free else [f"{len(plan.gpus)} GPUs are free"]
    story = "\n".join([*not_free, *ill, *free_line, *left_lines])
    if module.check_mode:
        refusals = [*plan.refusals, *plan.unsettled, *ghost_faults(snapshot, plan.gpus), *ill]
        result["would_be_free"] = not refusals
        if not refusals:
            module.exit_json(msg=story if free else f"not free now, but a drain would free them:\n{story}", **result)
        module.fail_json(msg="\n".join(refusals), **result)
    if not free or ill:
        module.fail_json(msg=story, **result)
    module.exit_json(msg=story, **result)


if __name__ == "__main__":
    main()
