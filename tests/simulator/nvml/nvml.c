// Copyright (c) 2026 gpuops.inference contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// A libnvidia-ml.so.1 that tells of simulated GPUs, against NVIDIA's own header, so that every real client binds to it.
//
// ROOT/gpus            one GPU a line: index uuid busid minor total_mib reserved_mib name
// ROOT/alloc/INDEX/*   one allocation a file, "pid mib kind"; it lives as long as somebody holds its flock
// ROOT/faults/NAME     a fault that is switched on, with its parameter (tests/simulator/README.md lists them)

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

#define DRIVER_VERSION "580.126.09"
#define NVML_VERSION "13." DRIVER_VERSION
#define MIB (1024ULL * 1024ULL)
#define MAX_GPUS 64
#define MAX_USES 4096
#define COMPUTE 'c'
#define GRAPHICS 'g'
#define MPS 'm'

struct nvmlDevice_st {
    unsigned index, minor, bus;
    unsigned long long total, reserved;  // MiB
    char uuid[96], bus_id[32], name[96];
    int node;  // descriptor of /dev/nvidiaMINOR
};

typedef struct {
    unsigned pid;
    unsigned long long mib;
    char kind;
} Use;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int users = 0;
static int control = -1;
static unsigned present = 0;
static struct nvmlDevice_st gpus[MAX_GPUS];

// --- the simulator's files -----------------------------------------------------------------------------------------

static const char *root(void) {
    const char *path = getenv("GPUSIM_ROOT");
    return path ? path : "/var/lib/gpusim";
}

static const char *dev(void) {
    const char *path = getenv("GPUSIM_DEV");
    return path ? path : "/dev";
}

// Whether a fault is on; its parameter goes to value. index < 0: a fault of the whole host.
static int fault(const char *name, int index, char value[256]) {
    char path[PATH_MAX], suffix[16] = "";
    if (index >= 0)
        snprintf(suffix, sizeof suffix, ".%d", index);
    snprintf(path, sizeof path, "%s/faults/%s%s", root(), name, suffix);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, value, 255);
    close(fd);
    length = length < 0 ? 0 : length;
    while (length > 0 && isspace((unsigned char)value[length - 1]))
        length--;
    value[length] = 0;
    return 1;
}

// The parameter "query" spares nvmlInit. A path is written to: on a frozen file system that is an uninterruptible sleep.
static void hang(int initialising) {
    char value[256];
    if (!fault("hang", -1, value) || (initialising && !strcmp(value, "query")))
        return;
    if (value[0] == '/') {
        int fd = open(value, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd >= 0)
            close(fd);
        return;
    }
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

// The driver takes its time to give memory back: a dead allocation counts until `delay` seconds after it was first
// seen dead, which its mode remembers (nobody is told when a lock goes).
static int lingers(int fd, double delay) {
    struct stat now_dead;
    struct timespec now;
    if (fstat(fd, &now_dead))
        return 0;
    if (now_dead.st_mode & 0222) {
        if (futimens(fd, NULL) || fchmod(fd, 0444))
            return 0;
        return delay > 0;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    double age = (double)(now.tv_sec - now_dead.st_mtim.tv_sec) + 1e-9 * (double)(now.tv_nsec - now_dead.st_mtim.tv_nsec);
    return age < delay;
}

// All that lives on a GPU, one entry for each process and kind. Returns the count, and the allocated MiB in *used.
static unsigned scan(nvmlDevice_t gpu, Use uses[MAX_USES], unsigned long long *used) {
    char path[PATH_MAX], value[256];
    unsigned count = 0;
    double delay = fault("release-delay", -1, value) ? atof(value) : 0;
    *used = fault("leak", (int)gpu->index, value) ? strtoull(value, NULL, 10) : 0;
    if (fault("ghost", (int)gpu->index, value)) {
        uses[count].kind = COMPUTE;
        if (sscanf(value, "%u %llu", &uses[count].pid, &uses[count].mib) == 2)
            *used += uses[count++].mib;
    }
    snprintf(path, sizeof path, "%s/alloc/%u", root(), gpu->index);
    DIR *directory = opendir(path);
    if (!directory)
        return count;
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        char text[64] = "", kind;
        unsigned pid, i;
        unsigned long long mib;
        if (entry->d_name[0] == '.')
            continue;
        int fd = openat(dirfd(directory), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        int lives = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
        int counts = lives || lingers(fd, delay);
        ssize_t length = counts ? read(fd, text, sizeof text - 1) : 0;
        close(fd);
        if (length <= 0 || sscanf(text, "%u %llu %c", &pid, &mib, &kind) != 3)
            continue;
        *used += mib;
        if (!lives)
            continue;
        for (i = 0; i < count && (uses[i].pid != pid || uses[i].kind != kind); i++)
            ;
        if (i == count) {
            if (count == MAX_USES)
                continue;
            uses[count++] = (Use){pid, 0, kind};
        }
        uses[i].mib += mib;
    }
    closedir(directory);
    return count;
}

// --- life ------------------------------------------------------------------------------------------------------------

static int open_node(const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dev(), name);
    return open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

static void close_all(void) {
    for (unsigned i = 0; i < present; i++)
        if (gpus[i].node >= 0)
            close(gpus[i].node);
    if (control >= 0)
        close(control);
    control = -1;
    present = 0;
}

static nvmlReturn_t open_all(void) {
    char path[PATH_MAX], line[512], value[256];
    if (fault("version-mismatch", -1, value))
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (fault("slow-init", -1, value)) {
        double seconds = atof(value);
        struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        nanosleep(&time, NULL);
    }
    control = open_node("nvidiactl");
    if (control < 0)
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    hang(1);
    snprintf(path, sizeof path, "%s/gpus", root());
    FILE *table = fopen(path, "re");
    if (!table)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    unsigned visible = fault("count", -1, value) ? (unsigned)atoi(value) : MAX_GPUS;
    while (present < visible && present < MAX_GPUS && fgets(line, sizeof line, table)) {
        struct nvmlDevice_st *gpu = &gpus[present];
        char node[32];
        if (sscanf(line, "%u %95s %31s %u %llu %llu %95[^\n]", &gpu->index, gpu->uuid, gpu->bus_id, &gpu->minor,
                   &gpu->total, &gpu->reserved, gpu->name) != 7)
            continue;
        sscanf(gpu->bus_id, "%*x:%x", &gpu->bus);
        snprintf(node, sizeof node, "nvidia%u", gpu->minor);
        gpu->node = open_node(node);
        present++;
    }
    fclose(table);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&guard);
    if (!users && (result = open_all()))
        close_all();
    if (!result)
        users++;
    pthread_mutex_unlock(&guard);
    return result;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&guard);
    int before = users;
    if (users && !--users)
        close_all();
    pthread_mutex_unlock(&guard);
    return before ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "Blocked by operating system",
        "RM has detected an NVML/RM version mismatch.", "In use by another client", "Insufficient Memory", "No data",
        "ECC is not supported on vGPU", "Insufficient resources", "Frequency not supported",
        "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state",
        "Reset type not supported"};
    return (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "Unknown Error";
}

// --- the system ------------------------------------------------------------------------------------------------------

static nvmlReturn_t copy(const char *text, char *target, unsigned length) {
    if (!target)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(target, text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    return users ? copy(DRIVER_VERSION, version, length) : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    return copy(NVML_VERSION, version, length);  // answered before nvmlInit too
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    char path[64], text[1024] = "";
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (!name || !length)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    snprintf(name, length, "%s", got > 0 ? text : "");
    return NVML_SUCCESS;
}

// --- one GPU ---------------------------------------------------------------------------------------------------------

// Every call on a device begins with this.
static nvmlReturn_t check(nvmlDevice_t gpu) {
    char value[256];
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (gpu < gpus || gpu >= gpus + present)
        return NVML_ERROR_INVALID_ARGUMENT;
    hang(0);
    return fault("gpu-lost", (int)gpu->index, value) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

#define CHECK(gpu)                     \
    do {                               \
        nvmlReturn_t failed = check(gpu); \
        if (failed)                    \
            return failed;             \
    } while (0)

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    *count = present;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static nvmlReturn_t handle(unsigned position, nvmlDevice_t *gpu) {
    CHECK(&gpus[position]);
    if (gpus[position].node < 0)
        return NVML_ERROR_NO_PERMISSION;
    *gpu = &gpus[position];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *gpu) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    return index < present && gpu ? handle(index, gpu) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *gpu) {
    return nvmlDeviceGetHandleByIndex_v2(index, gpu);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *gpu) {
    for (unsigned i = 0; i < present; i++)
        if (!strcmp(gpus[i].uuid, uuid))
            return handle(i, gpu);
    return users ? NVML_ERROR_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *gpu) {
    for (unsigned i = 0; i < present; i++)  // the domain may be short (0000:01:00.0) or left out (01:00.0)
        if (strlen(bus_id) >= 7 && !strcasecmp(strchr(gpus[i].bus_id, ':') + 1, bus_id + strlen(bus_id) - 7))
            return handle(i, gpu);
    return users ? NVML_ERROR_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *gpu) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, gpu);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t gpu, nvmlPciInfo_t *pci) {
    CHECK(gpu);
    memset(pci, 0, sizeof *pci);
    pci->bus = gpu->bus;
    pci->pciDeviceId = 0x2BB510DE;
    pci->pciSubSystemId = 0x204E10DE;
    snprintf(pci->busId, sizeof pci->busId, "%s", gpu->bus_id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000%.11s", strchr(gpu->bus_id, ':'));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t gpu, nvmlPciInfo_t *pci) { return nvmlDeviceGetPciInfo_v3(gpu, pci); }

// Calls that answer with one text, or with one number.
#define TEXT(function, expression)                                            \
    nvmlReturn_t function(nvmlDevice_t gpu, char *target, unsigned length) {  \
        CHECK(gpu);                                                           \
        return copy(expression, target, length);                              \
    }
#define VALUE(function, type, expression)                                     \
    nvmlReturn_t function(nvmlDevice_t gpu, type *target) {                   \
        CHECK(gpu);                                                           \
        *target = expression;                                                 \
        return NVML_SUCCESS;                                                  \
    }

TEXT(nvmlDeviceGetName, gpu->name)
TEXT(nvmlDeviceGetUUID, gpu->uuid)
TEXT(nvmlDeviceGetVbiosVersion, "98.02.6A.00.03")
VALUE(nvmlDeviceGetIndex, unsigned, gpu->index)
VALUE(nvmlDeviceGetMinorNumber, unsigned, gpu->minor)
VALUE(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA_RTX)
VALUE(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, NVML_DEVICE_ARCH_BLACKWELL)
VALUE(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
VALUE(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
VALUE(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
VALUE(nvmlDeviceGetComputeMode, nvmlComputeMode_t, NVML_COMPUTEMODE_DEFAULT)
VALUE(nvmlDeviceGetPerformanceState, nvmlPstates_t, NVML_PSTATE_8)
VALUE(nvmlDeviceGetPowerUsage, unsigned, 31000 + 137 * gpu->index)
VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned, 600000)
VALUE(nvmlDeviceGetPowerManagementLimit, unsigned, 600000)
VALUE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
VALUE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
VALUE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t gpu, nvmlTemperatureSensors_t sensor, unsigned *celsius) {
    CHECK(gpu);
    (void)sensor;
    *celsius = 31 + gpu->index % 5;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t gpu, nvmlUtilization_t *utilization) {
    CHECK(gpu);
    *utilization = (nvmlUtilization_t){0, 0};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t gpu, int *major, int *minor) {
    CHECK(gpu);
    *major = 12;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t gpu, unsigned *current, unsigned *pending) {
    char value[256];
    CHECK(gpu);
    *current = *pending = fault("mig", (int)gpu->index, value) ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t gpu, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
    CHECK(gpu);
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

// --- health ----------------------------------------------------------------------------------------------------------

// Reads the numbers of a fault into values, which hold what is so without it.
#define HEALTH(gpu, name, format, ...)                                                  \
    do {                                                                                \
        char text[256];                                                                 \
        CHECK(gpu);                                                                     \
        if (fault("health-error", (int)(gpu)->index, text))                             \
            return (nvmlReturn_t)atoi(text);                                            \
        if (fault(name, (int)(gpu)->index, text) && sscanf(text, format, __VA_ARGS__) < 1) \
            return NVML_ERROR_UNKNOWN;                                                  \
    } while (0)

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t gpu, unsigned *width) {
    *width = 16;
    HEALTH(gpu, "pcie-width", "%u", width);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t gpu, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                         unsigned long long *errors) {
    unsigned long long since_load = 0, lifetime = 0;
    HEALTH(gpu, "ecc", "%llu %llu", &since_load, &lifetime);
    *errors = type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? 0 : counter == NVML_VOLATILE_ECC ? since_load : lifetime;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t gpu, unsigned *correctable, unsigned *uncorrectable,
                                       unsigned *pending, unsigned *failure) {
    *correctable = *uncorrectable = *pending = *failure = 0;
    HEALTH(gpu, "remap", "%u %u %u %u", correctable, uncorrectable, pending, failure);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t gpu, unsigned long long *reasons) {
    *reasons = nvmlClocksEventReasonGpuIdle;
    HEALTH(gpu, "slowdown", "%llu", reasons);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t gpu, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(gpu, reasons);
}

// Cards without NVLink to a switch, as here, have no fabric: only the fault gives them one.
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t gpu, nvmlGpuFabricInfo_t *info) {
    unsigned state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, failed = NVML_SUCCESS;
    HEALTH(gpu, "fabric", "%u %u", &state, &failed);
    if (state == NVML_GPU_FABRIC_STATE_NOT_SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->state = (nvmlGpuFabricState_t)state;
    info->status = (nvmlReturn_t)failed;
    return NVML_SUCCESS;
}

// --- memory and processes --------------------------------------------------------------------------------------------

static nvmlReturn_t used_mib(nvmlDevice_t gpu, unsigned long long *used) {
    static _Thread_local Use uses[MAX_USES];
    char value[256];
    CHECK(gpu);
    if (fault("na", (int)gpu->index, value))
        return NVML_ERROR_NOT_SUPPORTED;
    scan(gpu, uses, used);
    unsigned long long most = gpu->total - gpu->reserved;
    *used = *used < most ? *used : most;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t gpu, nvmlMemory_t *memory) {
    unsigned long long used;
    nvmlReturn_t failed = used_mib(gpu, &used);
    if (failed)
        return failed;
    memory->total = gpu->total * MIB;
    memory->used = (gpu->reserved + used) * MIB;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t gpu, nvmlMemory_v2_t *memory) {
    unsigned long long used;
    char value[256];
    if (fault("no-memory-v2", -1, value))
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t failed = used_mib(gpu, &used);
    if (failed)
        return failed;
    memory->total = gpu->total * MIB;
    memory->reserved = gpu->reserved * MIB;
    memory->used = used * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

// The processes of one kind, in structs of v1 (pid and memory only) or of v2 and v3.
static nvmlReturn_t processes(nvmlDevice_t gpu, char kind, unsigned *count, void *infos, size_t size) {
    static _Thread_local Use uses[MAX_USES];
    unsigned long long used;
    unsigned room, found = 0;
    CHECK(gpu);
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    room = infos ? *count : 0;
    unsigned all = scan(gpu, uses, &used);
    for (unsigned i = 0; i < all; i++) {
        if (uses[i].kind != kind)
            continue;
        if (found < room) {
            nvmlProcessInfo_t info = {uses[i].pid, uses[i].mib * MIB, UINT_MAX, UINT_MAX};
            memcpy((char *)infos + found * size, &info, size);  // v1 is the beginning of v2
        }
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

// The symbols of a driver's age: before R450 (LISTS 1) no list has a version, before R510 (LISTS 2) none is _v3.
#ifndef LISTS
#define LISTS 3
#endif

#define LIST(name, kind, type, record)                                    \
    nvmlReturn_t name(nvmlDevice_t gpu, unsigned *count, type *infos) {   \
        return processes(gpu, kind, count, infos, sizeof(record));        \
    }

#if LISTS == 535
// R535.43 to R535.85 answer _v3 with longer records (and have this symbol, not nvmlDeviceGetRunningProcessDetailList).
typedef struct {
    nvmlProcessInfo_t info;
    unsigned long long protected_memory;
} LongInfo;
#define LIST_V3(name, kind) LIST(name##_v3, kind, nvmlProcessInfo_t, LongInfo)
nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t gpu, nvmlConfComputeMemSizeInfo_t *info) {
    (void)gpu, (void)info;
    return NVML_ERROR_NOT_SUPPORTED;
}
#elif LISTS >= 3
#define LIST_V3(name, kind) LIST(name##_v3, kind, nvmlProcessInfo_t, nvmlProcessInfo_t)
#else
#define LIST_V3(name, kind)
#endif

#if LISTS >= 2
#define LIST_V2(name, kind) LIST(name##_v2, kind, nvmlProcessInfo_v2_t, nvmlProcessInfo_v2_t)
#else
#define LIST_V2(name, kind)
#endif

#define PROCESSES(name, kind)                                     \
    LIST(name, kind, nvmlProcessInfo_v1_t, nvmlProcessInfo_v1_t)  \
    LIST_V2(name, kind)                                           \
    LIST_V3(name, kind)

PROCESSES(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, MPS)
