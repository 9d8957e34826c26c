# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How Hypothesis searches: anew each time for whoever works here, the same each time in CI."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import configuration, settings

configuration.set_hypothesis_home_dir(Path(__file__).parents[2] / ".cache/hypothesis")
settings.register_profile(
    "gpuops",
    # A busy machine is slow, not wrong.
    deadline=None,
    derandomize="CI" in os.environ,
)
settings.load_profile("gpuops")
