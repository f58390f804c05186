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

/* All processes with memory on the card. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *entries, size_t size)
{
    unsigned found = 0, room = *count;
    fake_lock();
    fake_prune();
    const struct fake_machine *machine = fake_machine();
    for (int i = 0; i < machine->processes; i++) {
        const struct fake_process *process = &machine->process[i];
        if (!process->pid || process->used[number(device)] <= 0)
            continue;
        if (found < room && entries) {
            nvmlProcessInfo_t info = {.pid = (unsigned)(process->pid + fake_number("FAKE_NVML_HOST_PIDS", 0)),
                                      .usedGpuMemory = fake_number("FAKE_NVML_ZERO", 0) ? 0
                                          : (unsigned long long)process->used[number(device)],
                                      .gpuInstanceId = 0xffffffff, .computeInstanceId = 0xffffffff};
            memcpy((char *)entries + found * size, &info, size);
        }
        found++;
    }
    fake_unlock();
    *count = found;
    return found > room || (found && !entries) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define LISTS(kind) \
nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *entries) \
{ return list(device, count, entries, sizeof *entries); } \
nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *entries) \
{ return list(device, count, entries, sizeof *entries); } \
nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries) \
{ return list(device, count, entries, sizeof *entries); }
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

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *given)
{
    nvmlProcessInfo_t found[64];
    unsigned count = 64;
    nvmlReturn_t result = list(device, &count, found, sizeof *found);
    if (result != NVML_SUCCESS)
        return result;
    unsigned room = given->numProcArrayEntries;
    given->numProcArrayEntries = count;
    if (count > room || (count && !given->procArray))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < count; i++)
        given->procArray[i] = (nvmlProcessDetail_v1_t){.pid = found[i].pid, .usedGpuMemory = found[i].usedGpuMemory,
                                                       .gpuInstanceId = 0xffffffff, .computeInstanceId = 0xffffffff};
    return NVML_SUCCESS;
}
