# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module of the collection documents in the same words."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Will return details on what has changed or would change, when in diff mode.
  idempotent:
    description: When run twice in a row outside check mode with the same arguments, the second run changes nothing.
  platform:
    description: Target OS that can be operated against.
    platforms: linux
    support: full
    details:
      - Needs systemd 249, cgroup v2, kernel 5.14 and Python 3.9 or newer.
  action_group:
    description: Use C(group/gpuops.inference.gpuops) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - gpuops.inference.gpuops
"""

    READ_ONLY = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This module does not modify state.
  diff_mode:
    support: N/A
    details:
      - This module does not modify state.
  idempotent:
    support: full
    details:
      - This module does not modify state.
"""
