# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in a real browser. Pictures of it are left in .cache/report, to be looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpuops.inference.plugins.plugin_utils._report import FINISHED
from ansible_collections.gpuops.inference.plugins.plugin_utils._report_page import page

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit/plugins/plugin_utils"))

import report_cases as cases
from browser import Browser

PICTURES = Path(__file__).parents[2] / ".cache/report"
VIEWS = {"light": (1200, False), "dark": (1200, True), "phone": (390, False), "phone-dark": (390, True)}
HOSTILE = "<script>console.log(1)</script><img src=x onerror=console.log(2)>\x1b[31m'\"{}"

# What a reader needs to tell text from its ground: 4.5 to 1, as WCAG AA asks. Colours are as the browser computed them.
CONTRAST = """(() => {
  const channels = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = v => v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = rgb => rgb.slice(0, 3).map(linear)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (; element; element = element.parentElement) {
      const found = channels(getComputedStyle(element).backgroundColor);
      if (found.length == 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const poor = new Set();
  for (const element of document.querySelectorAll('body *')) {
    if (![...element.childNodes].some(node => node.nodeType == 3 && node.data.trim())) continue;
    const [a, b] = [light(channels(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.add(element.tagName + '.' + element.className);
  }
  return [...poor];
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    shown = Browser()
    yield shown
    shown.close()


def written(path: Path, size: int, name: str = "gpu-{:03d}.rack7.example.com") -> Path:
    run, end = cases.fleet(size, name)
    path.write_text(page(run.as_dict(end, FINISHED)), encoding="utf-8")
    return path


@pytest.mark.parametrize("view", VIEWS)
def test_it_is_shown_whole_and_readable(browser: Browser, tmp_path: Path, view: str) -> None:
    width, dark = VIEWS[view]
    path = written(tmp_path / "index.html", 8)
    browser.open(path, width, dark)
    browser.picture(PICTURES / f"{view}.png")
    assert browser.complaints == []
    assert browser.asked == [path.as_uri()], "nothing else is fetched"
    assert browser.run("document.documentElement.scrollWidth") <= width, "only tables scroll sideways"
    assert browser.run(CONTRAST) == []


HOSTS = "[...document.querySelectorAll('section > details')]"


def test_who_needs_somebody_is_unfolded_and_links_lead_to_all(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path / "index.html", 8))
    assert browser.run(f"{HOSTS}.filter(host => host.open).length") == 4
    assert browser.run("[...document.querySelectorAll('a[href^=\"#\"]')].every(a => document.querySelector(a.hash))")
    browser.run(f"{HOSTS}.filter(host => !host.open).forEach(host => host.querySelector('summary').click())")
    assert browser.run(f"{HOSTS}.every(host => host.open)")
    browser.picture(PICTURES / "unfolded.png")


def test_who_cannot_see_it_is_told_as_much(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path / "index.html", 8))
    browser.do("Accessibility.enable")
    nodes = browser.do("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]}
    assert {("heading", "Hosts"), ("heading", "GPUs before and after"), ("columnheader", "GPU 7")} <= named
    assert ("rowheader", "gpu-001.rack7.example.com") in named
    assert any(role == "image" and "Memory in use on all GPUs" in name for role, name in named)
    levels = browser.run("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:]))


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path / "index.html", 8, HOSTILE.replace("{", "{{").replace("}", "}}") + " {}"))
    assert browser.complaints == []
    assert len(browser.asked) == 1
    assert browser.run("document.querySelectorAll('script, img').length") == 0
    shown = HOSTILE.replace("\x1b", "\\x1b") + " 0"
    assert shown in browser.run("[...document.querySelectorAll('summary h3')].map(h => h.textContent)")


def test_two_hundred_hosts_take_less_than_two_seconds(browser: Browser, tmp_path: Path) -> None:
    # Its own processor time: on a busy machine everything takes long.
    browser.do("Performance.enable", timeDomain="threadTicks")
    before = browser.metric("TaskDuration")
    browser.open(written(tmp_path / "index.html", 200))
    seconds = browser.metric("TaskDuration") - before
    browser.picture(PICTURES / "two-hundred.png")
    assert browser.run("document.querySelectorAll('.grid tbody tr').length") == 200
    assert 0 < seconds < 2


def test_it_can_be_printed(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path / "index.html", 8)
    browser.open(path, dark=True, media="print")
    assert browser.run("getComputedStyle(document.body).color") == "rgb(0, 0, 0)", "no dark paper"
    folded = f"{HOSTS}.filter(host => !host.open)"
    assert browser.run(f"{folded}.length") == 4
    shown = f"{folded}.filter(host => host.lastElementChild.checkVisibility()).length"
    assert browser.run(shown) == 4, "what is folded on the screen is needed on paper"
    browser.open(path)
    assert browser.run(shown) == 0
    browser.open(path, dark=True, media="print")
    assert browser.paper(PICTURES / "paper.pdf").read_bytes().startswith(b"%PDF")
