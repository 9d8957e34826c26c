# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Whether GPUs that are free are also fit to be used: what NVML and the kernel's log say of their hardware.

A check that was asked for passes only on an answer. What a card does not have (NVML: NOT_SUPPORTED) is told as not
applicable; any other error is a finding of its own. Judging is pure; only the kernel's log is read here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu, bus_place, excerpt, explain, spans
from ansible_collections.gpuops.inference.plugins.module_utils._units import Unit, UnitsError, run_command

CHECKS = ("ecc", "remap", "pcie", "slowdown", "fabric", "xid")

FAULT = "fault"
UNREADABLE = "unreadable"
NOTE = "note"
NOT_APPLICABLE = "not applicable"

FABRIC_UNIT = "nvidia-fabricmanager.service"
_FABRIC_COMPLETED = 3

_SLOWDOWNS = {0x08: "hardware slowdown", 0x40: "thermal slowdown", 0x80: "power brake"}
"""nvmlClocksEventReasonHw...: the board slows itself down. What software or a power limit does is no fault."""

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""A program's own fault, or its end by a signal: NVIDIA's device plugin for Kubernetes does not count them either."""
TOLD_ELSEWHERE_XIDS = frozenset({63})
"""A row was remapped: whether it still wants a reset is the check `remap`'s to say."""
_XIDS = {
    48: "an uncorrectable memory error",
    62: "the GPU's micro-controller halted",
    64: "a bad row could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    94: "an uncorrectable memory error that hit one program",
    95: "an uncorrectable memory error that hit everything on the GPU",
    119: "the GPU's system processor does not answer",
    120: "an error of the GPU's system processor",
    140: "uncorrectable errors that were not recovered",
    154: "the driver asks for a recovery",
}
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:]+)[^)]*\): (\d+)")


@dataclass(frozen=True)
class Finding:
    """What one check found on some GPUs ([] for the host): a fault, an unreadable value, a note, or not applicable."""

    check: str
    kind: str
    gpus: tuple[int, ...]
    text: str

    @property
    def fails(self) -> bool:
        return self.kind in (FAULT, UNREADABLE)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gpus": list(self.gpus)}

    @property
    def told(self) -> str:
        where = f"GPU{'s' * (len(self.gpus) > 1)} {spans(self.gpus)}: " if self.gpus else ""
        return f"{where}{self.text}"

    def __str__(self) -> str:
        return f"health ({self.check}): {self.told}"


@dataclass(frozen=True)
class Fabric:
    """What the host has of an NVLink fabric: switches, and whether their manager runs."""

    switches: bool
    manager_runs: bool


@dataclass(frozen=True)
class KernelLog:
    """Lines of the kernel's log, and why it is not all that was asked for ('' if it is)."""

    lines: tuple[str, ...]
    incomplete: str = ""


def find_health(
    ask: Callable[[], Mapping[int, Mapping[str, Any]]],
    gpus: Sequence[Gpu],
    reading: Iterable[Gpu],
    loaded: Mapping[str, Unit],
    asked: Sequence[str],
    xid_window: float,
) -> tuple[Finding, ...]:
    """What the checks that were asked for find about `gpus`, some of a reading's. Without checks NVML is not asked."""
    checks = CHECKS if "all" in asked else asked
    if not checks:
        return ()
    fabric = Fabric(nvswitches(), any(name == FABRIC_UNIT and unit.running for name, unit in loaded.items()))
    others = [gpu for gpu in reading if gpu not in gpus]
    log = kernel_log(xid_window) if "xid" in checks else None
    return judge_health(checks, gpus, others, ask(), fabric, log)


def judge_health(
    checks: Iterable[str],
    gpus: Sequence[Gpu],
    others: Sequence[Gpu],
    answers: Mapping[int, Mapping[str, Any]],
    fabric: Fabric,
    log: Optional[KernelLog],
) -> tuple[Finding, ...]:
    """All findings of the checks about `gpus`, one per text; `others` are the host's GPUs that nobody asked about.

    log is needed for the check `xid` alone.
    """
    found: dict[tuple[str, str, str], list[int]] = {}
    wanted = [check for check in CHECKS if check in checks]
    for gpu in gpus:
        answer = answers.get(gpu.index)
        for check in wanted:
            if check == "xid":
                continue
            told = (
                [(UNREADABLE, "NVML does not tell; nothing is called healthy without it")]
                if not isinstance(answer, Mapping)
                else _BY_GPU[check](answer, fabric)
            )
            for kind, text in told:
                found.setdefault((check, kind, text), []).append(gpu.index)
    findings = [Finding(check, kind, tuple(indexes), text) for (check, kind, text), indexes in found.items()]
    if "fabric" in wanted and fabric.switches and not fabric.manager_runs:
        text = f"NVSwitches without {FABRIC_UNIT}: CUDA does not start (error 802); start it while no GPU is in use"
        findings.append(Finding("fabric", FAULT, (), text))
    if "xid" in wanted and log is not None:
        findings += _xid_findings(gpus, others, log)
    return tuple(findings)


Told = Iterator[tuple[str, str]]


def _value(answer: Mapping[str, Any], key: str) -> tuple[Any, list[tuple[str, str]]]:
    """The value, or None and what is to be told instead."""
    errors = answer.get("errors") or {}
    error = errors.get("handle") or errors.get(key)
    if error == "NOT_SUPPORTED":
        return None, [(NOT_APPLICABLE, "the card does not have it")]
    value = answer.get(key)
    if error or value is None:
        return None, [(UNREADABLE, explain(str(error or "UNKNOWN")))]
    return value, []


def _ecc(answer: Mapping[str, Any], _fabric: Fabric) -> Told:
    count, instead = _value(answer, "ecc_since_load")
    yield from instead
    if count:
        yield FAULT, f"{count} uncorrected ECC errors since the driver was loaded: reset the GPU, then run a diagnostic"
    lifetime, _instead = _value(answer, "ecc_lifetime")
    if lifetime and not count:
        # The counter of a lifetime never goes back: what a reset and a remapped row have cured stays in it.
        yield NOTE, f"{lifetime} uncorrected ECC errors in the card's lifetime, none since the driver was loaded"


def _remap(answer: Mapping[str, Any], _fabric: Fabric) -> Told:
    rows, instead = _value(answer, "remapped")
    yield from instead
    if rows is None:
        return
    _correctable, uncorrectable, pending, failed = rows
    if failed:
        yield FAULT, "a bad memory row could not be remapped: have the card replaced"
    elif pending:
        yield FAULT, "a bad memory row waits to be remapped: reset the GPU (nvidia-smi --gpu-reset -i INDEX)"
    elif uncorrectable:
        yield NOTE, f"{uncorrectable} memory rows were remapped for uncorrectable errors"


def _pcie(answer: Mapping[str, Any], _fabric: Fabric) -> Told:
    # The generation is not judged: a link falls back while its GPU idles, and a GPU that is free idles.
    width, instead = _value(answer, "width")
    most, instead_of_most = _value(answer, "max_width")
    yield from instead or instead_of_most
    if width is not None and most is not None and width < most:
        yield FAULT, f"the PCIe link has {width} of {most} lanes: reseat the card, look at its riser and slot"


def _slowdown(answer: Mapping[str, Any], _fabric: Fabric) -> Told:
    mask, instead = _value(answer, "slowdown")
    yield from instead
    names = [name for bit, name in _SLOWDOWNS.items() if (mask or 0) & bit]
    if names:
        yield FAULT, f"the board slows itself down ({', '.join(names)}): look at its cooling and its power supply"


def _fabric(answer: Mapping[str, Any], fabric: Fabric) -> Told:
    errors = answer.get("errors") or {}
    if errors.get("fabric") == "FUNCTION_NOT_FOUND" and not fabric.switches:
        yield NOT_APPLICABLE, "the card does not have it"
        return
    state, instead = _value(answer, "fabric")
    yield from instead
    if state is None:
        return
    stage, status = state
    if not stage:
        yield NOT_APPLICABLE, "the card does not have it"
    elif stage != _FABRIC_COMPLETED:
        yield FAULT, f"it has not joined the NVLink fabric: see journalctl -u {FABRIC_UNIT}; CUDA fails with error 802"
    elif status:
        yield FAULT, f"it failed to join the NVLink fabric (NVML error {status}): see journalctl -u {FABRIC_UNIT}"


_BY_GPU = {"ecc": _ecc, "remap": _remap, "pcie": _pcie, "slowdown": _slowdown, "fabric": _fabric}


def nvswitches(dev: Path = Path("/dev")) -> bool:
    """Whether the host has NVSwitches that its own driver serves: their nodes are nvidia-nvswitch0 and so on."""
    return any(re.fullmatch(r"nvidia-nvswitch\d+", name) for name in os.listdir(dev))


# --- Xids in the kernel's log -----------------------------------------------------------------------------------------


def _xid_findings(gpus: Sequence[Gpu], others: Sequence[Gpu], log: KernelLog) -> Iterator[Finding]:
    if log.incomplete:
        yield Finding("xid", UNREADABLE, (), log.incomplete)
    indexes = {bus_place(gpu.pci_bus_id): gpu.index for gpu in gpus}
    not_asked = {bus_place(gpu.pci_bus_id) for gpu in others}
    seen: dict[tuple[str, int], list[str]] = {}
    for line in log.lines:
        match = _XID.search(line)
        if match and bus_place(match[1]) not in not_asked:
            seen.setdefault((bus_place(match[1]), int(match[2])), []).append(line[match.start() :])
    for (place, number), lines in sorted(seen.items()):
        # A card that fell off the bus may be no GPU of this host any more: its Xid is told all the same.
        where = (indexes[place],) if place in indexes else ()
        told = f"Xid {number} in the kernel's log, {len(lines)} times, last: {excerpt(lines[-1], 120)}"
        if number in APPLICATION_XIDS | TOLD_ELSEWHERE_XIDS:
            yield Finding("xid", NOTE, where, told)
        else:
            meaning = _XIDS.get(number, "see NVIDIA's catalogue of Xids")
            yield Finding("xid", FAULT, where, f"{meaning}: {told}; reset the GPU or reboot, then run a diagnostic")


def kernel_log(window: float, kmsg: Path = Path("/dev/kmsg"), now: Optional[float] = None) -> KernelLog:
    """Lines of the last `window` seconds, since this boot at most: from the kernel's own ring, which needs no daemon,
    and from the journal where the ring does not reach back that far."""
    uptime = time.clock_gettime(time.CLOCK_MONOTONIC) if now is None else now
    since = max(0.0, uptime - window)
    try:
        records = list(parse_kmsg(read_kmsg(kmsg)))
    except OSError as error:
        return KernelLog((), f"{kmsg} cannot be read ({error.strerror}): run as root on the host itself")
    lines = tuple(text for _sequence, seconds, text in records if seconds >= since)
    if records and (records[0][0] == 0 or records[0][1] <= since):
        return KernelLog(lines)
    try:
        done = run_command(["journalctl", "-k", "-b", f"--since=-{uptime - since:.0f}s", "-o", "cat", "--no-pager"], 20)
    except UnitsError as error:
        return KernelLog(lines, f"the kernel's ring does not reach back {window:g} s, and {error}")
    if done.rc:
        return KernelLog(lines, f"the kernel's ring does not reach back {window:g} s, and journalctl fails")
    # Most lines are in both.
    return KernelLog(tuple(dict.fromkeys((*done.out.splitlines(), *lines))))


def read_kmsg(path: Path) -> bytes:
    """The whole ring as it is now. One read gives one record; a record that is overwritten meanwhile fails once."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    parts = []
    try:
        while True:
            try:
                part = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            if not part:
                break
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def parse_kmsg(data: bytes) -> Iterator[tuple[int, float, str]]:
    """(sequence number, seconds since boot, text) of each record (Documentation/ABI/testing/dev-kmsg)."""
    for line in data.decode("utf-8", "replace").split("\n"):
        head, semicolon, text = line.partition(";")
        fields = head.split(",")
        # Continuation lines, with a record's properties, begin with a blank.
        if semicolon and len(fields) >= 3 and fields[1].isdigit() and fields[2].isdigit():
            yield int(fields[1]), int(fields[2]) / 1e6, text
