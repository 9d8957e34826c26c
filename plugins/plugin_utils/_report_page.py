# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This plugin util is PRIVATE to the collection; it can change in any release.
"""The report as one HTML page: no script, nothing fetched, every text escaped, every colour also said in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Optional

from ansible_collections.gpuops.inference.plugins.plugin_utils._report import (
    BAD,
    OUTCOMES,
    RUNNING,
    first_line,
    free_text,
    held_text,
)

_SIGNS = {
    "done": "✓", "skipped": "–", "not_begun": "○", "unfinished": "!", "rolled_back": "↩", "unreachable": "✕",
    "failed": "✕",
}  # fmt: skip
_TONES = {
    "done": "good", "rolled_back": "warn", "unfinished": "warn", "unreachable": "bad", "failed": "bad",
    "free": "good", "held": "warn", "exiting": "warn", "respawning": "warn", "inconclusive": "warn",
    "unkillable": "bad", "leaked": "bad", "ghost": "bad", "gpu_lost": "bad",
}  # fmt: skip
"""Of outcomes and verdicts; what is not here is neither good nor bad."""

_ALL_OPEN = 3
"""So few hosts need no folding."""
_MOST_ROWS = 60

# Scripts, pictures, fonts and connections are refused by the browser itself, should a text ever get through unescaped.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2126; --soft: #59636e; --line: #d5dae0; --panel: #f5f7f9;
  --good: #146c38; --good-bg: #e0f3e7; --warn: #7d4e00; --warn-bg: #fff1cf; --bad: #a8171c; --bad-bg: #fde5e4;
  --bar: #3d6fb4; --back: #9a6700; --curve: #7a3ea8; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e4e8ec; --soft: #9aa5b1; --line: #363e47;
  --panel: #1c2228; --good: #6fd694; --good-bg: #12331f; --warn: #f0c05a; --warn-bg: #3a2c0a; --bad: #ff9a94;
  --bad-bg: #451a1a; --bar: #6ea0e6; --back: #d9a13b; --curve: #c99bee; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h4 { font-size: .95rem; margin: 1.1rem 0 .2rem; }
p { margin: .3rem 0; }
a { color: inherit; }
.soft, dt, caption, footer { color: var(--soft); }
.break, td, dd, li, summary, pre { overflow-wrap: anywhere; }
.plain td { overflow-wrap: break-word; min-width: 3rem; }
table.plain { min-width: 44rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; padding: 0; list-style: none; }
.tiles li { padding: .4rem .9rem; border: 1px solid var(--line); border-radius: .4rem; background: var(--panel); }
.tiles b { font-size: 1.25rem; margin-right: .3rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .4rem 0; }
dd { margin: 0; min-width: 0; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible, a:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.hosts td:nth-child(n+2):nth-child(-n+4), .grid th { white-space: nowrap; }
.hosts th, .grid tbody th { font-weight: 600; }
.hosts tbody th { min-width: 16rem; max-width: 24rem; overflow-wrap: anywhere; }
.hosts td:last-child { min-width: 18rem; }
.grid tbody th { position: sticky; left: 0; background: var(--paper); }
.grid td { min-width: 6.6rem; font-variant-numeric: tabular-nums; }
.grid small { display: block; color: var(--soft); }
.mark { display: inline-block; padding: 0 .45rem; border-radius: .3rem; border: 1px solid var(--line);
  white-space: nowrap; font-size: .85rem; }
.good { color: var(--good); background: var(--good-bg); border-color: currentColor; }
.warn { color: var(--warn); background: var(--warn-bg); border-color: currentColor; }
.bad { color: var(--bad); background: var(--bad-bg); border-color: currentColor; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .6rem 0; padding: 0 .9rem; }
details[open] { padding-bottom: .9rem; }
summary { cursor: pointer; padding: .6rem 0; }
summary h3 { display: inline; margin: 0 .5rem 0 0; font-size: 1.05rem; }
details details { background: var(--panel); }
pre { margin: .4rem 0; padding: .6rem .8rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: .3rem; font: .82rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; }
.time { table-layout: fixed; }
.time thead th:last-child { text-align: right; }
.time td, .time th { border: 0; padding: .12rem .5rem; font-weight: 400; }
.time th { width: 9rem; }
.time td.number, .time thead th:last-child { width: 6.5rem; }
.track { position: relative; height: 1.1rem; margin-top: .15rem; background: var(--panel); border-radius: .2rem; }
.track i { position: absolute; top: 0; bottom: 0; min-width: 2px; border-radius: .2rem; background: var(--bar); }
.track i.back { background: repeating-linear-gradient(45deg, var(--back) 0 4px, transparent 4px 7px), var(--panel);
  border: 1px solid var(--back); }
.time svg { display: block; width: 100%; height: 4.5rem; background: var(--panel); border-radius: .2rem; }
.time path { vector-effect: non-scaling-stroke; }
.axis { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft); }
ul.plain { margin: .3rem 0; padding-left: 1.2rem; }
footer { margin-top: 3rem; font-size: .85rem; }
@media (max-width: 40rem) { body { padding: 1rem .7rem 3rem; } dl { grid-template-columns: 1fr; gap: 0; }
  dt { margin-top: .4rem; } th, td { padding: .3rem .4rem; } .time th { width: 6.5rem; }
  .time td.number, .time thead th:last-child { width: 5rem; white-space: normal; }
  details { padding: 0 .6rem; } .grid tbody th { max-width: 8.5rem; overflow: hidden; text-overflow: ellipsis; }
  .hosts thead { display: none; } .hosts tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .hosts th, .hosts td { display: inline-block; border: 0; padding: 0 .5rem 0 0; }
  .hosts tbody th, .hosts td:last-child { display: block; min-width: 0; max-width: none; } }
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --panel: #f4f4f4; --good: #0b4f27;
  --good-bg: #fff; --warn: #5c3a00; --warn-bg: #fff; --bad: #8d1216; --bad-bg: #fff; --bar: #3d6fb4; --back: #9a6700;
  --curve: #7a3ea8; color-scheme: light; }
  body { max-width: none; font-size: 10pt; padding: 0; } .scroll { overflow: visible; }
  .grid td { min-width: 0; } .grid tbody th { position: static; }
  tr, pre, .time { break-inside: avoid; } thead { display: table-header-group; }
  .track, .track i, .time svg, .mark { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  /* What is folded on the screen is needed on paper. */
  details::details-content { content-visibility: visible; height: auto; block-size: auto; } }
"""


def page(document: Mapping[str, Any]) -> str:
    """The whole page. The document is the report as `Run.as_dict` makes it."""
    run = document["run"]
    hosts = sorted(document["hosts"], key=lambda host: (-OUTCOMES.index(host["outcome"]), host["host"]))
    numbers = {id(host): number for number, host in enumerate(hosts, 1)}
    bad = sum(host["outcome"] in BAD for host in hosts)
    head = (
        f"{bad} of {_count(len(hosts), 'host')} {'needs' if bad == 1 else 'need'} you"
        if bad
        else f"{_count(len(hosts), 'host')}, all is well"
    )
    title = f"{run['what']}{' (check mode)' if run.get('check') else ''}: {head}"
    parts = [
        "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
        f'<meta http-equiv=Content-Security-Policy content="{_POLICY}">\n'
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<header>\n"
        f"<h1 class=break>{escape(title)}</h1>\n",
        _run_lines(run),
        "</header>\n<main>\n",
        _tiles(document["counts"]),
        _section("Hosts", "hosts", _host_table(hosts, numbers)),
        _section("GPUs before and after", "gpus", _grid(hosts, numbers)),
        _section("Each host", "each", "".join(_host(host, numbers[id(host)], len(hosts)) for host in hosts)),
        _section("How it was run", "run", _facts(_run_facts(run))),
        "</main>\n<footer>Made by gpuops.inference "
        f"{escape(str(run.get('collection', '')))}. The same as data: <a href=report.json>report.json</a>.</footer>\n"
        "</body>\n</html>\n",
    ]
    return "".join(parts)


# --- the run ------------------------------------------------------------------------------------------------------


def _run_lines(run: Mapping[str, Any]) -> str:
    began = str(run["began"]).replace("T", " ").replace("+00:00", " UTC")
    lines = [f"{began}, {_seconds(run['seconds'])}"]
    if run.get("check"):
        lines.append("Check mode: nothing was changed.")
    if run["state"] == RUNNING:
        lines.append("The run was running when this was written.")
    lines += [run[key] for key in ("stopped", "resume") if run[key]]
    return "".join(f"<p class=break>{_text(line)}</p>\n" for line in lines)


def _run_facts(run: Mapping[str, Any]) -> dict[str, Any]:
    told = ("what", "began", "seconds", "stopped", "resume", "settings")
    facts = {key.replace("_", " "): value for key, value in run.items() if key not in told and value not in ("", None)}
    return {**facts, **{key.replace("_", " "): value for key, value in run["settings"].items()}}


def _tiles(counts: Mapping[str, int]) -> str:
    tiles = (
        f"<li class={_TONES.get(name, 'none')}><b>{counts[name]}</b>{_SIGNS[name]} {_words(name)}</li>"
        for name in reversed(OUTCOMES)
        if counts.get(name)
    )
    return f"<ul class=tiles aria-label='Hosts by outcome'>{''.join(tiles)}</ul>\n"


def _host_table(hosts: Sequence[Mapping[str, Any]], numbers: Mapping[int, int]) -> str:
    rows = (
        f"<tr><th scope=row><a href='#host-{numbers[id(host)]}'>{escape(host['host'])}</a></th>"
        f"<td>{_mark(host['outcome'], _SIGNS[host['outcome']])}</td>"
        f"<td class=number>{_seconds(host['seconds']) if host['began'] else ''}</td>"
        f"<td>{free_text(host)}</td><td>{_text(first_line(host['cause']))}</td></tr>\n"
        for host in hosts
    )
    return _table("hosts", "", ["Host", "Outcome", "Time", "GPUs", "Cause"], rows)


def _grid(hosts: Sequence[Mapping[str, Any]], numbers: Mapping[int, int]) -> str:
    # GPU 10 comes after GPU 9.
    indexes = sorted({gpu["index"] for host in hosts for gpu in host["gpus"]}, key=lambda index: (len(index), index))
    if not indexes:
        return "<p>No host's GPUs were looked at.</p>\n"
    rows = []
    for host in hosts:
        gpus = {gpu["index"]: gpu for gpu in host["gpus"]}
        # Each drain that did something has a record.
        cells = "".join(_gpu(gpus.get(index), bool(host["records"])) for index in indexes)
        if not gpus:
            cells = f"<td class=soft colspan={len(indexes)}>not looked at</td>"
        rows.append(
            f"<tr><th scope=row><a href='#host-{numbers[id(host)]}'>{escape(host['host'])}</a></th>{cells}</tr>\n"
        )
    caption = "Used memory in MiB before and after the drain, and what the GPU then was."
    return (
        "<div class=scroll tabindex=0 role=region aria-label='GPUs before and after'>"
        + _table("grid", caption, ["Host", *(f"GPU {index}" for index in indexes)], rows)
        + "</div>\n"
    )


def _gpu(gpu: Optional[Mapping[str, Any]], drained: bool) -> str:
    if gpu is None:
        return "<td class=soft>no such GPU</td>"
    if gpu["verdict"] == "not judged" and not drained:
        memory, what = _mib(gpu["before_mib"]), "as seen in the look, not drained"
    else:
        memory, what = f"{_mib(gpu['before_mib'])} → {_mib(gpu['after_mib'])}", _mark(gpu["verdict"])
    return f"<td title='{escape(gpu['why'])}'>{memory}<small>{what}</small></td>"


# --- one host -----------------------------------------------------------------------------------------------------


def _host(host: Mapping[str, Any], number: int, hosts: int) -> str:
    opened = " open" if host["outcome"] in BAD or hosts <= _ALL_OPEN else ""
    where = f"<p>Failed task: {_text(host['task'])}</p>" if host["task"] else ""
    gpus = [
        f"GPU {gpu['index']}: {gpu['verdict']}: {gpu['why']}"
        for gpu in host["gpus"]
        if gpu["verdict"] not in ("free", "not judged")
    ]
    short = ", ".join(filter(None, [_seconds(host["seconds"]) if host["began"] else "", free_text(host)]))
    parts = [
        f"<details id=host-{number}{opened}><summary><h3>{escape(host['host'])}</h3>"
        f"{_mark(host['outcome'], _SIGNS[host['outcome']])} <span class=soft>{short}</span></summary>\n",
        _block("Cause", where + f"<pre>{_text(host['cause'])}</pre>" if host["cause"] else ""),
        _block("Refused", _list(host["refusals"])),
        _block("Not free", _list(gpus)),
        _block("Survivors", _rows(host["survivors"], ("pid", "name", "state", "waits_in", "why"))),
        _block("Timeline", _timeline(host)),
        _block("Who was ended, and why", _ended(host)),
        _block("Could not be seen", _list(host["problems"])),
        _block("Held at the end of the drain", _list([held_text(host)] if host["holds"] else host["held_units"])),
        _block("Story", _list(host["story"])),
        _block("Last lines of the engine's log", _pre(host["log"])),
        _folded("Left alone", _rows(host["left_alone"], ("pid", "command", "class", "owner", "why"))),
        _folded("Versions, records and values", _facts(_host_facts(host))),
        "</details>\n",
    ]
    return "".join(parts)


def _host_facts(host: Mapping[str, Any]) -> dict[str, Any]:
    names = sorted({gpu["name"] for gpu in host["gpus"] if gpu["name"]})
    return {
        **({"GPUs": ", ".join(names)} if names else {}),
        **host["versions"],
        **({"record on the host": ", ".join(host["records"])} if host["records"] else {}),
        **host["values"],
    }


def _timeline(host: Mapping[str, Any]) -> str:
    stages, samples = host["stages"], host["memory_samples"]
    ends = [stage["began"] + stage["seconds"] for stage in stages] + [sample["seconds"] for sample in samples]
    whole = max([host["seconds"], *ends, 0.001])
    rows = []
    for stage in stages[:_MOST_ROWS]:
        left, width = 100 * stage["began"] / whole, 100 * stage["seconds"] / whole
        back = " class=back" if stage["back"] else ""
        name = stage["name"] + (" (way back)" if stage["back"] else "")
        rows.append(
            f"<tr><th scope=row>{_text(name)}</th><td><div class=track>"
            f"<i{back} style='left:{min(left, 99.7):.2f}%;width:{min(width, 100 - left):.2f}%'></i></div></td>"
            f"<td class=number>{stage['seconds']:.1f} s</td></tr>\n"
        )
    if not rows:
        return ""
    actions = [f"{stage['name']}: {action}" for stage in stages for action in stage["actions"]]
    axis = f"<tr><td></td><td><div class=axis><span>0 s</span><span>{_seconds(whole)}</span></div></td><td></td></tr>\n"
    return (
        _table("time", "", ["Stage", "When", "Time"], [*rows, _curve(samples, whole), axis])
        + (_folded("What was done", _list(actions)) if actions else "")
    )  # fmt: skip


def _curve(samples: Sequence[Mapping[str, Any]], whole: float) -> str:
    """Memory on all GPUs together. It is known where it was looked at, so it falls in steps."""
    totals = [(sample["seconds"], sum(sample["used_mib"].values())) for sample in samples]
    if not totals:
        return ""
    most = max(1, *(used for dummy, used in totals))
    points = [(100 * at / whole, 38 - 36 * used / most) for at, used in totals]
    path = f"M{points[0][0]:.2f} {points[0][1]:.2f}" + "".join(f"H{x:.2f}V{y:.2f}" for x, y in points[1:]) + "H100"
    first, last = totals[0][1] / 1024, totals[-1][1] / 1024
    said = f"Memory in use on all GPUs together: {first:.0f} GiB at first, {last:.0f} GiB at the end of the drain"
    return (
        f"<tr><th scope=row>memory</th><td><svg viewBox='0 0 100 40' preserveAspectRatio=none role=img "
        f"aria-label='{said}'><path d='{path}V40H{points[0][0]:.2f}Z' fill='var(--curve)' opacity='.15'/>"
        f"<path d='{path}' fill=none stroke='var(--curve)' stroke-width=2 /></svg></td>"
        f"<td class=number>{first:.0f} → {last:.0f} GiB</td></tr>\n"
    )


def _ended(host: Mapping[str, Any]) -> str:
    units = [
        f"{unit.get('unit')} stopped in {unit.get('seconds')} s" + ", its cgroup was killed" * bool(unit.get("killed"))
        for unit in host["stopped_units"]
    ]
    owners = [
        f"{item.get('owner')} was not stopped: {item['error']}"
        if item.get("error")
        else f"{item.get('owner')} stopped in {item.get('seconds')} s"
        for item in host["stopped_owners"]
    ]
    return _list([*units, *owners]) + _rows(
        host["ended"], ("pid", "name", "signal", "seconds", "owner", "why", "command")
    )


# --- pieces -------------------------------------------------------------------------------------------------------


def _section(title: str, name: str, content: str) -> str:
    return f"<section aria-labelledby={name}>\n<h2 id={name}>{title}</h2>\n{content}</section>\n"


def _block(title: str, content: str) -> str:
    return f"<h4>{title}</h4>\n{content}\n" if content else ""


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n{content}</details>\n" if content else ""


def _table(name: str, caption: str, columns: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th scope=col>{escape(column)}</th>" for column in columns)
    said = f"<caption>{caption}</caption>" if caption else ""
    return f"<table class={name}>{said}<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody></table>\n"


def _rows(items: Sequence[Any], keys: Sequence[str]) -> str:
    """A table of what the items have of these keys."""
    known = [item for item in items if isinstance(item, Mapping)]
    used = [key for key in keys if any(item.get(key) not in (None, "", []) for item in known)]
    if not used:
        return ""
    rows = ("<tr>" + "".join(f"<td>{_text(_said(item.get(key)))}</td>" for key in used) + "</tr>\n" for item in known)
    left_out = sum(item["left_out"] for item in known if isinstance(item.get("left_out"), int))
    more = f"<p class=soft>and {left_out} more, in the record on the host</p>" if left_out else ""
    table = _table("plain", "", [key.replace("_", " ") for key in used], rows)
    return f"<div class=scroll tabindex=0 role=region aria-label='Processes'>{table}</div>{more}"


def _list(items: Iterable[Any]) -> str:
    lines = "".join(f"<li>{_text(_said(item))}</li>" for item in items)
    return f"<ul class=plain>{lines}</ul>\n" if lines else ""


def _pre(lines: Sequence[str]) -> str:
    return f"<pre>{_text(chr(10).join(map(str, lines)))}</pre>" if lines else ""


def _facts(facts: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(_said(value))}</dd>" for name, value in facts.items())
    return f"<dl>{rows}</dl>\n" if rows else ""


def _mark(name: str, sign: str = "") -> str:
    return f"<span class='mark {_TONES.get(name, 'none')}'>{sign}{' ' if sign else ''}{escape(_words(name))}</span>"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _said(value: Any) -> str:
    if isinstance(value, Mapping) and "kind" in value:
        return " ".join(str(item) for item in (value["kind"], value.get("name")) if item)
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return escape(str(value))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _mib(value: Any) -> str:
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else "?"


def _seconds(value: float) -> str:
    """As a person says it: 12.3 s, 4 min 05 s, 1 h 12 min."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
