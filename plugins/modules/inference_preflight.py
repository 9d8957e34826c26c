#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_preflight
short_description: Check that a pivot to a layout can end well, before anything is touched
version_added: 0.1.0
description:
  - Checks the platform, the GPUs and their driver, the model's files, the room for what will be written, the port, the
    engine and its flags, both units, that what serves now could be brought back, and what an earlier pivot left.
  - All checks run, and all problems are told in one message, each with what to do about it.
  - Reads only. The engine is imported, but never started, and no GPU is visible to it.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
  - gpuops.inference.attributes.read_only
options:
  layout:
    description: The layout as the role C(gpuops.inference.layout) resolves it.
    type: dict
    required: true
  engine:
    description: The engine that shall serve after the pivot.
    type: str
    choices: [sglang, vllm]
    required: true
  allow_no_rollback:
    description: Whether to go on although what serves now could not be brought back as it is.
    type: bool
    default: false
  engine_timeout:
    description: Seconds that importing the engine may take.
    type: int
    default: 180
  deployed:
    description:
      - By path, the SHA-256 of every file that a deployment would write.
      - Where these are there and the engine of O(engine) serves alone, enabled and as its files say, nothing else is
        checked and RV(settled) is true. Without it, all checks are always made.
    type: dict
    default: {}
  gpus:
    description: The GPUs this is about, as M(gpuops.inference.pivot_record) takes them.
    type: list
    elements: str
    default: [all]
  health:
    description: What to check of the hardware of the layout's GPUs, as M(gpuops.inference.gpu_verify_free) does.
    type: list
    elements: str
    choices: [all, ecc, remap, pcie, slowdown, fabric, xid]
    default: []
  xid_window:
    description: How far back V(health=xid) looks, in seconds, and never beyond the last boot.
    type: float
    default: 86400
"""

EXAMPLES = r"""
- name: Check that SGLang can take over
  gpuops.inference.inference_preflight:
    layout: "{{ layout_resolved }}"
    engine: sglang
  become: true
"""

RETURN = r"""
problems:
  description: What stands in the way; empty on success.
  returned: always
  type: list
  elements: dict
  contains:
    check:
      description: Which check found it.
      type: str
    message:
      description: What is wrong and what to do.
      type: str
checks:
  description: The checks that were made, in order.
  returned: always
  type: list
  elements: str
engine_version:
  description: The installed version of the engine; empty if it could not be asked.
  returned: always
  type: str
memory:
  description:
    - What the engine will need of each GPU, weights and cache at the context and concurrency that the layout asks for,
      beside what it may use. Empty where that cannot be told from the model's files and the flags.
  returned: always
  type: str
  sample: >-
    each GPU: weights 63.7 + KV cache 8.6 (131072 tokens x 1) = 72.3 of the 87.5 GiB that gpu-memory-utilization 0.93
    leaves of 95.6 (headroom 1.4); 364148 tokens of cache fit
driver_version:
  description: Version of the kernel driver; empty if NVML does not answer.
  returned: always
  type: str
notes:
  description:
    - What a pivot changes for others. A unit that was not made from a layout is replaced, clients must ask at another
      address or for another model.
  returned: always
  type: list
  elements: str
settled:
  description: Whether the engine serves already as asked, so that a pivot to it has nothing to do.
  returned: always
  type: bool
up:
  description: With RV(settled), seconds for which it has served, as M(gpuops.inference.inference_service) tells them.
  returned: always
  type: float
serving:
  description: The engine units that run now.
  returned: always
  type: list
  elements: str
drain:
  description: Whether a pivot would drain the GPUs.
  returned: always
  type: bool
existing_units:
  description: The engine units that exist now, which such a drain would hold.
  returned: always
  type: list
  elements: str
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._deployment import differing_secrets
from ansible_collections.gpuops.inference.plugins.module_utils._gpus import GpuReading, GpuSelectionError
from ansible_collections.gpuops.inference.plugins.module_utils._health import CHECKS, find_health
from ansible_collections.gpuops.inference.plugins.module_utils._memory import told
from ansible_collections.gpuops.inference.plugins.module_utils._options import option_faults, rights_faults
from ansible_collections.gpuops.inference.plugins.module_utils._pivot import PivotRecord
from ansible_collections.gpuops.inference.plugins.module_utils._preflight import (
    Problem,
    ask_engine,
    changes,
    driver_faults,
    gpu_faults,
    memory_faults,
    memory_need,
    model_check,
    nvml_faults,
    own_gpus,
    platform_faults,
    port_faults,
    prepared_faults,
    problems,
    rollback_faults,
    room_faults,
    story,
    systemd_version,
    unit_faults,
)
from ansible_collections.gpuops.inference.plugins.module_utils._probe import Probe
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError
from ansible_collections.gpuops.inference.plugins.module_utils._serving import Host, Order, Service
from ansible_collections.gpuops.inference.plugins.module_utils._snapshot import (
    PROBE_TIMEOUT,
    load_units,
    take_snapshot,
)
from ansible_collections.gpuops.inference.plugins.module_utils._transaction import SETTLED, TransactionError
from ansible_collections.gpuops.inference.plugins.module_utils._units import Units, UnitsError, cgroup_version


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "layout": {"type": "dict", "required": True},
            "engine": {"type": "str", "choices": ["sglang", "vllm"], "required": True},
            "allow_no_rollback": {"type": "bool", "default": False},
            "engine_timeout": {"type": "int", "default": 180},
            # Of digests nobody learns a good key, but no log needs them either.
            "deployed": {"type": "dict", "default": {}, "no_log": True},
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
            "health": {"type": "list", "elements": "str", "choices": ["all", *CHECKS], "default": []},
            "xid_window": {"type": "float", "default": 86400.0},
        },
        supports_check_mode=True,
    )
    if faults := list(option_faults(module.params)):
        module.fail_json(msg="; ".join(faults))
    layout = module.params["layout"]
    engine = (layout.get("engines") or {}).get(module.params["engine"]) or {}
    if "unit_text" not in engine:
        module.fail_json(msg="layout is not what the role gpuops.inference.layout makes; run that role first")
    now, refused = what_runs(layout, engine, module.params)
    if now["settled"]:
        empty: dict[str, Any] = {"problems": [], "checks": [], "engine_version": "", "driver_version": "", "notes": []}
        module.exit_json(msg=f"{engine['unit']} serves already as asked", changed=False, **empty, **now)
    try:
        result = {**examine(layout, engine, module.params), **now}
    except UnitsError as error:
        module.fail_json(msg=str(error), **now)
    found = [*result.pop("found"), *problems("pivot", refused)]
    result["problems"] = [{"check": problem.check, "message": problem.message} for problem in found]
    if found:
        module.fail_json(msg=story(found, engine["unit"]), changed=False, **result)
    words = [f"nothing stands in the way of {engine['unit']}", result["memory"], *result["notes"]]
    module.exit_json(msg="; ".join(filter(None, words)), changed=False, **result)


def what_runs(
    layout: Mapping[str, Any], engine: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """How a pivot would begin, also whether it would have nothing to do, and why it would not begin at all."""
    unknown: dict[str, Any] = {"settled": False, "up": None, "serving": [], "drain": False, "existing_units": []}
    if not systemd_version() or cgroup_version() != "v2" or list(rights_faults()):
        return unknown, []
    units = [each["unit"] for each in layout["engines"].values()]
    try:
        # As a pivot would begin, but in check mode: nothing is locked or written.
        begun = PivotRecord(Units(), units, 0.0, True, params["gpus"]).begin(engine["unit"], True)
    except (TransactionError, RecordError) as error:
        return unknown, [str(error)]
    except (UnitsError, GpuSelectionError):
        # The checks below meet the same and say so.
        return unknown, []
    alone = [each["unit"] for each in begun["engines"] if each["enabled"]] == [engine["unit"]]
    paths = (engine["secrets_path"], engine["configuration_path"])
    secrets = {path: params["deployed"][path] for path in paths if path in params["deployed"]}
    as_asked = (
        bool(params["deployed"])
        and begun["mode"] == SETTLED
        and alone
        and all(_digest(path) == digest for path, digest in params["deployed"].items())
        # A deployment would also close what others can read.
        and not differing_secrets(engine, secrets)
    )
    served = Service(Host(), Order(engine["unit"], "ready", enabled=True)).run() if as_asked else None
    settled = served is not None and not served["failed"]
    serving = [each["unit"] for each in begun["engines"] if each["active"]]
    return {
        "settled": settled,
        "up": served["up"] if served else None,
        "serving": serving,
        "drain": begun["drain"],
        "existing_units": begun["existing_units"],
    }, []


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def examine(layout: dict, engine: dict, params: dict) -> dict:
    """Make every check that can be made here."""
    found: list[Problem] = []
    checks: list[str] = []

    def check(name: str, messages: Iterable[str]) -> None:
        checks.append(name)
        found.extend(problems(name, messages))

    systemd, cgroups = systemd_version(), cgroup_version()
    check("platform", platform_faults(systemd, cgroups))
    check("rights", rights_faults())
    check("prepared", prepared_faults())
    check("room", room_faults(layout, engine))
    check("model", model_check(engine))
    installed = ask_engine(engine, params["engine_timeout"])
    checks += ["engine", "flags"]
    found += installed.faults
    reading = GpuReading()
    need = None
    notes: list[str] = []
    if systemd and cgroups == "v2":
        check("units", unit_faults(layout, systemd))
        with Probe() as probe:
            loaded = load_units(Units())
            snapshot = take_snapshot(probe, loaded)
            reading = snapshot.reading
            health = find_health(
                lambda: probe.health(PROBE_TIMEOUT),
                own_gpus(layout, reading),
                reading.gpus,
                loaded,
                params["health"],
                params["xid_window"],
            )
        check("nvml", nvml_faults(reading))
        check("gpus", gpu_faults(layout, reading))
        check("driver", driver_faults(reading))
        if params["health"]:
            check("health", (f"{finding.check}: {finding.told}" for finding in health if finding.fails))
        need = memory_need(layout, engine, reading)
        check("memory", memory_faults(engine["engine"], need))
        check("port", port_faults(engine, snapshot))
        notes = list(changes(engine, snapshot, layout["gpus"]["indexes"]))
        if not params["allow_no_rollback"]:
            check("rollback", rollback_faults(engine["unit"], snapshot, layout["gpus"]["indexes"]))
    return {
        "found": found,
        "checks": checks,
        "engine_version": installed.version,
        "driver_version": reading.driver_version,
        "notes": notes,
        "memory": told(engine["engine"], need) if need else "",
    }


if __name__ == "__main__":
    main()
