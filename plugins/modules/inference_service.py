#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_service
short_description: Start, stop or restart an inference engine's unit and wait until it answers
version_added: 0.1.0
description:
  - Starts, stops or restarts a systemd unit that runs vLLM or SGLang.
  - A start is over when the engine is healthy, lists the model it should serve, and completed a request.
  - A start that cannot end well is told within seconds of its cause, in words and with the last lines of its log.
    The unit failed, systemd would start it over and over, the engine said something final, its port is taken, it
    serves another model, or nothing moved for O(stall_timeout).
  - Where the failed unit would go on for nothing (a crash loop, an engine that hangs with its memory held), it is
    stopped. A start that is merely slow or stalled is left as it is; the next run joins it.
  - While it waits, one line for each phase is printed on the controller, with how long the last good start of the
    same command line took. Where the output is a terminal, loaded shards are counted as well.
  - Interrupting the playbook does not interrupt the host. The next run says so and joins the start.
  - The key that clients must show is read on the host from the unit's C(EnvironmentFile). It is never a parameter
    and never part of a result.
author:
  - gpuops.inference contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Tells the transition. A unit that is not there yet counts as one that another task would have written.
  diff_mode:
    support: full
    details:
      - Shows state and enablement before and after.
  idempotent:
    support: partial
    details:
      - With O(state=restarted) every run restarts the unit.
  async:
    description: Supports being used with the C(async) keyword.
    support: full
    details:
      - What takes more than two seconds goes on in a process of its own on the host anyway, so that its progress can
        be shown. With C(async) no progress is shown.
options:
  name:
    description:
      - Name of the unit. The ending C(.service) may be left out.
      - It must run an engine. Other units are refused.
    type: str
    required: true
  state:
    description:
      - V(started) waits for a start that is on its way, and leaves an engine alone that is ready.
      - V(stopped) waits until no process of the unit is left.
      - V(restarted) stops it first if it runs.
      - V(ready) changes nothing. It fails unless the engine answers now, runs as its unit's files say, and starts at
        boot as O(enabled) says.
    type: str
    choices: [started, stopped, restarted, ready]
    default: started
  engine:
    description:
      - What the unit runs.
      - By default it is told from the unit's command line. A unit that starts its engine through a wrapper needs it.
    type: str
    choices: [vllm, sglang]
  host:
    description:
      - Address on which the engine is asked.
      - By default the one it listens on, or loopback where it listens on all.
    type: str
  port:
    description:
      - Port on which the engine is asked. By default as on its command line, or the engine's own.
    type: int
  served_model:
    description:
      - Name of the model that must answer. By default the first served name on its command line, or the model's path.
    type: str
  enabled:
    description:
      - Whether the unit starts at boot. It is changed after the unit has reached its state, never when that failed.
    type: bool
  lift_hold:
    description:
      - Whether to lift a hold that M(gpuops.inference.gpu_drain) left on the unit.
      - Otherwise a held unit is not started.
    type: bool
    default: false
  ready_timeout:
    description:
      - How long to wait for ready, in seconds.
    type: float
    default: 3600
  stall_timeout:
    description:
      - How long the start may show no sign of progress, neither a new log line nor disk traffic, in seconds.
    type: float
    default: 600
  stop_timeout:
    description:
      - How long a stop may take, in seconds.
      - By default the unit's C(TimeoutStopSec), or 120 s where that is infinite, and 15 s for what systemd then kills.
    type: float
  restart_on_drift:
    description:
      - Whether to restart an engine that runs and is not what its unit says now.
      - Otherwise that is only reported in RV(drift).
    type: bool
    default: false
  warmup_prompts:
    description:
      - Prompts to have completed once the engine is ready, before the start counts as good.
    type: list
    elements: str
    default: []
  warmup_tokens:
    description:
      - How many tokens to have generated for each of them.
    type: int
    default: 128
  warmup_concurrency:
    description:
      - How many of them to ask for at a time.
    type: int
    default: 1
  min_tokens_per_second:
    description:
      - The tokens per second, over all of O(warmup_concurrency), below which the start counts as failed. V(0) for no
        floor. The engine is left as it is.
      - The prompts are completed twice, and the second time counts. Without O(warmup_prompts) it is one of our own.
      - An engine that was ready before is not measured.
    type: float
    default: 0
  log_lines:
    description:
      - How many lines of the start's log to return at most.
    type: int
    default: 20
seealso:
  - module: gpuops.inference.gpu_drain
  - module: gpuops.inference.gpu_verify_free
"""

EXAMPLES = r"""
- name: Start SGLang and wait until it answers
  gpuops.inference.inference_service:
    name: sglang
  become: true

- name: Bring production back after a drain that kept its hold
  gpuops.inference.inference_service:
    name: vllm.service
    lift_hold: true
    enabled: true
  become: true

- name: Apply a changed unit or environment file
  gpuops.inference.inference_service:
    name: vllm.service
    restart_on_drift: true
  become: true

- name: Stop the engine
  gpuops.inference.inference_service:
    name: vllm.service
    state: stopped
    enabled: false
  become: true
"""

RETURN = r"""
msg:
  description: The story in a sentence.
  returned: always
  type: str
  sample: sglang.service answers for kimi-k2.5 on 127.0.0.1 port 30000, ready 1312.4 s after its start
state:
  description: The unit before and after.
  returned: always
  type: dict
  contains:
    before:
      description: One of missing, stopped, failed, restarting, stopping, running (not known to be ready), ready.
      type: str
    after:
      description: The same afterwards, or as it would be in check mode.
      type: str
ready:
  description: When the engine answered, in seconds since this task began to wait for it. Null for what never came.
  returned: when it was waited for
  type: dict
  contains:
    seconds:
      description: When all of it was seen.
      type: float
    health:
      description: When it called itself healthy.
      type: float
    models:
      description: When it listed the model.
      type: float
    completion:
      description: When it had completed a request.
      type: float
up:
  description:
    - Seconds for which it has served. They count from when its unit became active, less what its last good start with
      this command line took until it was ready, where the collection has seen one.
    - Null unless O(state=ready) found it so.
  returned: always
  type: float
process:
  description: The main process.
  returned: when it was waited for
  type: dict
  contains:
    pid:
      description: Process id, 0 when it is gone.
      type: int
    argv:
      description: Its command line as it runs, secrets masked.
      type: list
      elements: str
    profiling:
      description: Those of its arguments that make it a profiling run.
      type: list
      elements: str
warmup:
  description: What was generated for the warm-up prompts the last time. Null where there was none.
  returned: always
  type: dict
  sample: {"prompts": 2, "concurrency": 2, "tokens": 256, "seconds": 3.2, "tokens_per_second": 80.0}
drift:
  description:
    - Where the engine differs from what its unit's files say, each with what to do about it.
    - O(restart_on_drift) acts on what a restart cures. A mask, and a drop-in on a unit that the collection wrote, stay.
  returned: always
  type: list
  elements: str
  sample:
    - "/etc/gpuops/vllm.service.env has changed: a pivot to it, or restart_on_drift, applies what the files say"
reason:
  description: Why it failed, empty when it did not.
  returned: always
  type: str
log:
  description: The last lines of this start's log, secrets masked.
  returned: always
  type: list
  elements: str
stages:
  description: What was done and waited for, each with C(name), C(seconds) and C(actions).
  returned: always
  type: list
  elements: dict
held:
  description: The hold because of which it was not started, with C(reason), C(who), C(since) and C(until).
  returned: always
  type: dict
"""

import os
import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._background import in_background
from ansible_collections.gpuops.inference.plugins.module_utils._options import option_faults, rights_faults
from ansible_collections.gpuops.inference.plugins.module_utils._paths import PROGRESS
from ansible_collections.gpuops.inference.plugins.module_utils._record import outlive_connection
from ansible_collections.gpuops.inference.plugins.module_utils._serving import Host, Order, Service

# What is done within this many seconds is returned at once.
_AT_ONCE = 2.0

ARGUMENTS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["started", "stopped", "restarted", "ready"], "default": "started"},
    "engine": {"type": "str", "choices": ["vllm", "sglang"]},
    "host": {"type": "str"},
    "port": {"type": "int"},
    "served_model": {"type": "str"},
    "enabled": {"type": "bool"},
    "lift_hold": {"type": "bool", "default": False},
    "ready_timeout": {"type": "float", "default": 3600.0},
    "stall_timeout": {"type": "float", "default": 600.0},
    "stop_timeout": {"type": "float"},
    "restart_on_drift": {"type": "bool", "default": False},
    "warmup_prompts": {"type": "list", "elements": "str", "default": []},
    # Tokens of text, no secrets.
    "warmup_tokens": {"type": "int", "default": 128, "no_log": False},
    "warmup_concurrency": {"type": "int", "default": 1},
    "min_tokens_per_second": {"type": "float", "default": 0.0, "no_log": False},
    "log_lines": {"type": "int", "default": 20},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    if faults := [*option_faults(module.params), *rights_faults()]:
        module.fail_json(msg="; ".join(faults))
    order = Order(**module.params, check_mode=module.check_mode)
    # Set by the action plugin, which then reads the progress.
    name = os.environ.get("GPUOPS_PROGRESS", "")
    if re.match(r"[0-9a-f]{32}$", name):
        path = PROGRESS / name
        pid, result = in_background(lambda tell: Service(Host(tell=tell), order).run(), path, _AT_ONCE)
        if result is None:
            module.exit_json(goes_on={"pid": pid, "path": str(path)})
    else:
        if not module.check_mode:
            outlive_connection()
        result = Service(Host(), order).run()
    if result["failed"]:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
