#!/usr/bin/env bash
# Copyright (c) 2026 gpuops.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# What this collection replaces, as it is passed around. For a simulated host alone: it ends every Python program and
# every monitor it meets, and proves nothing.
[[ -d /usr/local/lib/gpusim ]] || { echo "recipe.sh: this is no simulated host" >&2; exit 1; }

systemctl stop vllm
sleep 3
# shellcheck disable=SC2009  # as it is passed around
ps aux | grep python3 | grep -v grep | awk '{print $2}' | xargs -r kill -9
sleep 3
fuser /dev/nvidia* 2>/dev/null | xargs -r kill -9
sleep 2
nvidia-smi | head -2
