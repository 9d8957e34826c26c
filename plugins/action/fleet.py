# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of a run over many hosts: it plans, lets hosts through, and tells how each ended."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Optional

from ansible import constants as C
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpuops.inference.plugins.plugin_utils import _fleet
from ansible_collections.gpuops.inference.plugins.plugin_utils._ledger import Ledger
from ansible_collections.gpuops.inference.plugins.plugin_utils._told import told

display = Display()
ROOT = Path(__file__).parents[2]


class ActionModule(ActionBase):
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = self._task.args
        self._host = str(variables["inventory_hostname"])
        self._now = time.time()
        # Ansible removes this directory when the run ends.
        self._ledger = Ledger(Path(C.DEFAULT_LOCAL_TMP, "gpuops-fleet.jsonl"))
        do = {
            "guard": self._guard, "begin": self._begin, "look": self._look, "plan": self._plan, "gate": self._gate,
            "end": self._end, "afterwards": self._afterwards, "tell": self._tell, "wait": self._wait,
        }  # fmt: skip
        try:
            result.update(do[arguments["state"]](arguments, variables))
        except _fleet.FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": False, **result}

    def _guard(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        unread = _fleet.unread(variables, (ROOT / "playbooks/vars/main.yml").read_text(encoding="utf-8"))
        if unread:
            raise _fleet.FleetError(
                f"no playbook reads {', '.join(unread)}; playbooks/vars/main.yml lists what is read"
            )
        specs = {role: ROOT / f"roles/{role}/meta/argument_specs.yml" for role in arguments["roles"]}
        texts = {role: spec.read_text(encoding="utf-8") for role, spec in specs.items()}
        unread = _fleet.unread_by_roles(variables, texts)
        if unread:
            raise _fleet.FleetError(f"no one reads: {', '.join(unread)}")
        skipped = {"always", "tagged"} & set(variables.get("ansible_skip_tags") or ())
        if boolean(arguments["acts"]) and skipped:
            raise _fleet.FleetError(f"--skip-tags {skipped.pop()} hides from Ansible where a role ends: leave it out")
        hosts = len(variables["ansible_play_hosts_all"])
        meant = hosts == 1 or "ansible_limit" in variables or boolean(arguments["fleet"])
        if boolean(arguments["acts"]) and not meant:
            raise _fleet.FleetError(
                f"this would act on {hosts} hosts at once: name some with --limit, or pass -e gpuops_fleet=true if all "
                "of them are meant"
            )
        # ansible-core 2.21 lets all hosts share one dictionary of facts after a set_fact with run_once, unless each has
        # its own by then: one host's Python would be looked for on the others (ansible/ansible#87148).
        return {"ansible_facts": {"fleet_guarded": True}}

    def _begin(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        self._ledger.begin()
        self._ledger.add({"at": self._now, "state": "begin"})
        return {}

    def _look(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        outcome, failure = arguments.get("outcome") or "", arguments.get("failure") or {}
        seen = arguments.get("look") or {}
        for hook in () if outcome else arguments.get("hooks") or ():
            problem = _fleet.hook_problem(hook, lambda path: self._read_hook(path, variables))
            if problem:
                raise _fleet.FleetError(problem)
        cause = arguments.get("cause") or (_fleet.plain(failure.get("result") or seen) if outcome else "")
        self._note("look", outcome=outcome, serving=_fleet.serves(seen), cause=cause, up=seen.get("up"))
        if outcome == "skipped":
            display.display(told(f"{self._host}: {cause}: skipped", self._host))
        return {"gpuops_outcome": {"outcome": outcome, "cause": cause}} if outcome else {}

    def _read_hook(self, path: str, variables: dict[str, Any]) -> Any:
        # Where the role's hook.yml includes it from.
        return self._loader.load_from_file(os.path.join(variables.get("inventory_dir") or ".", path))

    def _plan(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        hosts = self._hosts(variables["ansible_play_hosts_all"], variables)
        plan = _fleet.make_plan(
            hosts,
            serial=arguments["serial"],
            max_failed=arguments["max_failed"],
            max_unavailable=arguments.get("max_unavailable"),
            canary=arguments.get("canary") or [],
            canary_hosts=arguments.get("canary_hosts") or [],
            soak=arguments.get("soak") or 0,
            deadline=arguments.get("deadline"),
            began=self._ledger.entries()[0]["at"],
        )
        for host in hosts:
            if host.outcome == "skipped" and host.name in plan.pending:
                entry = {"host": host.name, "outcome": "", "serving": host.serving, "cause": ""}
                self._ledger.add({"at": self._now, "state": "look", **entry})
                why = f"it is a canary and has served for {host.up:.0f} s only (gpuops_soak is {plan.soak:g})"
                display.display(f"{host.name}: {why}: not skipped, it soaks")
        self._ledger.add({"state": "plan", "plan": plan.as_dict()})
        return plan.as_dict()

    def _gate(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        plan, hosts = self._known(variables)
        why = _fleet.refusal(plan, hosts, self._host, variables["ansible_play_batch"], self._now)
        self._note("gate", go=not why, cause=why)
        if why:
            display.display(told(f"{self._host}: not begun: {why}", self._host))
            return {"go": False, "gpuops_outcome": {"outcome": "not_begun", "cause": why}}
        return {"go": True, "soak": plan.soak if self._host in plan.canaries else 0}

    def _end(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        failure = arguments.get("failure") or {}
        if failure and boolean(arguments.get("lost", False)):
            failure = {**failure, "result": {**failure["result"], "lost": True}}
        results = arguments.get("results") or {}
        return self._over(_fleet.ended(self._mine(variables).serving, boolean(arguments["frees"]), failure, results))

    def _afterwards(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        soaked = boolean(arguments.get("soaked", True))
        return self._over(_fleet.failed_afterwards(self._mine(variables), arguments["failure"], soaked))

    def _over(self, end: _fleet.Host) -> dict[str, Any]:
        self._note("end", outcome=end.outcome, serving=end.serving, cause=end.cause)
        return {"gpuops_outcome": {"outcome": end.outcome, "cause": end.cause}, "serving": end.serving}

    def _tell(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        end = _fleet.tell(*self._known(variables), self._now)
        if end["stopped"]:
            display.display(f"no further host was begun: {end['stopped']}")
        if end["resume"]:
            display.display(end["resume"])
        return end

    def _wait(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        if not self._task.check_mode:
            seconds = float(arguments["seconds"])
            until = time.strftime("%H:%M", time.localtime(self._now + seconds))
            line = f"{self._host}: canary, soaks for {seconds:g} s, until {until}"
            display.display(told(line, self._host, f"soaks until {until}"))
            time.sleep(seconds)
        return {}

    # --- the ledger

    def _note(self, state: str, **entry: Any) -> None:
        self._ledger.add({"at": self._now, "state": state, "host": self._host, **entry})

    def _hosts(self, names: list[str], variables: dict[str, Any]) -> list[_fleet.Host]:
        entries = [entry for entry in self._ledger.entries() if "host" in entry]
        return _fleet.hosts_of(names, entries, set(variables["ansible_play_hosts"]))

    def _known(self, variables: dict[str, Any]) -> tuple[_fleet.Plan, list[_fleet.Host]]:
        plan = next(_fleet.Plan.from_dict(entry["plan"]) for entry in self._ledger.entries() if "plan" in entry)
        return plan, self._hosts(list(plan.hosts), variables)

    def _mine(self, variables: dict[str, Any]) -> _fleet.Host:
        return next(host for host in self._known(variables)[1] if host.name == self._host)
