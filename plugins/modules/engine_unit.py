#!/usr/bin/python
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_unit
short_description: Deploy the unit of an inference engine
version_added: 0.1.0
description:
  - Writes the unit, its environment file and the guard that the unit asks before it starts, and makes the engine's
    user, all in one round trip. This module belongs to the role P(gpuops.inference.engine#role).
  - Nothing is reloaded, started or enabled. M(gpuops.inference.inference_service) does that.
  - Secrets are never given to it. It says which of the files that hold them are not as they should be.
extends_documentation_fragment:
  - gpuops.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: partial
    details:
      - What is there and holds a key is not shown, and neither is what takes its place.
  idempotent:
    support: full
options:
  engine:
    description: One of C(engines) of the layout that the role P(gpuops.inference.layout#role) resolves.
    type: dict
    required: true
  guard:
    description: The program of the guard.
    type: str
    required: true
  secret_files:
    description: By path, the SHA-256 of what each file with secrets should hold. An empty file is written here.
    type: dict
    default: {}
  run:
    description:
      - What M(gpuops.inference.pivot_record) returned as C(run), where this is a step of that pivot. Its record then
        says so, and a pivot that another one took over from is refused.
    type: str
    default: ""
  gpus:
    description: The GPUs that pivot is about, as M(gpuops.inference.pivot_record) takes them.
    type: list
    elements: str
    default: [all]
seealso:
  - module: gpuops.inference.inference_service
  - module: gpuops.inference.pivot_record
author:
  - gpuops.inference contributors (@gpuops)
"""

EXAMPLES = r"""
- name: Deploy the unit of vLLM
  gpuops.inference.engine_unit:
    engine: "{{ layout_resolved.engines.vllm }}"
    guard: "{{ lookup('ansible.builtin.file', 'engine_guard.py', rstrip=false) }}"
  become: true
"""

RETURN = r"""
msg:
  description: What was written.
  returned: always
  type: str
files:
  description: The files that were written or removed, and the user if it was made.
  returned: always
  type: list
  elements: str
secret_files:
  description: The files of O(secret_files) that are not as they should be, for whoever knows the secrets to write.
  returned: always
  type: list
  elements: str
"""

import os
import pwd
import tempfile
from typing import Any, Optional

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpuops.inference.plugins.module_utils._deployment import (
    File,
    differing_secrets,
    files_of,
    read,
    shown_difference,
    useradd_arguments,
)
from ansible_collections.gpuops.inference.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.inference.plugins.module_utils._options import rights_faults
from ansible_collections.gpuops.inference.plugins.module_utils._pivot import PivotRecord
from ansible_collections.gpuops.inference.plugins.module_utils._record import RecordError, outlive_connection
from ansible_collections.gpuops.inference.plugins.module_utils._transaction import TransactionError
from ansible_collections.gpuops.inference.plugins.module_utils._units import Units


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "dict", "required": True},
            "guard": {"type": "str", "required": True},
            "secret_files": {"type": "dict", "default": {}, "no_log": True},
            "run": {"type": "str", "default": ""},
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
        },
        supports_check_mode=True,
    )
    if faults := [*rights_faults()]:
        module.fail_json(msg="; ".join(faults))
    run = module.params["run"]
    record = PivotRecord(Units(), [], 0.0, module.check_mode, module.params["gpus"], journal=Journal())
    outlive_connection()
    try:
        if run:
            record.phase(run, "drained", "")
        result = deploy(module)
        if run:
            record.phase(run, "started", "")
    except (RecordError, TransactionError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


def deploy(module: AnsibleModule) -> dict[str, Any]:
    """Make the host's files what they should be, and the user where there is none."""
    engine, secrets = module.params["engine"], module.params["secret_files"]
    made = _make_user(module, engine["user"])
    written, differences = [made] if made else [], []
    for file in files_of(engine, module.params["guard"], secrets):
        try:
            before = read(file.path)
            changed = _put(module, file, before)
        except OSError as error:
            do = "remove" if file.text is None else "write"
            module.fail_json(msg=f"cannot {do} {file.path}: {error.strerror}")
        if changed:
            written.append(file.path)
            differences.append(shown_difference(file, before))
    return {
        "changed": bool(written),
        "msg": f"{'would write' if module.check_mode else 'wrote'} {', '.join(written) or 'nothing'}",
        "files": written,
        "secret_files": differing_secrets(engine, secrets),
        "diff": differences,
    }


def _make_user(module: AnsibleModule, name: str) -> str:
    """Neither home nor shell are given, and a user that is there stays as it is: it may be more than this engine's."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        if not module.check_mode:
            useradd = module.get_bin_path("useradd", required=True)
            module.run_command([useradd, *useradd_arguments(name)], check_rc=True)
        return f"user {name}"
    return ""


def _put(module: AnsibleModule, file: File, before: Optional[str]) -> bool:
    """Whether the file was, or in check mode would be, another one."""
    if file.text is None:
        if before is not None and not module.check_mode:
            os.unlink(file.path)
        return before is not None
    changed = before != file.text
    if changed and not module.check_mode:
        directory, name = os.path.split(file.path)
        if not os.path.isdir(directory):
            module.fail_json(msg=f"{directory} is missing: prepare the host first, with gpu_host.yml")
        handle, scratch = tempfile.mkstemp(dir=directory, prefix=f".{name}.")
        module.add_cleanup_file(scratch)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(file.text)
        module.atomic_move(scratch, file.path)
    if before is None and module.check_mode:
        return changed
    attributes = module.load_file_common_arguments(
        {"owner": "root", "group": "root", "mode": f"{file.mode:04o}"}, path=file.path
    )
    return bool(module.set_fs_attributes_if_different(attributes, changed))


if __name__ == "__main__":
    main()
