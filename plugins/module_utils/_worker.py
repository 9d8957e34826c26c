# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""The disposable worker: asks what may never answer, so that the module itself never hangs.

A stand-alone program. `_probe` hands this source to an interpreter (`python -I -c SOURCE`), which need not be the one
that runs the module: hence nothing of the collection is imported here, and the text stays ASCII.

Protocol: one JSON request a line on stdin, answers as JSON lines on stdout, ended by {"end": true}. Each answer is
written as soon as it is known, {"item": KEY, "value": VALUE}, so that what blocks does not take the earlier ones with
it: the first item that is missing is the one that blocks. The program ends at the end of its stdin.

    {"op": "hello"}                                      items "python" and "nvml" (version) or "no-nvml" (why not)
    {"op": "gpus"}                                       item "system", then one per GPU index; sizes in bytes
    {"op": "health"}                                     one item per GPU index: what a health check looks at, raw
    {"op": "minors", "directory": PATH}                  item PCI bus id: the driver's minor number, without NVML
    {"op": "shared", "pids": [...], "device": "MAJOR:MINOR", "names": [...]}
                                                         item PID: inodes of that device it maps, or has open by name
    {"op": "cmdlines", "pids": [...]}                    item PID: list of arguments
    {"op": "environs", "pids": [...], "names": [...]}    item PID: {name: value}, of the asked names alone
    {"op": "maps", "pids": [...], "prefixes": [...]}     item PID: list of mapped paths with one of the prefixes

The value is null for a process that is gone or may not be read.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

LIMIT = 1 << 20
"""Bytes of a command line or an environment that are read: a hostile one may be as large as the stack limit allows."""


# --- /proc files that take the target's memory lock -------------------------------------------------------------------


def read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        parts = []
        room = LIMIT
        while room > 0:
            part = file.read(min(room, 1 << 16))
            if not part:
                break
            parts.append(part)
            room -= len(part)
    return b"".join(parts)


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def cmdline(pid: int) -> list[str]:
    # setproctitle leaves the rest of the old argument area behind, as NULs or blanks.
    raw = read(pid, "cmdline").rstrip(b"\0 ")
    return [text(argument) for argument in raw.split(b"\0")] if raw else []


def environ(pid: int, names: list[str]) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in read(pid, "environ").split(b"\0"))
    return {text(name): text(value) for name, _sep, value in pairs if text(name) in names}


def maps(pid: int, prefixes: list[str]) -> list[str]:
    wanted = tuple(os.fsencode(prefix) for prefix in prefixes)
    with open(f"/proc/{pid}/maps", "rb") as file:
        columns = (line.rstrip(b"\n").split(None, 5) for line in file)
        return sorted({text(column[5]) for column in columns if len(column) == 6 and column[5].startswith(wanted)})


def shared(pid: int, device: str, names: set[str]) -> list[int]:
    major, minor = (int(number) for number in device.split(":"))
    with open(f"/proc/{pid}/maps", "rb") as file:
        columns = (line.split(None, 5) for line in file)
        found = {int(column[4]) for column in columns if column[3] == b"%02x:%02x" % (major, minor)}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            # In a container the same file may have another path, but not another name.
            if os.readlink(entry.path).removesuffix(" (deleted)").rpartition("/")[2] in names:
                status = os.stat(entry.path)
                if status.st_dev == os.makedev(major, minor):
                    found.add(status.st_ino)
        except OSError:
            # Closed under our eyes.
            continue
    return sorted(found)


def each_process(request: dict[str, Any]) -> Iterator[tuple[object, object]]:
    for pid in request["pids"]:
        value: object = None
        try:
            if request["op"] == "cmdlines":
                value = cmdline(pid)
            elif request["op"] == "environs":
                value = environ(pid, request["names"])
            elif request["op"] == "shared":
                value = shared(pid, request["device"], set(request["names"]))
            else:
                value = maps(pid, request["prefixes"])
        except OSError:
            value = None
        yield pid, value


def minors(directory: str) -> Iterator[tuple[object, object]]:
    # One directory a GPU, named by its bus id; the file takes a lock of the driver's.
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        try:
            with open(os.path.join(directory, name, "information"), "rb") as file:
                pairs = [text(line).partition(":") for line in file]
        except OSError:
            continue
        for key, _colon, value in pairs:
            if key.strip() == "Device Minor" and value.strip().isdigit():
                yield name, int(value)


# --- NVML -------------------------------------------------------------------------------------------------------------


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t, the layout of the _v2 and _v3 lists."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class ProcessInfoV1(ctypes.Structure):
    """nvmlProcessInfo_v1_t, the layout of the unversioned lists of drivers before R450."""

    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t, the first layout, which every driver that knows fabrics has."""

    _fields_ = [
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    ]


NOT_AVAILABLE = 2**64 - 1

UNCORRECTED, SINCE_LOAD, LIFETIME = 1, 0, 1
"""nvmlMemoryErrorType_t and nvmlEccCounterType_t."""

HEALTH = (
    ("ecc_since_load", "nvmlDeviceGetTotalEccErrors", (UNCORRECTED, SINCE_LOAD)),
    ("ecc_lifetime", "nvmlDeviceGetTotalEccErrors", (UNCORRECTED, LIFETIME)),
    ("remapped", "nvmlDeviceGetRemappedRows", ()),
    ("width", "nvmlDeviceGetCurrPcieLinkWidth", ()),
    ("max_width", "nvmlDeviceGetMaxPcieLinkWidth", ()),
    ("slowdown", "nvmlDeviceGetCurrentClocksEventReasons", ()),
)


class Nvml:
    """NVML by way of pynvml, every failing call turned into a name: one GPU's error must not hide the others."""

    def __init__(self) -> None:
        self.lib: Any = importlib.import_module("pynvml")
        if not hasattr(self.lib, "nvmlMemory_v2") or not hasattr(self.lib, "_nvmlGetFunctionPointer"):
            raise ImportError(f"{getattr(self.lib, '__file__', 'this pynvml')} is not of a current nvidia-ml-py")
        codes = vars(self.lib).items()
        self.mismatch = getattr(self.lib, "NVMLLibraryMismatchError", UnicodeDecodeError)
        self.names = {value: name[11:] for name, value in codes if name.startswith("NVML_ERROR_")}
        self.started = False

    def version(self) -> str:
        # Not importlib.metadata: importing that takes longer than reading eight GPUs.
        folder = os.path.dirname(self.lib.__file__)
        found = [entry.split("-") for entry in os.listdir(folder) if entry.startswith("nvidia_ml_py-")]
        return found[0][1].replace(".dist", "") if found else ""

    def call(self, errors: dict[str, str], key: str, name: str, *arguments: object) -> Any:
        """The function's value; None if it failed, and then the error's name is in errors[key]."""
        function = getattr(self.lib, name, None)
        if function is None:
            errors[key] = "FUNCTION_NOT_FOUND"
            return None
        try:
            value = function(*arguments)
        except self.lib.NVMLError as error:
            errors[key] = self.names.get(error.value, f"ERROR_{error.value}")
        except (self.mismatch, UnicodeDecodeError) as error:
            errors[key] = type(error).__name__
        else:
            return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        return None

    def has(self, symbol: str) -> bool:
        return self.call({}, "", "_nvmlGetFunctionPointer", symbol) is not None

    def read(self) -> Iterator[tuple[object, object]]:
        errors: dict[str, str] = {}
        if not self.started:
            self.call(errors, "error", "nvmlInit")
            self.started = not errors
        count = None if errors else self.call(errors, "error", "nvmlDeviceGetCount")
        driver = None if errors else self.call({}, "", "nvmlSystemGetDriverVersion")
        nvml = None if errors else self.call({}, "", "nvmlSystemGetNVMLVersion")
        yield "system", {"count": count, "driver": driver, "nvml": nvml, "error": errors.get("error")}
        for index in range(count or 0):
            yield index, self.gpu(index)

    def gpu(self, index: int) -> dict[str, object]:
        errors: dict[str, str] = {}
        handle = self.call(errors, "handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return {"errors": errors}
        pci = self.call(errors, "pci", "nvmlDeviceGetPciInfo", handle)
        bus_id = getattr(pci, "busId", "")
        mig = self.call(errors, "mig", "nvmlDeviceGetMigMode", handle)
        listed: list[dict[str, object]] = []
        for kind in ("Compute", "Graphics", "MPSCompute"):
            listed += self.processes(errors, kind, handle)
        return {
            "uuid": self.call(errors, "uuid", "nvmlDeviceGetUUID", handle),
            "name": self.call(errors, "name", "nvmlDeviceGetName", handle),
            "minor": self.call(errors, "minor", "nvmlDeviceGetMinorNumber", handle),
            "pci_bus_id": text(bus_id) if isinstance(bus_id, bytes) else bus_id,
            "persistence": self.call(errors, "persistence", "nvmlDeviceGetPersistenceMode", handle),
            "mig": mig[0] if mig else None,
            "memory": self.memory(errors, handle),
            "processes": listed,
            "mps": any(is_mps_server(entry["pid"]) for entry in listed),
            "errors": errors,
        }

    def health(self) -> Iterator[tuple[object, object]]:
        for index in range(self.call({}, "", "nvmlDeviceGetCount") or 0):
            errors: dict[str, str] = {}
            values: dict[str, object] = {"errors": errors}
            handle = self.call(errors, "handle", "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                values.update((key, self.call(errors, key, name, handle, *more)) for key, name, more in HEALTH)
                if errors.get("slowdown") == "FUNCTION_NOT_FOUND":
                    # Its name before R535.
                    del errors["slowdown"]
                    name = "nvmlDeviceGetCurrentClocksThrottleReasons"
                    values["slowdown"] = self.call(errors, "slowdown", name, handle)
                info = FabricInfo()
                if self.call(errors, "fabric", "nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is not None:
                    values["fabric"] = [info.state, info.status]
            yield index, values

    def memory(self, errors: dict[str, str], handle: object) -> Optional[dict[str, int]]:
        tried: dict[str, str] = {}
        info = self.call(tried, "memory", "nvmlDeviceGetMemoryInfo", handle, self.lib.nvmlMemory_v2)
        version = 2
        if tried.get("memory") in ("FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"):
            tried = {}
            info = self.call(tried, "memory", "nvmlDeviceGetMemoryInfo", handle)
            version = 1
        errors.update(tried)
        if info is None:
            return None
        reserved = info.reserved if version == 2 else 0
        return {"total": info.total, "reserved": reserved, "used": info.used, "free": info.free, "version": version}

    def processes(self, errors: dict[str, str], kind: str, handle: object) -> list[dict[str, object]]:
        """The driver's list of one kind, read by our own layouts.

        pynvml's wrappers size the list once (it grows meanwhile: INSUFFICIENT_SIZE), know no unversioned call, and
        some releases use the layout of R535.43 to R535.85 for all drivers. Those drivers are known by their symbols;
        they answer the _v3 call with longer records, and the _v2 call rightly.
        """
        long_records = self.has("nvmlDeviceGetConfComputeMemSizeInfo")
        long_records = long_records and not self.has("nvmlDeviceGetRunningProcessDetailList")
        for suffix in ("_v2", "") if long_records else ("_v3", "_v2", ""):
            symbol = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
            if not self.has(symbol):
                continue
            layout = ProcessInfo if suffix else ProcessInfoV1
            records, code = fetch(self.lib._nvmlGetFunctionPointer(symbol), handle, layout)
            if code:
                errors[kinds_name(kind)] = self.names.get(code, f"ERROR_{code}")
            return [
                {
                    "pid": record.pid,
                    "used": None if record.used == NOT_AVAILABLE else record.used,
                    "kind": kinds_name(kind),
                }
                for record in records
            ]
        errors[kinds_name(kind)] = "FUNCTION_NOT_FOUND"
        return []


def kinds_name(kind: str) -> str:
    return {"Compute": "compute", "Graphics": "graphics", "MPSCompute": "mps"}[kind]


INSUFFICIENT_SIZE = 7


def fetch(function: Any, handle: object, layout: Any) -> tuple[list[Any], int]:
    """All records of a list and NVML's error code. Processes may come while we look, so the size is asked again."""
    code = INSUFFICIENT_SIZE
    room = 0
    for _attempt in range(5):
        count = ctypes.c_uint(room)
        records = (layout * room)() if room else None
        code = function(handle, ctypes.byref(count), records)
        if code == 0:
            return list(records[: count.value]) if records else [], 0
        if code != INSUFFICIENT_SIZE:
            break
        room = max(count.value, room) * 2 + 5
    return [], code


def is_mps_server(pid: object) -> bool:
    # comm holds 15 characters of nvidia-cuda-mps-server; it takes no lock of the process.
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().startswith(b"nvidia-cuda-mps")
    except OSError:
        return False


# --- the conversation -------------------------------------------------------------------------------------------------


class Worker:
    def __init__(self) -> None:
        self.nvml: Optional[Nvml] = None

    def answer(self, request: dict[str, Any]) -> Iterator[tuple[object, object]]:
        if request["op"] == "hello":
            return self.hello()
        if request["op"] == "gpus":
            return self.nvml.read() if self.nvml else iter(())
        if request["op"] == "health":
            return self.nvml.health() if self.nvml else iter(())
        if request["op"] == "minors":
            return minors(request["directory"])
        return each_process(request)

    def hello(self) -> Iterator[tuple[object, object]]:
        yield "python", sys.version.split()[0]
        try:
            self.nvml = Nvml()
        except (ImportError, SyntaxError, AttributeError, OSError) as error:
            yield "no-nvml", f"{type(error).__name__}: {error}"
        else:
            yield "nvml", self.nvml.version()


def main() -> None:
    # Whatever else writes to stdout in this process (a warning, the driver's library) must not end up in the protocol.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin.buffer:
        for item, value in worker.answer(json.loads(line)):
            answers.write(json.dumps({"item": item, "value": value}) + "\n")
            answers.flush()
        answers.write('{"end": true}\n')
        answers.flush()


if __name__ == "__main__":
    main()
