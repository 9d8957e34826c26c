# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""From a layout as somebody wrote it to everything that is deployed, checked once and for all.

The layout says what is particular to a model and a machine. What follows from the engine (the shape of its
command line, which flags the layout's own keys already give) is in LAUNCHES.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import UnsupportedError

from ansible_collections.gpuops.inference.plugins.module_utils._engines import ENGINES, unknown_to, version_numbers
from ansible_collections.gpuops.inference.plugins.module_utils._masking import is_secret_name
from ansible_collections.gpuops.inference.plugins.module_utils._paths import CONFIG, SYSTEM_UNITS
from ansible_collections.gpuops.inference.plugins.plugin_utils._flags import flags_to_argv
from ansible_collections.gpuops.inference.plugins.plugin_utils._systemd import (
    environment_file,
    exec_start,
    exec_word,
)


class LayoutError(ValueError):
    """The layout cannot be deployed as written; the text lists everything that is wrong with it."""


@dataclass(frozen=True)
class Launch:
    """How an engine is started, and what of it the layout's own keys decide."""

    program: tuple[str, ...]
    """Words that the engine's parser does not see; the first is relative to the virtual environment."""
    before_model: tuple[str, ...]
    """What stands before the model's path."""
    taken: Mapping[str, str]
    """Flags that stand for keys of the layout, and the keys."""
    parallel: tuple[str, ...]
    """Flags whose product is the number of GPUs."""
    replicas: tuple[str, ...]
    """Flags that multiply or share them further: with one of these the product says nothing."""
    model_flags: tuple[str, ...]
    """Flags that name further model directories."""
    configured: Mapping[str, str]
    """Secrets that are no variable to this engine but an option, and so written where its --config looks for it."""
    deaf_while_loading: bool
    """Loses one SIGTERM that arrives while it loads its model; a second ends it (vLLM 0.15 to 0.33)."""


_SERVING = {"host": "host", "port": "port", "served-model-name": "model.served_name"}

LAUNCHES: dict[str, Launch] = {
    "vllm": Launch(
        program=("bin/vllm", "serve"),
        before_model=(),
        taken={**_SERVING, "model": "model.path"},
        parallel=("tensor-parallel-size", "pipeline-parallel-size"),
        replicas=("data-parallel-size",),
        model_flags=(),
        configured={},
        deaf_while_loading=True,
    ),
    "sglang": Launch(
        program=("bin/python", "-m", "sglang.launch_server"),
        before_model=("--model-path",),
        taken={**_SERVING, "model-path": "model.path", "model": "model.path", "config": "flags, or layout_secrets"},
        parallel=("tp-size", "pp-size"),
        replicas=("dp-size", "nnodes"),
        model_flags=("speculative-draft-model-path",),
        configured={"SGLANG_API_KEY": "api-key", "SGLANG_ADMIN_API_KEY": "admin-api-key"},
        deaf_while_loading=False,
    ),
}

SHUTDOWN_MARGIN = 30
"""Seconds between an engine's own shutdown timeout and systemd's: what tearing down 8 workers may take."""

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

_INSTANCE = re.compile(r"[A-Za-z0-9_]+")
_LAYOUT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.-]*\.service")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_PATH = re.compile(r"(/[^/\x00-\x1f\x7f\"'\\]+)+")
_DEVICE = re.compile(r"((char|block)-[A-Za-z0-9_.*?-]+|/dev/[A-Za-z0-9_./-]+)( r?w?m?)?")


def _engine_spec(name: str) -> dict[str, Any]:
    return {
        "version": {"type": "str", "default": ""},
        "unit": {"type": "str"},
        "user": {"type": "str", "default": name},
        "venv": {"type": "str", "default": f"/opt/{name}"},
        "host": {"type": "str", "default": "127.0.0.1"},
        "port": {"type": "int", "default": ENGINES[name].default_port},
        "flags": {"type": "dict", "default": {}},
        "environment": {"type": "dict", "default": {}},
        "stop_timeout": {"type": "int", "default": 60},
        "restart": {"type": "str", "default": "always", "choices": ["no", "on-failure", "always"]},
    }


SPEC: dict[str, Any] = {
    "name": {"type": "str"},
    "description": {"type": "str", "default": ""},
    "model": {
        "type": "dict",
        "required": True,
        "options": {
            "path": {"type": "str", "required": True},
            "served_name": {"type": "str", "required": True},
        },
    },
    "gpus": {
        "type": "dict",
        "required": True,
        "options": {
            "count": {"type": "int", "required": True},
            "memory_mib": {"type": "int", "required": True},
            "indexes": {"type": "list", "elements": "int", "default": []},
        },
    },
    "concurrency": {"type": "int", "default": 1},
    "host": {
        "type": "dict",
        "apply_defaults": True,
        "options": {
            "memory_mib": {"type": "int", "default": 0},
            "shm_mib": {"type": "int", "default": 0},
            "cache_mib": {"type": "int", "default": 0},
        },
    },
    "environment": {"type": "dict", "default": {}},
    "devices": {"type": "list", "elements": "str", "default": ["char-nvidia* rw"]},
    "engines": {
        "type": "dict",
        "required": True,
        "options": {name: {"type": "dict", "required": True, "options": _engine_spec(name)} for name in LAUNCHES},
    },
}


def resolve(
    layout: Mapping[str, Any],
    overrides: Mapping[str, Any],
    secrets: Mapping[str, Mapping[str, str]],
    name: str,
    eagle3: bool = False,
    instance: str = "",
) -> dict[str, Any]:
    """Merge, check and complete a layout. Nothing of a secret but its name is in the result.

    LayoutError lists every fault found, each with what to write instead.
    """
    base, patch = _plain(layout), _plain(overrides)
    speculation = merge(base.pop("eagle3", None) or {}, patch.pop("eagle3", None) or {})
    if eagle3:
        if not speculation:
            raise LayoutError(f"the layout {name} has no section `eagle3`, so layout_eagle3 cannot be true")
        base = merge(base, speculation)
    base = merge(
        base, _instance(name, merge(base.pop("instances", None) or {}, patch.pop("instances", None) or {}), instance)
    )
    written = merge(base, patch)
    faults = unknown_keys(written)
    checked = ArgumentSpecValidator(SPEC).validate(_without_nulls(written, SPEC))
    faults += [str(error) for error in checked.errors.errors if not isinstance(error, UnsupportedError)]
    if faults:
        raise LayoutError(_story(name, faults))
    resolved: dict[str, Any] = checked.validated_parameters
    common = merge(_gpu_environment(resolved["gpus"]["indexes"]), resolved.pop("environment"))
    for engine_name, engine in resolved["engines"].items():
        engine["unit"] = engine["unit"] or f"{engine_name}{instance and '-' + instance}.service"
        engine["flags"] = {flag: value for flag, value in engine["flags"].items() if value is not None}
        merged = merge(common, engine["environment"])
        engine["environment"] = {key: value for key, value in merged.items() if value is not None}
    if not _LAYOUT.fullmatch(name):
        faults.append(f"name: {name!r} is no name for a layout: use letters, digits, `_`, `.` and `-`")
    faults += _faults(resolved, secrets)
    for engine_name, engine in resolved["engines"].items():
        faults += [f"engines.{engine_name}.{fault}" for fault in _fit_version(engine_name, engine)]
    if faults:
        raise LayoutError(_story(name, faults))
    devices = resolved.pop("devices")
    for engine_name, engine in resolved["engines"].items():
        _complete(engine_name, engine, resolved["model"], secrets.get(engine_name) or {})
        engine["devices"] = devices
    return {**resolved, "name": name}


def _instance(name: str, instances: Mapping[str, Any], chosen: str) -> Mapping[str, Any]:
    """The section of the instance that was asked for: one part of a host that several of them share."""
    there = ", ".join(sorted(map(str, instances))) or "none"
    if chosen and chosen not in instances:
        raise LayoutError(f"the layout {name} has no instance {chosen!r} (it has: {there})")
    if instances and not chosen:
        raise LayoutError(
            f"the layout {name} is deployed in parts ({there}), one at a time: name one with layout_instance "
            "(gpuops_instance for the playbooks)"
        )
    section = instances.get(chosen) or {}
    if not isinstance(section, Mapping) or (chosen and not _INSTANCE.fullmatch(chosen)):
        raise LayoutError(f"the layout {name}: instances.{chosen} must be a mapping under a name of letters and digits")
    return section


def _gpu_environment(indexes: list[int]) -> dict[str, str]:
    if not indexes:
        return {}
    # CUDA's own order is by speed; in this one an index means the same card as in nvidia-smi.
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE_DEVICES: ",".join(map(str, indexes))}


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """base with patch on top: mappings are merged, everything else is replaced, by None too."""
    merged = dict(base)
    for key, value in patch.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _plain(value: Any) -> Any:
    # Ansible hands in lazy containers that hold its templating engine, which the validator would copy with them.
    if isinstance(value, Mapping):
        return {str(key): _plain(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    return value


def _without_nulls(written: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    # A key of ours that is null is a key not written. In flags and environments null still has a job to do.
    kept = {key: value for key, value in written.items() if value is not None}
    return {
        key: _without_nulls(value, spec[key]["options"])
        if isinstance(value, Mapping) and "options" in spec.get(key, {})
        else value
        for key, value in kept.items()
    }


def unknown(name: str, known: Iterable[str]) -> str:
    """Say that a name is unknown, and which was most likely meant."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"{name}: unknown" + (f"; did you mean {near[0]}?" if near else "")


def unknown_keys(written: Any, spec: Optional[Mapping[str, Any]] = None, path: str = "") -> list[str]:
    """Every key of a layout that nobody reads."""
    if not isinstance(written, Mapping):
        return []
    options = SPEC if spec is None else spec
    found: list[str] = []
    for key, value in written.items():
        if key not in options:
            found.append(path + unknown(str(key), options))
        elif "options" in options[key]:
            found += unknown_keys(value, options[key]["options"], f"{path}{key}.")
    return found


def _story(name: str, faults: list[str]) -> str:
    return f"the layout {name} cannot be used as written:\n" + "\n".join(f"- {fault}" for fault in faults)


def _faults(layout: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> list[str]:
    model, gpus = layout["model"], layout["gpus"]
    faults = _path_faults("model.path", model["path"])
    indexes = gpus["indexes"]
    if gpus["count"] < 1:
        faults.append("gpus.count: at least one GPU is needed")
    if indexes and (len(set(indexes)) != gpus["count"] or min(indexes) < 0):
        faults.append(f"gpus.indexes: {indexes} are not {gpus['count']} different GPUs (gpus.count)")
    if layout["concurrency"] < 1:
        faults.append("concurrency: at least one request")
    faults += [
        f"devices: {device!r} is no device that systemd can allow"
        for device in layout["devices"]
        if not _DEVICE.fullmatch(device)
    ]
    faults += [unknown(f"layout_secrets.{name}", LAUNCHES) for name in secrets if name not in LAUNCHES]
    units = [engine["unit"] for engine in layout["engines"].values()]
    if len(set(units)) < len(units):
        faults.append(f"engines: all have the unit {units[0]}; each needs its own")
    for name, engine in layout["engines"].items():
        faults += [f"engines.{name}.{fault}" for fault in _engine_faults(name, engine, gpus)]
        faults += _secret_faults(name, secrets.get(name) or {})
    return faults


def _engine_faults(name: str, engine: Mapping[str, Any], gpus: Mapping[str, Any]) -> list[str]:
    launch, flags = LAUNCHES[name], engine["flags"]
    faults = _path_faults("venv", engine["venv"]) + _environment_faults("environment", engine["environment"])
    if not _UNIT.fullmatch(engine["unit"]):
        faults.append(f"unit: {engine['unit']!r} is no name for a service unit")
    if not _USER.fullmatch(engine["user"]):
        faults.append(f"user: {engine['user']!r} is no name for a system user")
    if engine["user"] == "root":
        faults.append("user: an orphan of the engine may signal its parent, which may be pid 1; not as root")
    if not 1024 <= engine["port"] <= 65535:
        faults.append(f"port: {engine['port']} is not between 1024 and 65535, all that a user may bind")
    for flag in flags:
        if flag in launch.taken:
            faults.append(f"flags.{flag}: the layout's {launch.taken[flag]} already says this")
        elif is_secret_name(str(flag)):
            keys = ", ".join((*ENGINES[name].key_variables, *launch.configured))
            faults.append(
                f"flags.{flag}: everybody on the host can read a command line; keys for clients ({keys}) go into "
                "layout_secrets"
            )
    try:
        flags_to_argv(flags)
    except ValueError as error:
        faults.append(f"flags: {error}")
    visible = str(engine["environment"].get(VISIBLE_DEVICES, "")).split(",")
    if gpus["indexes"] and visible != [*map(str, gpus["indexes"])]:
        faults.append(f"environment.{VISIBLE_DEVICES}: gpus.indexes already says this")
    elif visible != [""] and len(visible) != gpus["count"]:
        faults.append(f"environment.{VISIBLE_DEVICES}: names {len(visible)} GPUs, but gpus.count is {gpus['count']}")
    faults += _number_faults(name, engine, gpus["count"])
    return faults


def _fit_version(name: str, engine: dict[str, Any]) -> list[str]:
    """Write flags and variables as the version of the engine knows them; what it does not know is told."""
    version = engine["version"]
    if not version:
        return []
    if not version_numbers(version):
        return [f"version: {version!r} is no version; write it as in {name} --version, in quotes"]
    faults = []
    for section in ("flags", "environment"):
        fitting = {}
        for key, value in engine[section].items():
            change = unknown_to(name, version, key)
            if change is None or (change.other and change.other not in engine[section]):
                fitting[change.other if change else key] = value
            elif change.instead or change.other:
                span = f"since {change.since}" if change.since else f"until {change.until}"
                faults.append(
                    f"{section}.{key}: {name} {version} does not know it (only {span}); "
                    f"{change.instead or f'{change.other} is there as well'}"
                )
        engine[section] = fitting
    return faults


def _number_faults(name: str, engine: Mapping[str, Any], gpus: int) -> list[str]:
    launch, shutdown_flag, flags = LAUNCHES[name], ENGINES[name].shutdown_flag, engine["flags"]
    try:
        used = 1
        for flag in launch.parallel:
            used *= int(flags.get(flag, 1))
        shutdown = int(flags.get(shutdown_flag, 0)) if shutdown_flag else 0
    except (TypeError, ValueError):
        numbers = [flag for flag in (*launch.parallel, shutdown_flag) if flag in flags]
        return [f"flags: {', '.join(map(str, numbers))} must be whole numbers"]
    faults = []
    if used != gpus and not any(flag in flags for flag in launch.replicas):
        faults.append(f"flags: {' x '.join(launch.parallel)} is {used}, but gpus.count is {gpus}")
    if engine["stop_timeout"] < shutdown + SHUTDOWN_MARGIN:
        faults.append(
            f"stop_timeout: {engine['stop_timeout']} s would kill the engine while it drains; "
            f"{shutdown_flag or 'tearing it down'} needs at least {shutdown + SHUTDOWN_MARGIN}"
        )
    return faults


def _path_faults(key: str, path: str) -> list[str]:
    if not _PATH.fullmatch(path) or "/.." in path or "/./" in path:
        return [f"{key}: {path!r} is not an absolute path that systemd takes (no `.`, `..`, quotes, backslashes)"]
    try:
        exec_word(path)
    except ValueError as error:
        return [f"{key}: {error}"]
    return []


def _environment_faults(key: str, environment: Mapping[str, Any]) -> list[str]:
    faults = []
    for name, value in environment.items():
        if name == "VLLM_PROCESS_NAME_PREFIX":
            faults.append(f"{key}.{name}: a drain knows vLLM's workers by their usual titles")
        elif is_secret_name(str(name)):
            faults.append(f"{key}.{name}: everybody on the host can read this file; use layout_secrets")
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            faults.append(f"{key}.{name}: write the value as a string (yes and no differ between programs)")
        else:
            faults += _fault_of(f"{key}: ", environment_file, {str(name): str(value)})
    return faults


def _secret_faults(name: str, secrets: Mapping[str, Any]) -> list[str]:
    faults = []
    keys = {*ENGINES[name].key_variables, *LAUNCHES[name].configured}
    for variable, value in secrets.items():
        if not isinstance(value, str):
            faults.append(f"layout_secrets.{name}.{variable}: must be a string")
        elif "\n" in value:
            # systemd would carry it. But no HTTP header can, so the engine would start and refuse every request.
            faults.append(f"layout_secrets.{name}.{variable}: has a line break; one read from a file wants `| trim`")
        elif variable in keys and not value.isascii():
            faults.append(f"layout_secrets.{name}.{variable}: clients send it in an HTTP header: ASCII alone")
        elif variable in LAUNCHES[name].configured and not re.fullmatch(r"[^\s\x00-\x1f\x7f-][^\x00-\x1f\x7f]*", value):
            # The engine makes words of a command line of it, where this would be the next option.
            faults.append(
                f"layout_secrets.{name}.{variable}: is empty, begins with a dash, or holds control characters"
            )
        else:
            faults += _fault_of(f"layout_secrets.{name}: ", environment_file, {str(variable): value})
    return faults


def _fault_of(prefix: str, check: Any, value: Any) -> list[str]:
    try:
        check(value)
    except ValueError as error:
        return [f"{prefix}{error}"]
    return []


def _complete(
    name: str,
    engine: dict[str, Any],
    model: Mapping[str, str],
    secrets: Mapping[str, str],
) -> None:
    launch = LAUNCHES[name]
    stem = engine["unit"].removesuffix(".service")
    flags = engine["flags"]
    cache = f"/var/cache/{stem}"
    state = f"/var/lib/{stem}"
    own = _own_environment(engine["venv"], state, cache)
    environment = merge(own, engine["environment"])
    serving = {"host": engine["host"], "port": engine["port"], "served-model-name": model["served_name"]}
    program, *words = launch.program
    arguments = [*launch.before_model, model["path"], *flags_to_argv(serving), *flags_to_argv(flags)]
    configuration = {option: variable for variable, option in launch.configured.items() if variable in secrets}
    config_path = str(CONFIG / f"{engine['unit']}.yaml")
    if configuration:
        arguments += ["--config", config_path]
    engine.update(
        engine=name,
        python=f"{engine['venv']}/bin/python",
        argv=[f"{engine['venv']}/{program}", *words, *arguments],
        arguments=arguments,
        models=[model["path"], *(str(flags[flag]) for flag in launch.model_flags if flag in flags)],
        environment={key: str(value) for key, value in environment.items()},
        secrets=sorted(secrets),
        unit_path=str(SYSTEM_UNITS / engine["unit"]),
        environment_path=str(CONFIG / f"{engine['unit']}.env"),
        configuration=configuration,
        configuration_path=config_path,
        secrets_path=str(CONFIG / f"{engine['unit']}.secrets"),
        state_directory=state,
        cache_directory=cache,
        deaf_while_loading=launch.deaf_while_loading,
    )
    engine["exec_start"] = exec_start(engine["argv"])
    engine["environment_text"] = environment_file(engine["environment"])


_SYSTEM_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _own_environment(venv: str, state: str, cache: str) -> dict[str, str]:
    return {
        "PATH": f"{venv}/bin:{_SYSTEM_PATH}",
        # Not what the user's entry says: an existing user may live where the unit cannot write.
        "HOME": state,
        # Compiled kernels outlive a restart only outside the unit's private /tmp.
        "XDG_CACHE_HOME": cache,
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "FLASHINFER_WORKSPACE_BASE": cache,
        "CUDA_CACHE_PATH": f"{cache}/cuda",
    }
