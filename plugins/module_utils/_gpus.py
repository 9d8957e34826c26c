# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""What the driver says about the GPUs, as plain data: shapes, parsers, selection. Pure: nothing is read here.

The parsers take whatever a query process printed. A shape nobody expected becomes a problem in words, never an
exception: a host whose driver is half dead is exactly where this collection is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

NVML_SYSTEM = "system"
"""Key of the answer about the driver itself among the answers about single GPUs."""

NO_ANSWER = "NO_ANSWER"
"""Our own error name, beside NVML's: the driver was asked about this GPU and never answered."""

MOST_GPUS = 256
"""No host has more; a driver that counts more is not to be believed."""

SMI_APP_FIELDS = ("gpu_uuid", "pid", "used_memory")


@dataclass(frozen=True)
class Memory:
    """Frame buffer of one GPU in MiB. In `version` 1 `used` includes what the driver reserves, `reserved` is 0."""

    total: int
    reserved: int
    used: int
    free: int
    version: int


@dataclass(frozen=True)
class GpuProcess:
    """A process that the driver lists on a GPU. `used_mib` is None where the driver does not tell."""

    pid: int
    used_mib: Optional[int]
    kind: str  # compute | graphics | mps


@dataclass(frozen=True)
class Gpu:
    """One GPU. `error` is NVML's name (GPU_IS_LOST) of what keeps this GPU from being judged, None if nothing does."""

    index: int
    uuid: str = ""
    pci_bus_id: str = ""
    minor: Optional[int] = None
    name: str = ""
    memory: Optional[Memory] = None
    mig: Optional[bool] = None
    mps: bool = False
    persistence: Optional[bool] = None
    processes: tuple[GpuProcess, ...] = ()
    error: Optional[str] = None

    def as_dict(self) -> dict[str, Any]:
        """The GPU as it appears in module results: without its processes, which are reported apart."""
        shown = asdict(self)
        del shown["processes"]
        return shown

    @property
    def label(self) -> str:
        """How messages name this GPU."""
        return f"GPU {self.index} ({self.uuid})" if self.uuid else f"GPU {self.index}"


@dataclass(frozen=True)
class GpuReading:
    """One look at all GPUs. Where `usable` is False, what is in `gpus` must not be taken as the whole truth."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    nvml_version: str = ""
    source: str = "none"  # nvml | nvidia-smi | none
    problems: tuple[str, ...] = ()
    usable: bool = False


class GpuSelectionError(Exception):
    """The caller named a GPU that this host does not have."""


# --- what an error means to the person who has to act on it -----------------------------------------------------------

_MEANINGS = {
    "LIB_RM_VERSION_MISMATCH": (
        "driver and library versions differ",
        "running processes go on, but nothing new can start; reboot the host or reload the nvidia module",
    ),
    "LIBRARY_NOT_FOUND": (
        "the library libnvidia-ml.so.1 is not found",
        "install the NVIDIA driver's user-space libraries for this kernel module, then run ldconfig",
    ),
    "DRIVER_NOT_LOADED": (
        "the nvidia kernel module is not loaded",
        "run 'modprobe nvidia' on the host; if that fails, dmesg says why",
    ),
    "NO_PERMISSION": (
        "no right to ask the driver",
        "run as root (become: true), and check that the device cgroup lets this session open /dev/nvidia*",
    ),
    "GPU_IS_LOST": (
        "the GPU has fallen off the bus or cannot be reached",
        "look for Xid 79 in dmesg, then reset the GPU with nothing running on it, or reboot the host",
    ),
    "RESET_REQUIRED": (
        "the GPU wants a reset before it works again",
        "end what runs on it and run 'nvidia-smi --gpu-reset -i INDEX', or reboot the host",
    ),
    "GPU_NOT_FOUND": ("the driver does not find the GPU", "look for Xid lines in dmesg; reboot the host"),
    "IRQ_ISSUE": (
        "the kernel delivers no interrupts from the GPU",
        "check the BIOS and IOMMU settings, and dmesg; reboot the host",
    ),
    "INSUFFICIENT_POWER": ("external power cables are not attached properly", "check the host's hardware"),
    "CORRUPTED_INFOROM": ("the GPU's infoROM is corrupted", "have the GPU serviced"),
    "NOT_READY": ("the GPU is not ready yet", "wait for the fabric manager or a running reset, then try again"),
    "TIMEOUT": (
        "the driver gave up waiting for the GPU",
        "look for Xid lines in dmesg; reset the GPU or reboot the host",
    ),
    "IN_USE": ("the GPU is being reset or used by something exclusive", "wait for that to end, then try again"),
    "UNKNOWN": (
        "the driver reports an internal error",
        "look for Xid lines in dmesg; reset the GPU or reboot the host",
    ),
    "NOT_FOUND": (
        "no GPU was found",
        "check with 'lspci -d 10de:' that the GPUs are there, and dmesg that the driver took them",
    ),
    "FUNCTION_NOT_FOUND": ("the driver is too old for this question", "update the NVIDIA driver"),
    NO_ANSWER: (
        "the driver does not answer",
        "look for Xid lines in dmesg; a reset of the GPU or a reboot of the host is likely needed",
    ),
}


def explain(error: str) -> str:
    """What an NVML error name means and what to do about it, in one sentence."""
    what, todo = _MEANINGS.get(error, ("the driver reports an error", "look for Xid lines in dmesg"))
    return f"{what} ({error}): {todo}" if error == NO_ANSWER else f"{what} (NVML: {error}): {todo}"


def _complaints(gpus: Iterable[Gpu]) -> list[str]:
    """One sentence for each error, however many GPUs have it."""
    by_error: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.error:
            by_error.setdefault(gpu.error, []).append(gpu.label)
    return [f"{', '.join(labels)}: {explain(error)}" for error, labels in by_error.items()]


def excerpt(text: str, limit: int = 160) -> str:
    """Foreign text made fit for a message: one line, no control characters, not too long."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


# --- NVML, as the worker answers it -----------------------------------------------------------------------------------

# These say "this GPU has no such thing", which is knowledge; any other error means that we did not see.
_ABSENT = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")


def reading_from_nvml(answers: Mapping[object, object]) -> GpuReading:
    """The reading in the worker's answers: NVML_SYSTEM -> facts about the driver, index -> raw facts about one GPU.

    An index below the driver's count without an answer becomes a GPU with the error NO_ANSWER.
    """
    system = _mapping(answers.get(NVML_SYSTEM))
    driver, nvml = _text(system.get("driver")), _text(system.get("nvml"))
    error = system.get("error")
    count = _natural(system.get("count"))
    if error is not None or count is None or count > MOST_GPUS:
        problem = explain(_text(error)) if error is not None else explain(NO_ANSWER)
        return GpuReading(driver_version=driver, nvml_version=nvml, problems=(problem,))
    gpus = tuple(_gpu_from_nvml(index, answers.get(index)) for index in range(count))
    problems = _complaints(gpus)
    if not gpus:
        problems.append(explain("NOT_FOUND"))
    usable = bool(gpus) and all(gpu.error != NO_ANSWER for gpu in gpus)
    return GpuReading(gpus, driver, nvml, "nvml", tuple(problems), usable)


def _gpu_from_nvml(index: int, answer: object) -> Gpu:
    if not isinstance(answer, Mapping):
        return Gpu(index=index, error=NO_ANSWER)
    errors = {_text(key): _text(value) for key, value in _mapping(answer.get("errors")).items()}
    processes, mangled = _processes(answer.get("processes"))
    memory = _memory_from_nvml(answer.get("memory"))
    if memory is None and answer.get("memory") is not None:
        mangled = True
    mig = answer.get("mig")
    return Gpu(
        index=index,
        uuid=_text(answer.get("uuid")),
        pci_bus_id=_text(answer.get("pci_bus_id")),
        minor=_natural(answer.get("minor")),
        name=_text(answer.get("name")),
        memory=memory,
        mig=bool(mig) if isinstance(mig, int) else (False if errors.get("mig") in _ABSENT else None),
        mps=answer.get("mps") is True or any(process.kind == "mps" for process in processes),
        persistence=_flag(answer.get("persistence")),
        processes=processes,
        error=_fatal(errors) or ("UNKNOWN" if mangled else None),
    )


def _fatal(errors: Mapping[str, str]) -> Optional[str]:
    """The error that keeps a GPU from being judged. One without memory figures can be: by processes, descriptors."""
    for key in ("handle", "uuid", "compute"):
        if key in errors:
            return errors[key]
    for key in ("memory", "graphics", "mps"):
        if errors.get(key, _ABSENT[0]) not in _ABSENT:
            return errors[key]
    return None


def _memory_from_nvml(raw: object) -> Optional[Memory]:
    sizes = [_natural(_mapping(raw).get(key)) for key in ("total", "reserved", "used", "free", "version")]
    if None in sizes:
        return None
    total, reserved, used, free, version = (size or 0 for size in sizes)
    return Memory(total >> 20, reserved >> 20, used >> 20, free >> 20, version)


def _processes(raw: object) -> tuple[tuple[GpuProcess, ...], bool]:
    """One entry per pid (a process may be in two lists), and whether there were records that cannot be read."""
    found: dict[int, GpuProcess] = {}
    mangled = not isinstance(raw, (list, tuple, type(None)))
    for record in raw if isinstance(raw, (list, tuple)) else ():
        pid = _natural(_mapping(record).get("pid"))
        if pid is None:
            mangled = True
            continue
        used = _natural(_mapping(record).get("used"))
        entry = GpuProcess(pid, None if used is None else used >> 20, _text(_mapping(record).get("kind")))
        found[pid] = _merged(found[pid], entry) if pid in found else entry
    return tuple(found[pid] for pid in sorted(found)), mangled


_KINDS = ("graphics", "compute", "mps")


def _merged(one: GpuProcess, other: GpuProcess) -> GpuProcess:
    known = [entry.used_mib for entry in (one, other) if entry.used_mib is not None]
    kind = max(one.kind, other.kind, key=lambda kind: _KINDS.index(kind) if kind in _KINDS else -1)
    return GpuProcess(one.pid, max(known) if known else None, kind)


# --- nvidia-smi, where no Python on the host can speak to NVML --------------------------------------------------------

# The name comes last: it is the only value that could hold a comma.
_SMI_FIELDS = (
    "count",
    "index",
    "uuid",
    "pci.bus_id",
    "driver_version",
    "persistence_mode",
    "mig.mode.current",
    "memory.total",
    "memory.used",
    "memory.free",
    "memory.reserved",
    "name",
)
_SMI_ERRORS = {
    "[unknown error]": "UNKNOWN",
    "err!": "UNKNOWN",
    "[gpu requires reset]": "RESET_REQUIRED",
    "[gpu is lost]": "GPU_IS_LOST",
    "[insufficient permissions]": "NO_PERMISSION",
}
# nvidia-smi ends with NVML's error number where it fails.
SMI_EXIT_CODES = {
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    6: "NOT_FOUND",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    18: "LIB_RM_VERSION_MISMATCH",
}


def smi_gpu_fields(reserved: bool = True) -> tuple[str, ...]:
    """Columns to ask nvidia-smi for; drivers before R510 refuse the whole query for `memory.reserved`."""
    return tuple(field for field in _SMI_FIELDS if reserved or field != "memory.reserved")


def reading_from_smi(fields: Sequence[str], gpus_csv: str, apps_csv: Optional[str]) -> GpuReading:
    """The reading in nvidia-smi's `--format=csv,noheader,nounits` output; `apps_csv` is None if that query failed.

    nvidia-smi tells less than NVML: no minor number (so no map from device node to GPU) and no graphics contexts.
    """
    problems: list[str] = []
    rows = []
    for line in filter(str.strip, gpus_csv.splitlines()):
        values = [value.strip() for value in line.split(",", len(fields) - 1)]
        row = dict(zip(fields, values))
        if len(values) == len(fields) and _number(row["index"]) is not None:
            rows.append(row)
        else:
            problems.append(f"nvidia-smi: {excerpt(line)}")
    by_uuid, strange = _smi_processes(apps_csv or "")
    gpus = {gpu.index: gpu for gpu in (_gpu_from_smi(row, by_uuid.pop(row["uuid"], ())) for row in rows)}
    strange += [f"processes on an unknown GPU {excerpt(uuid)}" for uuid in by_uuid]
    if len(gpus) < len(rows):
        strange.append("the same index for several GPUs")
    count = max((_number(row["count"]) or 0 for row in rows), default=0)
    if not len(rows) <= count <= MOST_GPUS:
        strange.append(f"{len(rows)} GPUs, but a count of {count}")
        count = 0
    # A GPU that nvidia-smi leaves out is there all the same; without it seven of eight would look like all of them.
    for index in range(count):
        gpus.setdefault(index, Gpu(index=index, error="GPU_IS_LOST"))
    problems += _complaints(gpus.values())
    problems += [f"nvidia-smi gives what cannot be understood: {what}" for what in strange] if rows else []
    if not gpus:
        problems.append(explain("NOT_FOUND"))
    if apps_csv is None:
        problems.append("nvidia-smi does not list the processes on the GPUs")
    return GpuReading(
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        driver_version=excerpt(rows[0]["driver_version"]) if rows else "",
        source="nvidia-smi",
        problems=tuple(problems),
        usable=bool(gpus) and apps_csv is not None and not strange,
    )


def _gpu_from_smi(row: Mapping[str, str], processes: Iterable[GpuProcess]) -> Gpu:
    sizes = [_number(row.get(f"memory.{key}", "0")) for key in ("total", "reserved", "used", "free")]
    total, reserved, used, free = (size or 0 for size in sizes)
    version = 2 if "memory.reserved" in row else 1
    told = [row["uuid"], *(value for key, value in row.items() if key.startswith("memory."))]
    return Gpu(
        index=_number(row["index"]) or 0,
        uuid=excerpt(row["uuid"]),
        pci_bus_id=excerpt(row["pci.bus_id"]),
        name=excerpt(row["name"]),
        memory=None if None in sizes else Memory(total, reserved, used, free, version),
        mig=_switch(row["mig.mode.current"]) or False,
        persistence=_switch(row["persistence_mode"]),
        processes=tuple(processes),
        error=next((_SMI_ERRORS[value.lower()] for value in told if value.lower() in _SMI_ERRORS), None),
    )


def _smi_processes(text: str) -> tuple[dict[str, tuple[GpuProcess, ...]], list[str]]:
    """Processes by their GPU's UUID, and the lines that are no such thing."""
    found: dict[str, dict[int, GpuProcess]] = {}
    strange = []
    for line in filter(str.strip, text.splitlines()):
        values = [value.strip() for value in line.split(",")]
        pid = _number(values[1]) if len(values) == len(SMI_APP_FIELDS) else None
        if pid is not None:
            entry = GpuProcess(pid, _number(values[2]), "compute")
            listed = found.setdefault(values[0], {})
            listed[pid] = _merged(listed[pid], entry) if pid in listed else entry
        elif line.strip() != "No running processes found":
            strange.append(excerpt(line))
    return {uuid: tuple(listed[pid] for pid in sorted(listed)) for uuid, listed in found.items()}, strange


# --- what callers ask of a reading ------------------------------------------------------------------------------------


def bus_place(bus_id: str) -> str:
    """`00000000:21:00.0` of NVML, `0000:21:00.0` of /proc and `0000:21:00` of the kernel's log are the same place."""
    domain, _colon, rest = bus_id.lower().partition(".")[0].partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"


def spans(indexes: Iterable[int]) -> str:
    """GPU indexes as people write them: `0-3, 6`."""
    found: list[list[int]] = []
    for index in sorted(indexes):
        if found and index == found[-1][1] + 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def select_gpus(reading: GpuReading, wanted: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs that `wanted` names ('all', an NVML index, or a UUID), each once, by index.

    Raises GpuSelectionError, which lists what there is, for a name that fits no GPU.
    """
    names = [str(name).strip() for name in wanted]
    there = ", ".join(f"{gpu.index} = {gpu.uuid or gpu.error}" for gpu in reading.gpus) or "none"
    if not reading.gpus:
        raise GpuSelectionError("no GPU can be seen: " + ("; ".join(reading.problems) or "NVML lists none"))
    if not names:
        raise GpuSelectionError(f"no GPU is named; this host has: {there}")
    unknown = []
    chosen = set()
    for name in names:
        fits = {gpu for gpu in reading.gpus if name.lower() in ("all", str(gpu.index), gpu.uuid.lower() or None)}
        chosen |= fits
        if not fits:
            unknown.append(name)
    if unknown:
        listed = ", ".join(excerpt(repr(name), 60) for name in unknown)
        raise GpuSelectionError(f"no such GPU: {listed}; give 'all', an index or a UUID; this host has: {there}")
    return tuple(sorted(chosen, key=lambda gpu: gpu.index))


def classify_nvml_pids(
    processes: Iterable[GpuProcess], alive: Collection[int], attached: Collection[int]
) -> dict[str, set[int]]:
    """Which of the driver's pids may be believed, checked against /proc.

    `alive` holds the pids that exist, `attached` those with a descriptor of an NVIDIA node. A `confirmed` pid is both;
    a `ghost` does not exist; a `stranger` exists but holds no such descriptor: the driver names a wrong process (it
    does after a pid was reused, from another pid namespace, and in R535.43 to R535.85, which shift the records), and
    nothing may ever be done to it on the driver's word.
    """
    listed = {process.pid for process in processes}
    confirmed = {pid for pid in listed if pid in alive and pid in attached}
    ghost = {pid for pid in listed if pid not in alive}
    return {"confirmed": confirmed, "ghost": ghost, "stranger": listed - confirmed - ghost}


# --- reading values whose shape is not ours to decide -----------------------------------------------------------------


def _mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return excerpt(value) if isinstance(value, str) else ""


def _natural(value: object) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _flag(value: object) -> Optional[bool]:
    return bool(value) if isinstance(value, int) else None


def _number(text: str) -> Optional[int]:
    """A count as nvidia-smi prints it. Not int(): that takes '1_0', ' 7' and other scripts' digits as well."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _switch(text: str) -> Optional[bool]:
    return {"enabled": True, "disabled": False}.get(text.lower())
