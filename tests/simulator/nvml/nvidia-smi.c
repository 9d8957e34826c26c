// Copyright (c) 2026 gpuops.inference contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// nvidia-smi of the simulated GPUs: the table, -L, --query-gpu and --query-compute-apps, on top of libnvidia-ml.so.1.
// What failed is told as the real one tells it: in the value's place, or by a message and NVML's error number as status.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "nvml.h"

#define MIB (1024ULL * 1024ULL)
#define MAX_GPUS 64
#define MAX_PROCESSES 4096

// The library is looked for when running, as the real program does, so that its absence is a message.
static void *library;
#define NVML(name) ((__typeof__(&name))nvml_symbol(#name))

static void *nvml_symbol(const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) {
        printf("NVIDIA-SMI: %s is missing in the library\n", name);
        exit(NVML_ERROR_FUNCTION_NOT_FOUND);
    }
    return symbol;
}

typedef struct {
    unsigned index;
    nvmlDevice_t handle;
    char name[96], uuid[96], bus_id[32];
} Gpu;

static Gpu gpus[MAX_GPUS];
static unsigned shown, total;
static int status;  // exit status: the last error told

static const char *problem(nvmlReturn_t failed) {
    switch (failed) {
        case NVML_ERROR_NOT_SUPPORTED: return "[N/A]";
        case NVML_ERROR_NO_PERMISSION: return "[Insufficient Permissions]";
        case NVML_ERROR_GPU_IS_LOST: return "[GPU is lost]";
        case NVML_ERROR_RESET_REQUIRED: return "[GPU requires reset]";
        case NVML_ERROR_NOT_FOUND: return "[Not Found]";
        default: return "[Unknown Error]";
    }
}

static int die(nvmlReturn_t failed) {
    if (failed == NVML_ERROR_DRIVER_NOT_LOADED) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
             "NVIDIA driver is installed and running.\n");
    } else {
        char version[96] = "";
        const char *text = failed == NVML_ERROR_LIB_RM_VERSION_MISMATCH ? "Driver/library version mismatch"
                                                                        : NVML(nvmlErrorString)(failed);
        printf("Failed to initialize NVML: %s\n", text);
        if (failed == NVML_ERROR_LIB_RM_VERSION_MISMATCH && !NVML(nvmlSystemGetNVMLVersion)(version, sizeof version))
            printf("NVML library version: %.7s\n", version + 3);
    }
    return (int)failed;
}

static int is_wanted(const Gpu *gpu, const char *wanted) {
    char list[1024], index[16];
    if (!wanted)
        return 1;
    snprintf(list, sizeof list, "%s", wanted);
    snprintf(index, sizeof index, "%u", gpu->index);
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ","))
        if (!strcmp(name, index) || !strcmp(name, gpu->uuid) || !strcasecmp(name, gpu->bus_id))
            return 1;
    return 0;
}

static void find_gpus(const char *wanted) {
    NVML(nvmlDeviceGetCount_v2)(&total);
    for (unsigned i = 0; i < total && i < MAX_GPUS; i++) {
        Gpu *gpu = &gpus[shown];
        nvmlPciInfo_t pci;
        gpu->index = i;
        nvmlReturn_t failed = NVML(nvmlDeviceGetHandleByIndex_v2)(i, &gpu->handle);
        if (failed) {
            printf("Unable to determine the device handle for GPU%u: %s%s\n", i, NVML(nvmlErrorString)(failed),
                   failed == NVML_ERROR_GPU_IS_LOST ? ".  Reboot the system to recover this GPU" : "");
            status = (int)failed;
            continue;
        }
        NVML(nvmlDeviceGetName)(gpu->handle, gpu->name, sizeof gpu->name);
        NVML(nvmlDeviceGetUUID)(gpu->handle, gpu->uuid, sizeof gpu->uuid);
        NVML(nvmlDeviceGetPciInfo_v3)(gpu->handle, &pci);
        snprintf(gpu->bus_id, sizeof gpu->bus_id, "%s", pci.busId);
        shown += (unsigned)is_wanted(gpu, wanted);
    }
}

static unsigned processes(const Gpu *gpu, int graphics, nvmlProcessInfo_t *infos) {
    unsigned count = MAX_PROCESSES;
    nvmlReturn_t failed = graphics
        ? NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)(gpu->handle, &count, infos)
        : NVML(nvmlDeviceGetComputeRunningProcesses_v3)(gpu->handle, &count, infos);
    return failed ? 0 : count;
}

// --- one value -------------------------------------------------------------------------------------------------------

typedef struct {
    char text[256];
    const char *unit;  // "" for none
} Value;

static Value say(const char *text) {
    Value value = {"", ""};
    snprintf(value.text, sizeof value.text, "%s", text);
    return value;
}

static Value number(nvmlReturn_t failed, unsigned long long amount, const char *unit) {
    if (failed)
        return say(problem(failed));
    Value value = {"", unit};
    snprintf(value.text, sizeof value.text, "%llu", amount);
    return value;
}

// By pointer: the call that fills `on` in is mostly an argument of the same call.
static Value toggle(nvmlReturn_t failed, const unsigned *on) {
    return say(failed ? problem(failed) : *on ? "Enabled" : "Disabled");
}

static int is(const char *field, const char *name, const char *alias) {
    return !strcmp(field, name) || (alias && !strcmp(field, alias));
}

// The value of a --query-gpu field; 0 if there is no such field.
static int gpu_value(const Gpu *gpu, const char *field, Value *value) {
    unsigned one = 0, two = 0;
    if (is(field, "index", NULL)) {
        *value = number(0, gpu->index, "");
    } else if (is(field, "count", NULL)) {
        *value = number(0, total, "");
    } else if (is(field, "uuid", "gpu_uuid")) {
        *value = say(gpu->uuid);
    } else if (is(field, "name", "gpu_name")) {
        *value = say(gpu->name);
    } else if (is(field, "pci.bus_id", "gpu_bus_id")) {
        *value = say(gpu->bus_id);
    } else if (is(field, "driver_version", NULL)) {
        NVML(nvmlSystemGetDriverVersion)(value->text, sizeof value->text);
        value->unit = "";
    } else if (!strncmp(field, "memory.", 7)) {
        nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
        nvmlReturn_t failed = NVML(nvmlDeviceGetMemoryInfo_v2)(gpu->handle, &memory);
        const char *which = field + 7;
        unsigned long long bytes = !strcmp(which, "total") ? memory.total : !strcmp(which, "used") ? memory.used
                                 : !strcmp(which, "free") ? memory.free : memory.reserved;
        *value = number(failed, bytes / MIB, "MiB");
        return strstr("total used free reserved", which) != NULL;
    } else if (is(field, "persistence_mode", NULL)) {
        nvmlEnableState_t mode = 0;
        *value = toggle(NVML(nvmlDeviceGetPersistenceMode)(gpu->handle, &mode), &mode);
    } else if (is(field, "mig.mode.current", "mig.mode.pending")) {
        *value = toggle(NVML(nvmlDeviceGetMigMode)(gpu->handle, &one, &two), &one);
    } else if (is(field, "ecc.mode.current", "ecc.mode.pending")) {
        nvmlEnableState_t now = 0, next = 0;
        *value = toggle(NVML(nvmlDeviceGetEccMode)(gpu->handle, &now, &next), &now);
    } else if (is(field, "utilization.gpu", "utilization.memory")) {
        nvmlUtilization_t rates = {0, 0};
        nvmlReturn_t failed = NVML(nvmlDeviceGetUtilizationRates)(gpu->handle, &rates);
        *value = number(failed, strcmp(field, "utilization.gpu") ? rates.memory : rates.gpu, "%");
    } else if (is(field, "temperature.gpu", NULL)) {
        nvmlReturn_t failed = NVML(nvmlDeviceGetTemperature)(gpu->handle, NVML_TEMPERATURE_GPU, &one);
        *value = number(failed, one, "");
    } else if (is(field, "power.draw", "power.limit")) {
        nvmlReturn_t failed = strcmp(field, "power.draw") ? NVML(nvmlDeviceGetEnforcedPowerLimit)(gpu->handle, &one)
                                                          : NVML(nvmlDeviceGetPowerUsage)(gpu->handle, &one);
        *value = number(failed, 0, "W");
        if (!failed)
            snprintf(value->text, sizeof value->text, "%.2f", one / 1000.0);
    } else if (is(field, "compute_cap", NULL)) {
        int major = 0, minor = 0;
        NVML(nvmlDeviceGetCudaComputeCapability)(gpu->handle, &major, &minor);
        *value = say("");
        snprintf(value->text, sizeof value->text, "%d.%d", major, minor);
    } else if (is(field, "compute_mode", NULL)) {
        *value = say("Default");
    } else if (is(field, "pstate", NULL)) {
        *value = say("P8");
    } else if (is(field, "serial", "gpu_serial")) {
        *value = say("[N/A]");
    } else {
        return 0;
    }
    return 1;
}

static int app_value(const Gpu *gpu, const nvmlProcessInfo_t *process, const char *field, Value *value) {
    if (is(field, "pid", NULL)) {
        *value = number(0, process->pid, "");
    } else if (is(field, "process_name", "name")) {
        char name[256];
        nvmlReturn_t failed = NVML(nvmlSystemGetProcessName)(process->pid, name, sizeof name);
        *value = say(failed ? problem(failed) : name);
    } else if (is(field, "used_memory", "used_gpu_memory")) {
        *value = number(0, process->usedGpuMemory / MIB, "MiB");
    } else if (!strncmp(field, "gpu_", 4)) {
        return gpu_value(gpu, field, value);
    } else {
        return 0;
    }
    return 1;
}

// --- what is printed -------------------------------------------------------------------------------------------------

typedef struct {
    char *fields[64];
    unsigned count;
    int header, units;
} Query;

static void row(const Query *query, const Gpu *gpu, const nvmlProcessInfo_t *process, int heading) {
    for (unsigned i = 0; i < query->count; i++) {
        Value value = {"", ""};
        int known = process ? app_value(gpu, process, query->fields[i], &value)
                            : gpu_value(gpu, query->fields[i], &value);
        if (!known) {
            printf("Field \"%s\" is not a valid field to query.\n\n", query->fields[i]);
            exit(NVML_ERROR_INVALID_ARGUMENT);
        }
        if (heading)
            printf("%s%s%s%s", query->fields[i], *value.unit ? " [" : "", value.unit, *value.unit ? "]" : "");
        else
            printf("%s%s%s", value.text, query->units && *value.unit ? " " : "", query->units ? value.unit : "");
        printf(i + 1 < query->count ? ", " : "\n");
    }
}

static void print_query(const Query *query, int apps) {
    static nvmlProcessInfo_t infos[MAX_PROCESSES];
    static const nvmlProcessInfo_t nobody;
    if (query->header && shown)
        row(query, &gpus[0], apps ? &nobody : NULL, 1);
    for (unsigned i = 0; i < shown; i++) {
        unsigned count = apps ? processes(&gpus[i], 0, infos) : 0;
        for (unsigned p = 0; p < count; p++)
            row(query, &gpus[i], &infos[p], 0);
        if (!apps)
            row(query, &gpus[i], NULL, 0);
    }
}

static void print_list(void) {
    for (unsigned i = 0; i < shown; i++)
        printf("GPU %u: %s (UUID: %s)\n", gpus[i].index, gpus[i].name, gpus[i].uuid);
}

#define RULE "+-----------------------------------------------------------------------------------------+\n"
#define COLUMNS "+-----------------------------------------+------------------------+----------------------+\n"

static void print_gpu(const Gpu *gpu) {
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    nvmlUtilization_t rates = {0, 0};
    nvmlEnableState_t persistence = 0;
    unsigned celsius = 0, milliwatt = 0, limit = 0, mig = 0, pending = 0;
    char name[32], usage[64], text[64];
    NVML(nvmlDeviceGetPersistenceMode)(gpu->handle, &persistence);
    NVML(nvmlDeviceGetTemperature)(gpu->handle, NVML_TEMPERATURE_GPU, &celsius);
    NVML(nvmlDeviceGetPowerUsage)(gpu->handle, &milliwatt);
    NVML(nvmlDeviceGetEnforcedPowerLimit)(gpu->handle, &limit);
    NVML(nvmlDeviceGetMigMode)(gpu->handle, &mig, &pending);
    NVML(nvmlDeviceGetUtilizationRates)(gpu->handle, &rates);
    snprintf(name, sizeof name, strlen(gpu->name) > 27 ? "%.24s..." : "%s", gpu->name);
    if (NVML(nvmlDeviceGetMemoryInfo_v2)(gpu->handle, &memory))
        snprintf(usage, sizeof usage, "N/A");
    else
        snprintf(usage, sizeof usage, "%lluMiB / %6lluMiB", memory.used / MIB, memory.total / MIB);
    snprintf(text, sizeof text, "%uW / %4uW", milliwatt / 1000, limit / 1000);
    printf("| %3u  %-27s    %-3s | %18s Off | %20s |\n", gpu->index, name, persistence ? "On" : "Off", gpu->bus_id, "0");
    printf("| N/A  %3uC    P8 %23s | %22s | %6u%%      Default |\n", celsius, text, usage, rates.gpu);
    printf("| %39s | %22s | %20s |\n" COLUMNS, "", "", mig ? "Enabled" : "Disabled");
}

static void print_processes(void) {
    static nvmlProcessInfo_t infos[MAX_PROCESSES];
    unsigned listed = 0;
    printf("\n" RULE "| %-87s |\n| %-87s |\n| %-87s |\n", "Processes:",
           " GPU   GI   CI              PID   Type   Process name                        GPU Memory",
           "       ID   ID                                                               Usage     ");
    printf("|=========================================================================================|\n");
    for (unsigned i = 0; i < shown; i++)
        for (int graphics = 0; graphics < 2; graphics++) {
            unsigned count = processes(&gpus[i], graphics, infos);
            for (unsigned p = 0; p < count; p++, listed++) {
                char name[256];
                if (NVML(nvmlSystemGetProcessName)(infos[p].pid, name, sizeof name))
                    snprintf(name, sizeof name, "[Not Found]");
                printf("|  %3u   N/A  N/A %15u %6s   %-33.33s %9lluMiB |\n", gpus[i].index, infos[p].pid,
                       graphics ? "G" : "C", name, infos[p].usedGpuMemory / MIB);
            }
        }
    if (!listed)
        printf("| %-87s |\n", " No running processes found");
    printf(RULE);
}

static void print_table(void) {
    char driver[96], heading[128];
    time_t now = time(NULL);
    NVML(nvmlSystemGetDriverVersion)(driver, sizeof driver);
    strftime(heading, sizeof heading, "%a %b %e %H:%M:%S %Y", localtime(&now));
    printf("%s       \n" RULE, heading);
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n" COLUMNS, driver, driver, "13.0");
    printf("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n");
    printf("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n");
    printf("|                                         |                        |               MIG M. |\n");
    printf("|=========================================+========================+======================|\n");
    for (unsigned i = 0; i < shown; i++)
        print_gpu(&gpus[i]);
    print_processes();
}

static void usage_error(void) {
    puts("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
    exit(NVML_ERROR_INVALID_ARGUMENT);
}

int main(int argc, char **argv) {
    Query query = {.header = 1, .units = 1};
    const char *wanted = NULL;
    char *fields = NULL;
    int list = 0, apps = 0;
    for (int i = 1; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        char *value = equals ? equals + 1 : NULL;
        if (is(argv[i], "-L", "--list-gpus")) {
            list = 1;
        } else if (!strncmp(argv[i], "--query-gpu=", 12)) {
            fields = value;
        } else if (!strncmp(argv[i], "--query-compute-apps=", 21)) {
            fields = value;
            apps = 1;
        } else if (!strncmp(argv[i], "--format=csv", 12)) {
            query.header = !strstr(value, "noheader");
            query.units = !strstr(value, "nounits");
        } else if (!strncmp(argv[i], "--id=", 5)) {
            wanted = value;
        } else if (!strcmp(argv[i], "-i") && i + 1 < argc) {
            wanted = argv[++i];
        } else {
            usage_error();
        }
    }
    for (char *field = fields ? strtok(fields, ", ") : NULL; field; field = strtok(NULL, ", ")) {
        if (query.count == sizeof query.fields / sizeof *query.fields)
            usage_error();
        query.fields[query.count++] = field;
    }

    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
             "Driver is properly installed and present in your system.\nPlease also try adding directory that contains "
             "libnvidia-ml.so to your system PATH.\n");
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    }
    nvmlReturn_t failed = NVML(nvmlInit_v2)();
    if (failed)
        return die(failed);
    find_gpus(wanted);
    if (!shown) {
        puts("No devices were found");
        return status ? status : NVML_ERROR_NOT_FOUND;
    }
    if (list)
        print_list();
    else if (query.count)
        print_query(&query, apps);
    else
        print_table();
    NVML(nvmlShutdown)();
    return status;
}
