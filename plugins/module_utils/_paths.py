# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# This module util is PRIVATE to the collection; it can change in any release.
"""Every path that the collection owns on a managed host."""

from __future__ import annotations

from pathlib import Path

RUN = Path("/run/gpuops")
"""Volatile state, root 0700: gone after a reboot, as the processes it speaks of are."""
LOCK = RUN / "lock"
HOLDS = RUN / "hold"
OWED = RUN / "owed"
"""Engine units that ran before a drain whose hold is lifted, and that have not answered since."""
PROGRESS = RUN / "progress"
WORKERS = RUN / "workers"
"""A note per running query process; one that is left speaks of a process that got stuck."""

STATE = Path("/var/lib/gpuops")
"""Lasting state, root 0700: what a second run must find after a reboot."""
PIVOT = STATE / "pivot.json"
RECORDS = STATE / "records"
RESERVES = STATE / "reserves.json"
"""What an old driver counts as used of each GPU though nobody uses it, learnt while that was so."""
KEPT_HOLDS = STATE / "hold"
"""Holds that a reboot does not end, and below what is owed after them."""
KEPT_OWED = STATE / "owed"
BACKUPS = STATE / "backups"
STARTS = STATE / "starts"

GUARD = Path("/opt/gpuops/engine_guard.py")
"""What a unit asks before it starts; the units name it."""

VENV_PYTHON = Path("/opt/gpuops/venv/bin/python")
"""The interpreter with nvidia-ml-py and psutil that the role gpu_host makes."""

CONFIG = Path("/etc/gpuops")
"""UNIT.env (0644) and UNIT.secrets (0600), read by systemd for the engine units."""

RUNTIME_UNITS = Path("/run/systemd/system")
SYSTEM_UNITS = Path("/etc/systemd/system")
