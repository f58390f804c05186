/* A libnvidia-ml.so.1 that knows the cards of the fake machine.
 *
 * FAKE_NVML_HOST_PIDS is what process numbers on the host have more than here: some drivers tell those. FAKE_NVML_ZERO:
 * others tell the numbers that processes have here, with no memory. FAKE_NVML_NO_MEMORY: NVML knows no memory of the card
 * at all, as where the card has none of its own.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "fake.h"

#include <nvml.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int number(nvmlDevice_t device)
{
    return (int)(intptr_t)device - 1;
}

nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlInit(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result) { return result ? "fake error" : "Success"; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = (unsigned)fake_number("FAKE_CUDA_DEVICES", 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (index >= (unsigned)fake_number("FAKE_CUDA_DEVICES", 1))
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = (nvmlDevice_t)(intptr_t)(index + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char known[48];
    for (int i = 0; i < fake_number("FAKE_CUDA_DEVICES", 1); i++) {
        fake_uuid(i, known);
        if (!strcmp(known, uuid))
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    char known[48];
    fake_uuid(number(device), known);
    snprintf(uuid, length, "%s", known);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    *index = (unsigned)number(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    (void)device;
    snprintf(name, length, "NVIDIA Fake H100");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    if (fake_number("FAKE_NVML_NO_MEMORY", 0))
        return NVML_ERROR_NOT_SUPPORTED;
    fake_lock();
    memory->total = (unsigned long long)fake_number("FAKE_CUDA_TOTAL_MIB", 16384) << 20;
    memory->used = (unsigned long long)fake_machine()->used[number(device)];
    memory->free = memory->total - memory->used;
    fake_unlock();
    return NVML_SUCCESS;
}

/* A process with memory on the card, and an entry of a list that names it. */
struct seen {
    unsigned pid;
    unsigned long long used;
};
typedef void (*write_entry)(void *entry, const struct seen *seen);

/* Whether NVML lists a process: it has a context or memory on the card, and is in this container, unless numbers are the host's. */
static bool is_listed(const struct fake_machine *machine, int i, int card)
{
    const struct fake_process *process = &machine->process[i];
    return process->pid && (machine->contexts[i][card] > 0 || process->used[card] > 0)
        && (process->space == fake_space() || fake_number("FAKE_NVML_HOST_PIDS", 0));
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *entries, size_t size, write_entry write)
{
    unsigned found = 0, room = *count;
    fake_lock();
    fake_prune();
    const struct fake_machine *machine = fake_machine();
    for (int i = 0; i < machine->processes; i++) {
        const struct fake_process *process = &machine->process[i];
        if (!is_listed(machine, i, number(device)))
            continue;
        struct seen seen = {.pid = (unsigned)(process->pid + fake_number("FAKE_NVML_HOST_PIDS", 0)),
                            .used = (unsigned long long)process->used[number(device)]};
        if (fake_number("FAKE_NVML_ZERO", 0))
            seen.used = 0;
        if (found < room && entries)
            write((char *)entries + found * size, &seen);
        found++;
    }
    fake_unlock();
    *count = found;
    return found > room || (found && !entries) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The version before has the first members of the one after it. */
static void write_v1(void *entry, const struct seen *seen)
{
    *(nvmlProcessInfo_v1_t *)entry = (nvmlProcessInfo_v1_t){.pid = seen->pid, .usedGpuMemory = seen->used};
}

static void write_v2(void *entry, const struct seen *seen)
{
    *(nvmlProcessInfo_t *)entry = (nvmlProcessInfo_t){.pid = seen->pid, .usedGpuMemory = seen->used,
                                                      .gpuInstanceId = 0xffffffff, .computeInstanceId = 0xffffffff};
}

#define LISTS(kind) \
nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *entries) \
{ return list(device, count, entries, sizeof *entries, write_v1); } \
nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *entries) \
{ return list(device, count, entries, sizeof *entries, write_v2); } \
nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries) \
{ return list(device, count, entries, sizeof *entries, write_v2); }
LISTS(Compute)
LISTS(Graphics)
LISTS(MPSCompute)

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = plain.total;
    memory->free = plain.free;
    memory->used = plain.used;
    memory->reserved = 512ull << 20;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    return nvmlDeviceGetMemoryInfo(device, memory);
}

static void write_detail(void *entry, const struct seen *seen)
{
    *(nvmlProcessDetail_v1_t *)entry = (nvmlProcessDetail_v1_t){.pid = seen->pid, .usedGpuMemory = seen->used,
                                                                .gpuInstanceId = 0xffffffff,
                                                                .computeInstanceId = 0xffffffff};
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *given)
{
    return list(device, &given->numProcArrayEntries, given->procArray, sizeof *given->procArray, write_detail);
}

/* -- what they do: each works as many percent of the time as it has bytes, modulo 100 */

static unsigned percent(const struct seen *seen)
{
    return (unsigned)(seen->used % 100);
}

static void write_sample(void *entry, const struct seen *seen)
{
    *(nvmlProcessUtilizationSample_t *)entry = (nvmlProcessUtilizationSample_t){.pid = seen->pid, .timeStamp = 1,
                                                                                .smUtil = percent(seen)};
}

/* Samples that the caller has seen are not told again. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *entries, unsigned *count,
                                             unsigned long long since)
{
    nvmlReturn_t result = list(device, count, entries, sizeof *entries, write_sample);
    return since || (result == NVML_SUCCESS && !*count) ? NVML_ERROR_NOT_FOUND : result;
}

static void write_utilization(void *entry, const struct seen *seen)
{
    *(nvmlProcessUtilizationInfo_v1_t *)entry = (nvmlProcessUtilizationInfo_v1_t){.pid = seen->pid, .timeStamp = 1,
                                                                                  .smUtil = percent(seen)};
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *given)
{
    if (given->lastSeenTimeStamp)
        return NVML_ERROR_NOT_FOUND;
    return list(device, &given->processSamplesCount, given->procUtilArray, sizeof *given->procUtilArray, write_utilization);
}

static void write_encoder(void *entry, const struct seen *seen)
{
    *(nvmlEncoderSessionInfo_t *)entry = (nvmlEncoderSessionInfo_t){.sessionId = 1, .pid = seen->pid};
}

static void write_capture(void *entry, const struct seen *seen)
{
    *(nvmlFBCSessionInfo_t *)entry = (nvmlFBCSessionInfo_t){.sessionId = 1, .pid = seen->pid};
}

/* Who has no room asks how many there are. */
static nvmlReturn_t sessions(nvmlDevice_t device, unsigned *count, void *entries, size_t size, write_entry write)
{
    bool asks = !*count;
    nvmlReturn_t result = list(device, count, entries, size, write);
    return asks ? NVML_SUCCESS : result;
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned *count, nvmlEncoderSessionInfo_t *entries)
{
    return sessions(device, count, entries, sizeof *entries, write_encoder);
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned *count, nvmlFBCSessionInfo_t *entries)
{
    return sessions(device, count, entries, sizeof *entries, write_capture);
}

static void write_number(void *entry, const struct seen *seen)
{
    *(unsigned *)entry = seen->pid;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *numbers)
{
    return list(device, count, numbers, sizeof *numbers, write_number);
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
    nvmlProcessInfo_t found[64];
    unsigned count = 64;
    nvmlReturn_t result = list(device, &count, found, sizeof *found, write_v2);
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++)
        if (found[i].pid == stats->pid) {
            stats->maxMemoryUsage = found[i].usedGpuMemory;
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats)
{
    nvmlAccountingStats_v2_t found = {.pid = pid};
    nvmlReturn_t result = nvmlDeviceGetAccountingStats_v2(device, &found);
    stats->maxMemoryUsage = found.maxMemoryUsage;
    return result;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    snprintf(name, length, "process %u", pid);
    return NVML_SUCCESS;
}

/* -- limits of memory by control group, of release 615 */

static bool is_beyond(unsigned long long limit)
{
    return limit != NVML_DEVICE_MEMORY_LIMIT_MAX && limit > (unsigned long long)fake_number("FAKE_CUDA_TOTAL_MIB", 16384) << 20;
}

static bool is_unsupported(void)
{
    return fake_wall_is("off") || fake_number("FAKE_NVML_MIG", 0);
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    int card = number(device);
    struct stat about;
    if (!limits->nameSpace)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (fake_number("FAKE_NVML_UID", (long)geteuid()) != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (is_unsupported())
        return NVML_ERROR_NOT_SUPPORTED;
    if (stat(limits->nameSpace, &about) != 0)
        return NVML_ERROR_OPERATING_SYSTEM;
    if (limits->softLimit > limits->hardLimit || is_beyond(limits->softLimit) || is_beyond(limits->hardLimit))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (fake_wall_is("dmem") && !fake_group_has_files(limits->nameSpace))
        return NVML_ERROR_NOT_FOUND;
    fake_lock();
    struct fake_group *group = fake_make_group(limits->nameSpace);
    group->soft[card] = limits->softLimit;
    group->hard[card] = limits->hardLimit;
    fake_unlock();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    int card = number(device);
    struct stat about;
    if (is_unsupported())
        return NVML_ERROR_NOT_SUPPORTED;
    if (stat(limits->nameSpace, &about) != 0)
        return NVML_ERROR_OPERATING_SYSTEM;
    nvmlReturn_t result = NVML_SUCCESS;
    fake_lock();
    fake_prune();
    const struct fake_group *group = fake_find_group(limits->nameSpace);
    if (!group || (group->hard[card] == NVML_DEVICE_MEMORY_LIMIT_MAX && !group->soft[card])) {
        result = fake_wall_is("misc") ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_NOT_FOUND;
    } else {
        limits->softLimit = group->soft[card];
        limits->hardLimit = group->hard[card];
        limits->currentUsed = fake_group_used(limits->nameSpace, card);
    }
    fake_unlock();
    return result;
}
