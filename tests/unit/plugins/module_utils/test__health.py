# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import Gpu
from ansible_collections.gpuops.inference.plugins.module_utils._health import (
    CHECKS,
    FAULT,
    NOT_APPLICABLE,
    NOTE,
    UNREADABLE,
    Fabric,
    Finding,
    KernelLog,
    find_health,
    judge_health,
    kernel_log,
    nvswitches,
    parse_kmsg,
)

WELL: dict[str, Any] = {
    "ecc_since_load": 0,
    "ecc_lifetime": 0,
    "remapped": [0, 0, 0, 0],
    "width": 16,
    "max_width": 16,
    "slowdown": 1,
    "errors": {"fabric": "NOT_SUPPORTED"},
}
GPUS = tuple(Gpu(index, pci_bus_id=f"00000000:{index + 1:02X}:00.0") for index in range(4))
NO_LOG = KernelLog(())
NO_FABRIC = Fabric(switches=False, manager_runs=False)
FELL = "NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def found(
    answer: dict[str, Any] | None = None, fabric: Fabric = NO_FABRIC, log: KernelLog = NO_LOG
) -> list[tuple[str, str, tuple[int, ...]]]:
    """What is found where GPU 2 answers this and the others are well, but for what all of them do not have."""
    answers = {gpu.index: WELL for gpu in GPUS}
    answers[2] = {**WELL, **(answer or {})}
    findings = judge_health(CHECKS, GPUS, (), answers, fabric, log)
    told = {(finding.check, finding.kind, finding.gpus) for finding in findings}
    return sorted(told - {("fabric", NOT_APPLICABLE, (0, 1, 2, 3))})


def test_a_card_that_is_well_passes_and_what_it_lacks_is_told() -> None:
    assert found() == []
    findings = judge_health(CHECKS, GPUS, (), {gpu.index: WELL for gpu in GPUS}, NO_FABRIC, KernelLog(()))
    assert [(finding.kind, finding.fails) for finding in findings] == [(NOT_APPLICABLE, False)]


@pytest.mark.parametrize(
    ("answer", "check", "kind"),
    [
        ({"ecc_since_load": 3, "ecc_lifetime": 3}, "ecc", FAULT),
        ({"ecc_lifetime": 3}, "ecc", NOTE),
        ({"remapped": [0, 1, 1, 0]}, "remap", FAULT),
        ({"remapped": [0, 1, 0, 1]}, "remap", FAULT),
        ({"remapped": [0, 1, 0, 0]}, "remap", NOTE),
        ({"width": 8}, "pcie", FAULT),
        ({"slowdown": 0x40}, "slowdown", FAULT),
    ],
)
def test_what_ails_one_gpu_is_told_of_that_gpu_alone(answer: dict[str, Any], check: str, kind: str) -> None:
    assert found(answer) == [(check, kind, (2,))]


def test_a_power_limit_is_no_fault_of_the_board() -> None:
    assert found({"slowdown": 0x04}) == []


@pytest.mark.parametrize(
    ("key", "check"),
    [("ecc_since_load", "ecc"), ("remapped", "remap"), ("max_width", "pcie"), ("slowdown", "slowdown")],
)
def test_what_cannot_be_read_never_passes(key: str, check: str) -> None:
    assert found({key: None, "errors": {**WELL["errors"], key: "UNKNOWN"}}) == [(check, UNREADABLE, (2,))]
    assert found({key: None, "errors": {**WELL["errors"], key: "NOT_SUPPORTED"}}) == [(check, NOT_APPLICABLE, (2,))]


def test_a_driver_that_cannot_be_asked_fails_every_check_of_it() -> None:
    findings = judge_health(["ecc", "pcie"], GPUS, (), {}, NO_FABRIC, None)
    assert [(finding.check, finding.kind, finding.gpus) for finding in findings] == [
        ("ecc", UNREADABLE, (0, 1, 2, 3)),
        ("pcie", UNREADABLE, (0, 1, 2, 3)),
    ]


def test_nvml_is_asked_only_where_something_was_asked_for() -> None:
    answers: list[dict[int, dict[str, Any]]] = [{1: {**WELL, "ecc_since_load": 2}}]
    assert find_health(answers.pop, GPUS[1:2], GPUS, {}, [], 1.0) == () and answers
    (finding,) = find_health(answers.pop, GPUS[1:2], GPUS, {}, ["ecc"], 1.0)
    assert finding.fails and finding.told.startswith("GPU 1: 2 uncorrected ECC errors")
    assert str(finding) == f"health (ecc): {finding.told}"


def test_only_what_was_asked_for_is_judged() -> None:
    assert (
        judge_health(["pcie"], GPUS, (), {gpu.index: {**WELL, "ecc_since_load": 1} for gpu in GPUS}, NO_FABRIC, None)
        == ()
    )


@pytest.mark.parametrize(
    ("state", "kind"), [([3, 0], None), ([1, 0], FAULT), ([2, 0], FAULT), ([3, 10], FAULT), ([0, 0], None)]
)
def test_a_gpu_of_a_fabric_has_to_have_joined_it(state: list[int], kind: str | None) -> None:
    told = found({"fabric": state, "errors": {}})
    assert [entry for entry in told if entry[2] == (2,)] == ([("fabric", kind, (2,))] if kind else [])


def test_switches_need_their_manager() -> None:
    assert found(fabric=Fabric(switches=True, manager_runs=False)) == [("fabric", FAULT, ())]
    assert found(fabric=Fabric(switches=True, manager_runs=True)) == []


def test_a_driver_too_old_to_know_fabrics_is_no_fault_where_there_are_no_switches() -> None:
    old = {"errors": {"fabric": "FUNCTION_NOT_FOUND"}}
    assert found(old) == []
    assert ("fabric", UNREADABLE, (2,)) in found(old, Fabric(switches=True, manager_runs=True))


def test_an_xid_is_told_with_the_gpu_it_is_about() -> None:
    assert found(log=KernelLog((FELL, "usb 1-1: new device"))) == [("xid", FAULT, (1,))]


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63])
def test_what_a_program_does_to_itself_is_a_note(number: int) -> None:
    assert found(log=KernelLog((FELL.replace("79", str(number)),))) == [("xid", NOTE, (1,))]


def test_the_xid_of_a_card_that_is_gone_is_told_and_of_one_nobody_asked_about_is_not() -> None:
    log = KernelLog((FELL, FELL.replace("0000:02:00", "0000:E1:00")))
    findings = judge_health(["xid"], GPUS[:1], GPUS[1:], {}, NO_FABRIC, log)
    assert [(finding.kind, finding.gpus) for finding in findings] == [(FAULT, ())]
    assert "E1:00" in findings[0].text


def test_xids_of_one_kind_are_one_finding() -> None:
    (finding,) = judge_health(["xid"], GPUS, (), {}, NO_FABRIC, KernelLog((FELL, FELL + " again")))
    assert "2 times" in finding.text and "again" in finding.text
    assert str(finding).startswith("health (xid): GPU 1: the GPU fell off the bus")


def test_a_log_that_is_not_whole_never_passes() -> None:
    assert found(log=KernelLog((), "it cannot be read")) == [("xid", UNREADABLE, ())]


RING = """6,0,0,-;Linux version 6.18
 SUBSYSTEM=none
4,7,5000000,-;NVRM: Xid (PCI:0000:02:00): 31, old
4,8,990000000,-,caller=T1;NVRM: Xid (PCI:0000:02:00): 79, new; with a semicolon
"""


def test_the_kernels_ring_is_read_by_its_times(tmp_path: Path) -> None:
    ring = tmp_path / "kmsg"
    ring.write_text(RING)
    log = kernel_log(100, ring, now=1000)
    assert log == KernelLog(("NVRM: Xid (PCI:0000:02:00): 79, new; with a semicolon",))
    assert len(kernel_log(86400, ring, now=1000).lines) == 3


def test_a_ring_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    log = kernel_log(100, tmp_path / "none")
    assert log.lines == () and "cannot be read" in log.incomplete


@given(st.binary())
def test_any_bytes_can_be_a_ring(data: bytes) -> None:
    list(parse_kmsg(data))
    list(parse_kmsg(b"6,1,2,-;" + data))


@given(st.text())
def test_any_text_can_be_a_line(text: str) -> None:
    judge_health(["xid"], GPUS, (), {}, NO_FABRIC, KernelLog((text, f"NVRM: Xid (PCI:{text}): 79, x")))


def test_switches_are_known_by_their_nodes(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia-nvswitchctl"):
        (tmp_path / name).touch()
    assert not nvswitches(tmp_path)
    (tmp_path / "nvidia-nvswitch0").touch()
    assert nvswitches(tmp_path)


def test_a_finding_is_plain_data() -> None:
    assert Finding("ecc", FAULT, (1,), "text").as_dict() == {
        "check": "ecc", "kind": "fault", "gpus": [1], "text": "text",
    }  # fmt: skip
