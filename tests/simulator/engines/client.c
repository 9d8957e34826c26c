// Copyright (c) 2026 gpuops.inference contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// A program that holds the GPUs open, as monitors do through NVML: nvidiactl and every node, no uvm, no context.
// Installed under the names of the programs it stands for. GPUSIM_MEMORY=INDEX:MIB makes it a user of that GPU:
// uvm and a context besides. All arguments are ignored, so that its command line can be the real one.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static void node(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/%s", name);
    if (open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC) < 0) {
        perror(path);
        exit(1);
    }
}

int main(void)
{
    char line[256], name[32], text[64];
    int index, minor, mib;
    FILE *gpus = fopen("/var/lib/gpusim/gpus", "re");
    if (!gpus) {
        perror("/var/lib/gpusim/gpus");
        return 1;
    }
    node("nvidiactl");
    while (fgets(line, sizeof line, gpus))
        if (sscanf(line, "%d %*s %*s %d", &index, &minor) == 2) {
            snprintf(name, sizeof name, "nvidia%d", minor);
            node(name);
        }
    fclose(gpus);
    const char *memory = getenv("GPUSIM_MEMORY");
    if (memory && sscanf(memory, "%d:%d", &index, &mib) == 2) {
        node("nvidia-uvm");
        char unnamed[64], path[64];
        snprintf(unnamed, sizeof unnamed, "/var/lib/gpusim/alloc/%d/.%d", index, getpid());
        snprintf(path, sizeof path, "/var/lib/gpusim/alloc/%d/%d", index, getpid());
        int fd = open(unnamed, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        int length = snprintf(text, sizeof text, "%d %9d compute\n", getpid(), mib);
        if (fd < 0 || flock(fd, LOCK_EX) || write(fd, text, length) != length || rename(unnamed, path)) {
            perror(path);
            return 1;
        }
    }
    for (;;)
        pause();
}
