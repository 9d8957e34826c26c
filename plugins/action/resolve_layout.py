# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that the role layout does, in one task: a task costs more than what is done in it, and hosts are mostly alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from ansible import constants as C
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.template import trust_as_template

from ansible_collections.gpuops.inference.plugins.filter.did_you_mean import did_you_mean
from ansible_collections.gpuops.inference.plugins.module_utils._paths import GUARD
from ansible_collections.gpuops.inference.plugins.plugin_utils._once import once
from ansible_collections.gpuops.inference.plugins.plugin_utils._secrets import digests

OPTIONS = ("source", "overrides", "eagle3", "instance", "secrets")
ROLES = Path(__file__).parents[2] / "roles"
TEMPLATE = ROLES / "engine/templates/engine.service.j2"
GUARD_TEXT = ROLES / "engine/files/engine_guard.py"

# What may say something else on each host: templates and what is in a vault.
_VARIES = re.compile(r"\{[{%#]|!vault|!unsafe|\$ANSIBLE_VAULT")


class ActionModule(ActionBase):
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        known = [f"layout_{option}" for option in (*OPTIONS, "resolved")]
        unread = did_you_mean([name for name in variables if name.startswith("layout_")], known)
        if unread:
            raise AnsibleActionFail(f"no one reads: {', '.join(unread)}")
        arguments = {"overrides": {}, "eagle3": False, "instance": "", "secrets": {}, **self._task.args}
        source = arguments["source"]
        written, path = source, None
        if isinstance(source, Mapping):
            name = str(source.get("name") or "inline")
        else:
            name = str(source)
            path = find(name, [*beside(variables), ROLES / "layout/files"])
            try:
                written = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise AnsibleActionFail(f"the layout {path} cannot be read: {error}") from None
            if _VARIES.search(written):
                written, path = self._read(path), None
        asked = {
            "name": name,
            "overrides": mapping("layout_overrides", arguments["overrides"]),
            "secrets": {
                engine: mapping(f"{engine}_secrets", secrets)
                for engine, secrets in mapping("layout_secrets", arguments["secrets"]).items()
            },
            "eagle3": boolean(arguments["eagle3"]),
            "instance": str(arguments["instance"] or ""),
        }

        def make() -> dict[str, Any]:
            return self._resolve(self._read(path) if path else written, asked)

        result.update(once(Path(C.DEFAULT_LOCAL_TMP, "gpuops-layouts"), [written, asked], make))
        return {"changed": False, **result}

    def _read(self, path: Path) -> Any:
        return self._templar.template(self._loader.load_from_file(str(path), cache="none", trusted_as_template=True))

    def _resolve(self, written: Any, asked: dict[str, Any]) -> dict[str, Any]:
        # Not for those who find their answer made.
        from ansible_collections.gpuops.inference.plugins.plugin_utils import _layout

        if not isinstance(written, Mapping):
            raise AnsibleActionFail(f"the layout {asked['name']} is not a mapping")
        try:
            layout = _layout.resolve(written, **asked)
        except _layout.LayoutError as error:
            raise AnsibleActionFail(str(error)) from None
        template = trust_as_template(TEMPLATE.read_text(encoding="utf-8"))
        for engine in layout["engines"].values():
            known = {"layout": layout, "engine": engine, "guard": str(GUARD)}
            engine["unit_text"] = self._templar.copy_with_new_env(available_variables=known).template(template)
            texts = {engine["unit_path"]: engine["unit_text"], engine["environment_path"]: engine["environment_text"]}
            engine["digests"] = digests({**texts, str(GUARD): GUARD_TEXT.read_text(encoding="utf-8")})
        return layout


def beside(variables: Mapping[str, Any]) -> Iterator[Path]:
    """Where a user keeps layouts: beside the inventory, if it is a file."""
    if variables.get("inventory_dir"):
        yield Path(variables["inventory_dir"], "layouts")


def find(name: str, directories: list[Path]) -> Path:
    """The file of a layout; the first directory that has one counts."""
    there = {path.stem: path for directory in reversed(directories) for path in directory.glob("*.yml")}
    if name not in there:
        places = " or ".join(str(directory) for directory in directories if directory.is_dir())
        raise AnsibleActionFail(f"there is no layout {name} in {places}; known are {', '.join(sorted(there))}")
    return there[name]


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """The value, which must be a mapping; nothing is an empty one."""
    if not isinstance(value or {}, Mapping):
        raise AnsibleActionFail(f"{name} must be a mapping (gpuops_{name} for the playbooks)")
    return value or {}
