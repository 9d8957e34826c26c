# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/faults.md is what `make faults` writes from the stored results, and leaves no fault out."""

from __future__ import annotations

import json
import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
LOADER = SourceFileLoader("faults", str(ROOT / "scripts/faults"))
SPEC = spec_from_loader("faults", LOADER)
assert SPEC is not None
faults = module_from_spec(SPEC)
LOADER.exec_module(faults)

KNOWN = yaml.safe_load((ROOT / "molecule/faults.yml").read_text())["faults"]


def result(case: str, host: str = "sim-debian13", seen: str = "8 of 8 GPUs are free") -> dict[str, str]:
    return {"scenario": "stragglers", "case": case, "host": host, "title": "a title", "without": "", "seen": seen}


def test_the_page_is_what_the_results_say() -> None:
    assert (ROOT / "docs/faults.md").read_text() == faults.page(KNOWN, json.loads(faults.RESULTS.read_text()))


def test_every_fault_has_a_result_or_says_that_it_has_none() -> None:
    assert list(KNOWN) == [f"F{number}" for number in range(1, 30)]
    sections = re.split(r"^## ", (ROOT / "docs/faults.md").read_text(), flags=re.MULTILINE)[1:]
    by_number = {section.partition(":")[0]: section for section in sections}
    for number in KNOWN:
        assert re.search(rf"^\| {number}\b|\*\*Not proven\*\*: \w", by_number[number], re.MULTILINE), number


def test_a_case_stands_under_its_own_fault() -> None:
    page = faults.page(
        {"F1": KNOWN["F1"], "F2": KNOWN["F2"]}, [result("F1"), result("F2-real"), result("F10"), result("swap")]
    )
    one, two, more = page.split("\n## ")[1:]
    assert "| F1 |" in one and "F10" not in one and "Not proven" not in one
    assert "| F2-real |" in two
    assert "| F10 |" in more and "| swap |" in more


def test_hosts_of_a_case_are_one_row_and_cases_that_are_gone_leave() -> None:
    old = [result("F2"), result("F2", "sim-debian12", "before"), result("F99-gone"), result("F1")]
    merged = faults.merged(old, [result("F2", "sim-debian12", "now")])
    assert [(item["case"], item["host"], item["seen"]) for item in merged] == [
        ("F1", "sim-debian13", "8 of 8 GPUs are free"),
        ("F2", "sim-debian12", "now"),
        ("F2", "sim-debian13", "8 of 8 GPUs are free"),
    ]
    (row,) = faults.rows(merged[1:])
    assert "| 12, 13 |" in row


def test_what_was_seen_cannot_break_the_table() -> None:
    assert faults.cell("a|b\n\x1b[31m<script>\u202e *c*") == "a\\|b \\[31m\\<script\\> \\*c\\*"
