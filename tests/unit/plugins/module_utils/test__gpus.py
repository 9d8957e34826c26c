# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parsers against anything a half-dead driver may say, and the questions that callers ask of a reading."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.inference.plugins.module_utils._gpus import (
    NO_ANSWER,
    SMI_APP_FIELDS,
    SMI_EXIT_CODES,
    Gpu,
    GpuProcess,
    GpuReading,
    GpuSelectionError,
    Memory,
    classify_nvml_pids,
    excerpt,
    explain,
    reading_from_nvml,
    reading_from_smi,
    select_gpus,
    smi_gpu_fields,
)

MIB = 1 << 20


def raw_gpu(**values: object) -> dict[str, object]:
    """The worker's answer about a healthy GPU with nothing on it."""
    memory = {"total": 97887 * MIB, "reserved": 636 * MIB, "used": 0, "free": 97251 * MIB, "version": 2}
    return {"uuid": "GPU-a", "minor": 0, "memory": memory, "processes": [], "errors": {}, "mps": False, **values}


def raw(*gpus: object, **system: object) -> dict[object, object]:
    return {"system": {"count": len(gpus), **system}, **dict(enumerate(gpus))}


# --- NVML -------------------------------------------------------------------------------------------------------------


def test_seven_of_eight_never_look_like_all() -> None:
    answers = raw(*[raw_gpu() for _index in range(8)])
    del answers[6]
    reading = reading_from_nvml(answers)
    assert [gpu.error for gpu in reading.gpus] == [None] * 6 + [NO_ANSWER, None]
    assert not reading.usable


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"errors": {"memory": "NOT_SUPPORTED"}, "memory": None}, None),
        ({"errors": {"memory": "UNKNOWN"}, "memory": None}, "UNKNOWN"),
        ({"errors": {"graphics": "NOT_SUPPORTED", "mps": "FUNCTION_NOT_FOUND"}}, None),
        ({"errors": {"graphics": "NO_PERMISSION"}}, "NO_PERMISSION"),
        ({"errors": {"compute": "NOT_SUPPORTED"}}, "NOT_SUPPORTED"),
        ({"errors": {"name": "UNKNOWN", "pci": "UNKNOWN"}}, None),
        ({"memory": {"total": "much"}}, "UNKNOWN"),
        ({"processes": [{"pid": -1}]}, "UNKNOWN"),
        ({"processes": "none"}, "UNKNOWN"),
    ],
)
def test_what_was_not_seen_keeps_a_gpu_from_being_judged(values: dict[str, object], error: str | None) -> None:
    assert reading_from_nvml(raw(raw_gpu(**values))).gpus[0].error == error


@pytest.mark.parametrize(
    ("answer", "mig"),
    [({"mig": 1}, True), ({"mig": 0}, False), ({"errors": {"mig": "NOT_SUPPORTED"}}, False), ({}, None)],
)
def test_a_gpu_that_cannot_do_mig_has_it_off(answer: dict[str, object], mig: bool | None) -> None:
    assert reading_from_nvml(raw(raw_gpu(**answer))).gpus[0].mig is mig


def test_an_absurd_count_is_not_believed() -> None:
    reading = reading_from_nvml({"system": {"count": 2**32 - 1}})
    assert (reading.gpus, reading.usable) == ((), False)


def test_a_process_in_several_lists_counts_once() -> None:
    listed = [
        {"pid": 9, "used": None, "kind": "graphics"},
        {"pid": 9, "used": 5 * MIB, "kind": "compute"},
        {"pid": 9, "used": 3 * MIB, "kind": "graphics"},
        {"pid": 7, "used": None, "kind": "mps"},
        {"pid": 7, "used": None, "kind": "compute"},
    ]
    gpu = reading_from_nvml(raw(raw_gpu(processes=listed))).gpus[0]
    assert gpu.processes == (GpuProcess(7, None, "mps"), GpuProcess(9, 5, "compute"))
    assert gpu.mps


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
keys = ("uuid", "name", "minor", "pci_bus_id", "persistence", "mig", "memory", "processes", "mps", "errors")
process = st.fixed_dictionaries({}, optional={"pid": anything, "used": anything, "kind": anything})
plausible_gpu = st.fixed_dictionaries({}, optional={**dict.fromkeys(keys, anything), "processes": st.lists(process)})
plausible_system = st.fixed_dictionaries(
    {}, optional={"count": st.integers(-2, 4) | anything, "driver": anything, "nvml": anything, "error": anything}
)


@given(st.dictionaries(st.just("system") | st.integers(0, 4), plausible_system | plausible_gpu | anything))
def test_whatever_the_worker_answers_becomes_a_reading(answers: dict[object, object]) -> None:
    check(reading_from_nvml(answers))


def check(reading: GpuReading) -> None:
    """What holds for every reading."""
    json.dumps([gpu.as_dict() for gpu in reading.gpus])
    assert reading.usable or reading.problems
    assert [gpu.index for gpu in reading.gpus] == sorted({gpu.index for gpu in reading.gpus})
    assert not reading.usable or reading.gpus
    for gpu in reading.gpus:
        assert (gpu.error is None) or any(gpu.label in problem for problem in reading.problems)
        assert len({process.pid for process in gpu.processes}) == len(gpu.processes)
    for text in (*reading.problems, reading.driver_version, reading.nvml_version, *(g.name for g in reading.gpus)):
        assert text.isprintable()
        assert len(text) < 800


# --- nvidia-smi -------------------------------------------------------------------------------------------------------

FIELDS = smi_gpu_fields()


def row(index: int, count: int = 2, **values: str) -> str:
    cells = {
        "count": str(count),
        "index": str(index),
        "uuid": f"GPU-{index}",
        "pci.bus_id": f"00000000:0{index}:00.0",
        "driver_version": "575.57.08",
        "persistence_mode": "Enabled",
        "mig.mode.current": "[N/A]",
        "memory.total": "97887",
        "memory.used": "4",
        "memory.free": "97247",
        "memory.reserved": "636",
        "name": "NVIDIA RTX PRO 6000",
    }
    return ", ".join({**cells, **values}[field] for field in FIELDS)


def read(*rows: str, apps: str | None = "") -> GpuReading:
    return reading_from_smi(FIELDS, "\n".join(rows) + "\n", apps)


def test_rows_and_processes_of_nvidia_smi() -> None:
    reading = read(row(0), row(1), apps="GPU-1, 4242, 800\nGPU-1, 4242, 900\nGPU-1, 5, [N/A]\n")
    assert (reading.usable, reading.problems, reading.driver_version) == (True, (), "575.57.08")
    assert reading.gpus[0].memory == Memory(97887, 636, 4, 97247, 2)
    assert reading.gpus[1].processes == (GpuProcess(5, None, "compute"), GpuProcess(4242, 900, "compute"))


def test_a_gpu_that_nvidia_smi_leaves_out_is_lost_not_absent() -> None:
    lament = "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error"
    reading = read(row(0, count=3), lament, row(2, count=3))
    assert [gpu.error for gpu in reading.gpus] == [None, "GPU_IS_LOST", None]
    assert reading.problems[0] == f"nvidia-smi: {lament}"


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        ("[Unknown Error]", "UNKNOWN"),
        ("ERR!", "UNKNOWN"),
        ("[GPU requires reset]", "RESET_REQUIRED"),
        ("[Insufficient Permissions]", "NO_PERMISSION"),
        ("[GPU is lost]", "GPU_IS_LOST"),
        ("[N/A]", None),
        ("[Not Supported]", None),
    ],
)
def test_words_in_place_of_numbers(cell: str, error: str | None) -> None:
    gpu = read(row(0, **{"memory.used": cell})).gpus[0]
    assert (gpu.memory, gpu.error) == (None, error)


@pytest.mark.parametrize(
    ("rows", "apps", "words"),
    [
        ([row(0), row(0)], "", "the same index for several GPUs"),
        ([row(0, count=1), row(1, count=1)], "", "2 GPUs, but a count of 1"),
        ([row(0, count=10**15)], "", "1 GPUs, but a count of 1000000000000000"),
        ([row(0, count=1)], "GPU-9, 5, 1", "unknown GPU GPU-9"),
        ([row(0, count=1)], "GPU-0, -1, 1", "GPU-0, -1, 1"),
        (["No devices were found"], "", "no GPU was found"),
        ([], "", "no GPU was found"),
    ],
)
def test_what_cannot_be_understood_is_told_and_proves_nothing(rows: list[str], apps: str, words: str) -> None:
    reading = read(*rows, apps=apps)
    assert any(words in problem for problem in reading.problems)
    assert not reading.usable


def test_no_process_may_be_said_in_words() -> None:
    reading = read(row(0), row(1), apps="No running processes found\n")
    assert (reading.usable, reading.problems) == (True, ())


def test_without_the_list_of_processes_nothing_is_proven() -> None:
    assert not read(row(0), row(1), apps=None).usable


cells = st.sampled_from(["0", "1", "7", "-1", "[N/A]", "ERR!", "GPU-0", "Enabled", "", "[Unknown Error]"]) | st.text()
lines = st.lists(st.lists(cells, min_size=1, max_size=len(FIELDS) + 2).map(", ".join) | st.just(row(1)) | st.text())


@given(lines, st.none() | lines)
def test_whatever_nvidia_smi_prints_becomes_a_reading(gpus: list[str], apps: list[str] | None) -> None:
    check(reading_from_smi(FIELDS, "\n".join(gpus), None if apps is None else "\n".join(apps)))


def test_the_columns_asked_for() -> None:
    assert [field for field in FIELDS if field not in smi_gpu_fields(reserved=False)] == ["memory.reserved"]
    assert FIELDS[-1] == "name"
    assert len(SMI_APP_FIELDS) == 3


# --- words ------------------------------------------------------------------------------------------------------------


def test_every_exit_code_that_matters_is_explained() -> None:
    for code in (4, 6, 8, 9, 10, 12, 14, 15, 18):
        assert explain(SMI_EXIT_CODES[code]) != explain("NEVER_HEARD_OF").replace(
            "NEVER_HEARD_OF", SMI_EXIT_CODES[code]
        )


def test_the_explanation_of_differing_versions() -> None:
    assert explain("LIB_RM_VERSION_MISMATCH") == (
        "driver and library versions differ (NVML: LIB_RM_VERSION_MISMATCH): running processes go on, "
        "but nothing new can start; reboot the host or reload the nvidia module"
    )


@given(st.text(), st.integers(4, 50))
def test_excerpts_are_one_short_printable_line(text: str, limit: int) -> None:
    short = excerpt(text, limit)
    assert short.isprintable()
    assert len(short) <= limit
    assert short == excerpt(short, limit)


# --- selection --------------------------------------------------------------------------------------------------------

EIGHT = GpuReading(tuple(Gpu(index, f"GPU-{index:04x}-AbC") for index in range(8)), usable=True)


@pytest.mark.parametrize(
    ("wanted", "indexes"),
    [
        (["all"], list(range(8))),
        (["7", "0"], [0, 7]),
        (["gpu-0003-abc", "3", " 3 "], [3]),
        (["1", "ALL"], list(range(8))),
    ],
)
def test_selection(wanted: list[str], indexes: list[int]) -> None:
    assert [gpu.index for gpu in select_gpus(EIGHT, wanted)] == indexes


@pytest.mark.parametrize(
    "name", ["8", "-1", "00", "1.0", "GPU-9", "", "0,1", "\N{FULLWIDTH DIGIT ONE}", "MIG-0", "\x1b[31m\n", "x" * 999]
)
def test_an_unknown_gpu_is_named_and_what_exists_is_listed(name: str) -> None:
    with pytest.raises(GpuSelectionError) as caught:
        select_gpus(EIGHT, ["0", name])
    text = str(caught.value)
    assert text.startswith("no such GPU: ")
    assert "0 = GPU-0000-AbC, 1 = GPU-0001-AbC" in text
    assert text.isprintable()
    assert len(text) < 500


def test_a_gpu_without_identity_can_only_be_named_by_its_index() -> None:
    reading = GpuReading((Gpu(0, error="GPU_IS_LOST"),))
    assert select_gpus(reading, ["0"]) == reading.gpus
    with pytest.raises(GpuSelectionError, match="0 = GPU_IS_LOST"):
        select_gpus(reading, [""])


@pytest.mark.parametrize("reading", [EIGHT, GpuReading()])
def test_nothing_to_select(reading: GpuReading) -> None:
    with pytest.raises(GpuSelectionError, match=r"no GPU (is named|can be seen)"):
        select_gpus(reading, [] if reading.gpus else ["all"])


# --- pids that may be believed ----------------------------------------------------------------------------------------


def test_ghosts_and_strangers() -> None:
    listed = [GpuProcess(pid, 1, "compute") for pid in (10, 11, 12, 12)]
    verdict = classify_nvml_pids(listed, alive={1, 10, 11}, attached={10, 99})
    assert verdict == {"confirmed": {10}, "ghost": {12}, "stranger": {11}}


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_every_listed_pid_gets_exactly_one_verdict(listed: set[int], alive: set[int], attached: set[int]) -> None:
    verdicts = classify_nvml_pids([GpuProcess(pid, None, "compute") for pid in listed], alive, attached)
    assert sorted(pid for pids in verdicts.values() for pid in pids) == sorted(listed)
    assert verdicts["confirmed"] <= alive & attached
