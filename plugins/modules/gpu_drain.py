#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_drain
short_description: Take inference engines off the GPUs of a host, and prove that the GPUs are free
version_added: 0.1.0
description:
  - Holds the engine units, stops them through systemd, ends engine processes that no unit answers for, and waits until
    every GPU is proven free.
  - Plans first. If the drain cannot end well (a job that is no engine's, a GPU that is lost, a driver that cannot be
    asked), it fails and names each reason before anything is touched.
  - Only engine units are stopped as a whole, and only pinned processes are signalled. Management and monitoring
    programs, the SSH server, and everything this task runs under are never touched.
  - Fails when a GPU is not free at the end, with the same structured data as on success.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
  - gpuops.inference.gpus
  - gpuops.inference.gpus.release
attributes:
  check_mode:
    support: full
    details:
      - Returns the plan. Fails where the real run would refuse.
  diff_mode:
    support: full
    details:
      - Shows the GPU table before and after.
  idempotent:
    support: full
options:
  units:
    description:
      - Engine units to stop, beside those that are found to hold the GPUs. Each must exist and run an engine.
      - Other loaded engine units are drained too when all GPUs are selected.
    type: list
    elements: str
    default: []
  engines:
    description: The engines this drain may end. Another engine's processes count as foreign.
    type: list
    elements: str
    choices: [vllm, sglang]
    default: [vllm, sglang]
  foreign:
    description:
      - What to do with processes that hold a GPU and are neither an engine's nor an observer.
      - V(refuse) fails before anything is touched, V(end) ends them.
    type: str
    choices: [refuse, end]
    default: refuse
  containers:
    description:
      - What to do with a container that runs an engine, or whose processes hold a GPU.
      - V(refuse) fails before anything is touched, V(stop) has it stopped by the docker, podman or nerdctl that it
        belongs to, whatever runs in it. One whose monitor is gone is ended process by process, for no runtime can
        stop it.
      - A container that is stopped so is not started again by its restart policy before its runtime or the host starts
        anew.
      - A container that an engine unit runs is stopped with that unit, and needs no word here. One that another unit
        runs is refused, for that unit would run it again; see O(units).
      - Kubernetes pods, batch jobs, containers of a user's own podman and those of other runtimes are always refused,
        with the command to run instead.
    type: str
    choices: [refuse, stop]
    default: refuse
  user_units:
    description:
      - What to do with a service of a user's own service manager that runs an engine and nothing else.
      - V(refuse) fails before anything is touched, V(stop) has it stopped by that manager. It is not held, for its user
        may start it at any time; C(Restart=) does not.
      - A user's service that runs more than an engine is always refused, with the command to run instead.
    type: str
    choices: [refuse, stop]
    default: refuse
  supervisors:
    description:
      - What to do with a script or program that is no unit and started an engine that this drain ends, as it may start
        it again.
      - V(leave) ends the engine alone. If it comes back, the drain fails and names who started it.
      - V(end) ends these first. Who counts is found from the engine upwards, shells with a script or a command, Python
        programs, and programs made for it such as supervisord. Shells that somebody types into, notebooks, terminals,
        tmux and what is above them are left alone.
    type: str
    choices: [leave, end]
    default: leave
  keep_hold:
    description:
      - Leave the engine units held at the end, so that nothing can start them until the hold is lifted, by
        M(gpuops.inference.gpu_undrain) for instance.
      - Sockets, paths and timers that start them are stopped meanwhile, and started again when the hold is lifted. A
        timer that counts from the boot goes on, and its unit is refused.
      - Without it the units are held for the length of the drain. The module fails where something starts one again as
        soon as they are not, and names it.
      - A hold that stands already keeps its reason and its end.
    type: bool
    default: false
  hold_until:
    description:
      - When the hold ends by itself, as a time span (V(90min), V(4h), V(1d 12h)) or an ISO 8601 time, which is local to
        the host where it names no zone. Nothing is started then.
      - Without it the hold stands until it is lifted.
    type: str
  hold_over_reboot:
    description: Let the hold stand over reboots. Otherwise a reboot ends it, and enabled units start.
    type: bool
    default: false
  hold_for:
    description:
      - What the hold is part of. M(gpuops.inference.gpu_undrain) lifts the holds of a drain, and those of a pivot only
        when they are named.
      - A pivot takes over the holds of a drain, their end included.
    type: str
    choices: [drain, pivot]
    default: drain
  reason:
    description: Why, in a few words. Kept in the hold, the record and the journal.
    type: str
    default: drain
  force:
    description:
      - Go on although release cannot be proven for every GPU (a lost or leaked GPU, an unkillable process, a driver
        that does not answer). The module still fails at the end if a GPU is not free.
      - Also ends an engine that a system unit's own program started, without stopping that unit (see O(units)).
    type: bool
    default: false
  remove_leftovers:
    description:
      - At the end, remove the shared memory segments that dead engines left in C(/dev/shm). Once it is full, no engine
        starts.
      - Only files with a name that an engine, its libraries or CUDA give, of a user that engines of this host run as,
        which no process maps or has open.
    type: bool
    default: false
  quiesce_timeout:
    description:
      - How long to wait, in seconds, until no engine runs a request, has one waiting, or answered one for 2 seconds.
      - An engine whose metrics cannot be read is not waited for, and the stage says so. V(0) does not wait at all.
    type: float
    default: 60
  on_quiesce_timeout:
    description:
      - What to do with an engine that still has requests after O(quiesce_timeout).
      - V(fail) leaves it serving and fails, V(proceed) stops it and cuts its requests off.
    type: str
    choices: [fail, proceed]
    default: fail
  stop_timeout:
    description:
      - How long an engine unit may take to stop, in seconds, before its cgroup is killed.
      - By default the unit's own C(TimeoutStopSec), at most 120. An engine that never came up gets at most 10.
      - Where the unit or its engine allows itself more, a warning says so.
    type: float
  term_timeout:
    description: How long a process gets between SIGTERM and SIGKILL, in seconds.
    type: float
    default: 15
  kill_timeout:
    description: How long after SIGKILL a process counts as unkillable, in seconds.
    type: float
    default: 60
  release_timeout:
    description: How long the driver may take to give all memory back, in seconds.
    type: float
    default: 120
  lock_timeout:
    description: How long to wait for another drain of this host, in seconds. V(0) fails at once and names it.
    type: float
    default: 0
seealso:
  - module: gpuops.inference.gpu_undrain
  - module: gpuops.inference.gpu_verify_free
  - module: gpuops.inference.gpu_info
"""

EXAMPLES = r"""
- name: Show what a drain would do
  gpuops.inference.gpu_drain:
  check_mode: true
  diff: true
  become: true

- name: Drain the host for driver work, and keep everything from starting again
  gpuops.inference.gpu_drain:
    gpu_count: 8
    keep_hold: true
    hold_over_reboot: true
    hold_until: 1d
    reason: driver update
  become: true
"""

RETURN = r"""
msg:
  description: The story in at most 12 lines.
  returned: always
  type: str
plan:
  description: The steps in words, in order.
  returned: always
  type: list
  elements: str
refusals:
  description: Why nothing was done. Empty when something was, or nothing had to be.
  returned: always
  type: list
  elements: str
processes:
  description: Every process that touches a GPU, as M(gpuops.inference.gpu_info) returns it, before anything was done.
  returned: always
  type: list
  elements: dict
stages:
  description: What was done, each with C(name), C(seconds) and C(actions).
  returned: always
  type: list
  elements: dict
stopped_units:
  description: Engine units that were stopped, each with C(unit), C(seconds), and whether its cgroup was C(killed).
  returned: always
  type: list
  elements: dict
stopped_owners:
  description:
    - Containers and users' units that their own manager was told to stop, each with its C(owner), C(seconds), an
      C(error) where that failed, and a container's C(restart) policy.
  returned: always
  type: list
  elements: dict
ended:
  description: Processes that were ended, each with C(pid), C(start), C(name), C(signal) and C(seconds).
  returned: always
  type: list
  elements: dict
left_alone:
  description: Processes that touch a GPU and were left alone, as in C(processes).
  returned: always
  type: list
  elements: dict
survivors:
  description: Processes that do not die of SIGKILL, each with C(state) and the kernel function it C(waits_in).
  returned: always
  type: list
  elements: dict
removed:
  description: Segments that were removed from C(/dev/shm), each with C(name), C(mib) and C(uid).
  returned: always
  type: list
  elements: dict
held_units:
  description: Units for which this call placed or repaired a hold that stays.
  returned: always
  type: list
  elements: str
holds:
  description: The holds of the drained units that stand now, as M(gpuops.inference.gpu_info) returns them.
  returned: always
  type: list
  elements: dict
respawned:
  description: What came back though everything was ended, with what started it.
  returned: always
  type: list
  elements: str
starters:
  description: What is active and may start a unit again that is not held any more.
  returned: always
  type: list
  elements: str
gpus_before:
  description: The GPUs before, as M(gpuops.inference.gpu_info) returns them.
  returned: always
  type: list
  elements: dict
gpus_after:
  description: The GPUs after.
  returned: always
  type: list
  elements: dict
verdicts:
  description: By GPU index, the verdict and why, as M(gpuops.inference.gpu_verify_free) returns them.
  returned: always
  type: dict
memory_samples:
  description: How memory came back, a point for each change that was seen, at most 64.
  returned: always
  type: list
  elements: dict
  contains:
    seconds:
      description: When, since the drain began.
      type: float
    used_mib:
      description: By GPU index, the MiB in use.
      type: dict
released:
  description: Whether every selected GPU was proven free.
  returned: always
  type: bool
drained:
  description: Whether all went well. The task fails where it did not.
  returned: always
  type: bool
would_release:
  description: Whether the plan would end with all GPUs free.
  returned: in check mode
  type: bool
would_change:
  description: The same as RV(ignore:changed), for a task that looks ahead and changes nothing itself.
  returned: in check mode
  type: bool
seconds:
  description: How long it took.
  returned: always
  type: float
record:
  description: Path on the host of the whole record, readable by root alone. Null where nothing was done.
  returned: always
  type: str
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

import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._arguments import (
    GPU_ARGUMENTS,
    RELEASE_ARGUMENTS,
)
from ansible_collections.gpuops.inference.plugins.module_utils._drain import Drain, NotQuietError, Timeouts
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuSelectionError
from ansible_collections.gpuops.inference.plugins.module_utils._hold import Hold, HoldError, Holds, end_of_hold
from ansible_collections.gpuops.inference.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.inference.plugins.module_utils._options import (
    option_faults,
    rights_faults,
    service_name,
)
from ansible_collections.gpuops.inference.plugins.module_utils._paths import LOCK, RECORDS
from ansible_collections.gpuops.inference.plugins.module_utils._plan import Policy
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._record import (
    Lock,
    RecordError,
    whoami,
    write_json,
)
from ansible_collections.gpuops.inference.plugins.module_utils._telling import causes, drain_result
from ansible_collections.gpuops.inference.plugins.module_utils._units import Units, UnitsError

ARGUMENTS: dict[str, Any] = {
    **GPU_ARGUMENTS,
    **RELEASE_ARGUMENTS,
    "units": {"type": "list", "elements": "str", "default": []},
    "engines": {
        "type": "list",
        "elements": "str",
        "choices": ["vllm", "sglang"],
        "default": ["vllm", "sglang"],
    },
    "foreign": {"type": "str", "choices": ["refuse", "end"], "default": "refuse"},
    "containers": {"type": "str", "choices": ["refuse", "stop"], "default": "refuse"},
    "user_units": {"type": "str", "choices": ["refuse", "stop"], "default": "refuse"},
    "supervisors": {"type": "str", "choices": ["leave", "end"], "default": "leave"},
    "keep_hold": {"type": "bool", "default": False},
    "hold_until": {"type": "str"},
    "hold_over_reboot": {"type": "bool", "default": False},
    "hold_for": {"type": "str", "choices": ["drain", "pivot"], "default": "drain"},
    "reason": {"type": "str", "default": "drain"},
    "force": {"type": "bool", "default": False},
    "remove_leftovers": {"type": "bool", "default": False},
    "quiesce_timeout": {"type": "float", "default": 60.0},
    "on_quiesce_timeout": {"type": "str", "choices": ["fail", "proceed"], "default": "fail"},
    "stop_timeout": {"type": "float"},
    "term_timeout": {"type": "float", "default": 15.0},
    "kill_timeout": {"type": "float", "default": 60.0},
    "release_timeout": {"type": "float", "default": 120.0},
    "lock_timeout": {"type": "float", "default": 0.0},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    if faults := [*option_faults(params), *rights_faults()]:
        module.fail_json(msg="; ".join(faults))
    policy = Policy(
        gpus=tuple(params["gpus"]),
        gpu_count=params["gpu_count"] or 0,
        units=tuple(map(service_name, params["units"])),
        engines=tuple(params["engines"]),
        end_foreign=params["foreign"] == "end",
        stop_containers=params["containers"] == "stop",
        stop_user_units=params["user_units"] == "stop",
        end_supervisors=params["supervisors"] == "end",
        protect=tuple(params["protect"]),
        force=params["force"],
        threshold_mib=params["threshold_mib"],
    )
    timeouts = Timeouts(
        stop=params["stop_timeout"],
        term=params["term_timeout"],
        kill=params["kill_timeout"],
        quiesce=params["quiesce_timeout"],
        release=params["release_timeout"],
        stable_for=params["stable_for"],
    )
    who = whoami(f"gpu_drain: {params['reason']}")
    hold = Hold(
        "",
        params["reason"],
        who["user"],
        until=end_of_hold(params["hold_until"], time.time()) if params["hold_until"] else 0.0,
        controller=who["controller"],
        purpose=params["hold_for"],
        over_reboot=params["hold_over_reboot"],
    )
    journal = Journal()
    began = time.monotonic()
    try:
        with Lock(LOCK, params["lock_timeout"], who["command"]), Probe() as probe:
            drain = Drain(
                policy,
                timeouts,
                probe,
                Units(),
                Holds(),
                journal,
                hold,
                cut_requests=params["on_quiesce_timeout"] == "proceed",
                remove_leftovers=params["remove_leftovers"],
            )
            plan = drain.plan()
            before = drain.snapshot
            refused = [*plan.refusals, *plan.unsettled]
            for text in [] if refused else drain.warnings(plan):
                module.warn(text)
            error = ""
            if not refused and not module.check_mode:
                try:
                    drain.act(plan, params["keep_hold"])
                except (NotQuietError, GpuSelectionError, UnitsError, RecordError, HoldError) as stopped:
                    # Told with everything done so far: what was stopped is stopped.
                    error = "; ".join(causes(stopped))
            result = drain_result(drain, plan, before, refused, error, params["keep_hold"], module.check_mode)
            result["drained"] = not refused and not error and (drain.story.released or module.check_mode)
            result["seconds"] = round(time.monotonic() - began, 3)
            result["record"] = None
            if result["changed"] and not module.check_mode:
                record = RECORDS / f"{time.strftime('%Y%m%dT%H%M%S')}-drain-{os.getpid()}.json"
                try:
                    write_json(record, {**who, "reason": params["reason"], **result})
                    result["record"] = str(record)
                except RecordError as lost:
                    # What was done is worth more than the file that tells of it.
                    module.warn(f"there is no record of this drain: {lost}")
                told = result["msg"].partition("\n")[0]
                journal.send(f"drain ended: {told}", action="end", record=result["record"], **who)
                if journal.warning:
                    module.warn(journal.warning)
    except (GpuSelectionError, UnitsError, RecordError, HoldError) as failure:
        module.fail_json(msg=str(failure))
    if not result["drained"]:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
