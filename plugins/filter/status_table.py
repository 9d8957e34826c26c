# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

Seen = Mapping[str, Any]

HEAD = ("", "HOST", "ENGINE", "GPUS USED", "HELD", "LAST", "TO DO")
WIDEST = 48
"""Characters of a cell: what is longer is in the details. The last column has no end."""


def status_table(hosts: Iterable[str], seen: Mapping[str, Seen]) -> list[str]:
    rows = [_row(host, seen[host].get("status_gpus") or {}, seen[host].get("status_pivot") or {}) for host in hosts]
    # Who has to be looked at comes last, where the eye is when a long table has gone by.
    rows.sort(key=lambda row: row[0])
    cells = [HEAD, *(tuple(_short(cell) for cell in row[:-1]) + row[-1:] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD) - 1)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in cells]
    count = sum(bool(row[0]) for row in rows)
    return [*lines, f"{count} of {len(rows)} hosts need{'s' * (count == 1)} you" if count else "nothing to do"]


def _row(host: str, gpus: Seen, pivot: Seen) -> tuple[str, ...]:
    if "gpus" not in gpus:
        why = " ".join(str(gpus.get("msg", "was not looked at")).split())
        state = "unreachable" if gpus.get("unreachable") else "cannot be looked at"
        return ("!", host, state, "?", "?", "?", why[:160])
    todo = list(_todo(gpus, pivot))
    return (
        "!" if todo else "",
        host,
        ", ".join(_engines(gpus)) or "-",
        _used(gpus),
        "; ".join(_holds(gpus)) or "-",
        _last(gpus, pivot),
        "; ".join(todo),
    )


def _engines(gpus: Seen) -> Iterable[str]:
    for unit in gpus["units"]:
        name = _name(unit["name"])
        if unit["active_state"] == "active":
            yield f"{name} {'answers' if unit['answers'] else 'does not answer yet'}"
        elif unit["active_state"] != "inactive":
            yield f"{name} {unit['active_state']}"
    loose = {process["pid"] for process in gpus["processes"] if process.get("class") in ("target", "orphan")} - {
        process["pid"] for process in gpus["processes"] if process.get("unit")
    }
    if loose:
        yield f"{len(loose)} engine processes without a unit"
    if others := sum(process.get("class") == "foreign" for process in gpus["processes"]):
        yield f"{others} of somebody else"


def _used(gpus: Seen) -> str:
    busy = {index for process in gpus["processes"] for index in process.get("gpus_used", ())}
    return f"{len(busy)}/{len(gpus['gpus'])}"


def _holds(gpus: Seen) -> Iterable[str]:
    ends: dict[str, list[str]] = {}
    for hold in gpus["holds"]:
        if not hold["over"]:
            until = f" until {_time(hold['until'])}" if hold["until"] else ""
            ends.setdefault(f"by {hold['who']}{until}: {hold['reason']}", []).append(_name(hold["unit"]))
    return (f"{', '.join(names)} {end}" for end, names in ends.items())


def _last(gpus: Seen, pivot: Seen) -> str:
    """The newer of the last drain and the last pivot."""
    found = []
    if drain := gpus.get("last_drain"):
        outcome = "free" if drain["released"] else "not free"
        found.append((_moment(drain["at"]), f"drain ({drain['reason']}): {outcome}"))
    if record := pivot.get("record"):
        text = f"pivot to {_name(record['target'])}: {record['phase'].replace('_', ' ')}"
        found.append((_moment(record["phases"][-1]["at"]), text))
    return f"{_time(max(found)[0])} {max(found)[1]}" if found else "-"


def _todo(gpus: Seen, pivot: Seen) -> Iterable[str]:
    if pivot.get("unfinished"):
        yield f"run the pivot to {_name(pivot['record']['target'])} again, or restore_production.yml"
    if "engines" not in pivot:
        yield f"what runs cannot be told: {' '.join(str(pivot.get('msg', '')).split())[:160]}"
    if _last(gpus, pivot).endswith(": not free") and not any(unit["answers"] for unit in gpus["units"]):
        yield "the last drain did not end with all GPUs free: drain again, it says what is left and what to do"
    if gpus["owed"] and not any(unit["answers"] for unit in gpus["units"]):
        names = ", ".join(map(_name, gpus["owed"]))
        yield f"{names} ran before the drain: undrain.yml with gpuops_undrain_start starts it"
    yield from (f"GPU {gpu['index']}: {gpu['error']}" for gpu in gpus["gpus"] if gpu["error"])
    yield from (f"{_name(unit['name'])} has failed" for unit in gpus["units"] if unit["active_state"] == "failed")
    yield from (f"{_name(unit['name'])}: {text}" for unit in gpus["units"] for text in unit["drift"][:1])
    yield from gpus["problems"]


def _name(unit: str) -> str:
    return unit.removesuffix(".service")


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _time(moment: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(moment))


def _short(cell: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in cell)
    return shown if len(shown) <= WIDEST else f"{shown[: WIDEST - 3]}..."


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"status_table": status_table}
