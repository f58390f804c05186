#include "nvml.h"

#include "account.h"
#include "devices.h"
#include "process.h"
#include "resolve.h"

struct memory_v1 {
    uint64_t total, free, used;
};

struct memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};

/* NVML is loaded only by a process that uses CUDA, and stays open: it counts its users. */
static bool is_there(void)
{
    static _Atomic int state; /* 0: not tried, 1: there, 2: not there */
    int known = atomic_load(&state);
    if (!known) {
        known = vgpu_resolve_nvml(true) && REAL(nvmlInit_v2)() == 0 ? 1 : 2;
        atomic_store(&state, known);
    }
    return known == 1;
}

int vgpu_nvml_count(void)
{
    uint32_t count = 0;
    return is_there() && REAL(nvmlDeviceGetCount_v2)(&count) == 0 ? (int)count : 0;
}

bool vgpu_nvml_uuid(int number, char *text, uint32_t size)
{
    void *device;
    return is_there() && REAL(nvmlDeviceGetHandleByIndex_v2)((uint32_t)number, &device) == 0
        && REAL(nvmlDeviceGetUUID)(device, text, size) == 0;
}

bool vgpu_nvml_free(int index, uint64_t *bytes)
{
    struct memory_v1 memory;
    void *device;
    const struct vgpu_process *process = &vgpu_process;
    const char *uuid = process->config.trusted ? process->config.device[index].uuid : process->region->uuid[index];
    if (!*uuid || !is_there() || REAL(nvmlDeviceGetHandleByUUID)((void *)(uintptr_t)uuid, &device) != 0
        || REAL(nvmlDeviceGetMemoryInfo)(device, &memory) != 0)
        return false;
    *bytes = memory.free;
    return true;
}

/* The slice of the container on an NVML device. False: there is no limit. */
static bool slice(void *device, uint64_t real, uint64_t *total, uint64_t *used)
{
    char uuid[UUID_TEXT];
    if (!vgpu_open() || REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid) != 0)
        return false;
    int index = vgpu_index_of_uuid(uuid);
    if (index < 0 && !vgpu_process.config.trusted && !vgpu_process.region->uuid[0][0]) {
        vgpu_index_of(0); /* nobody has matched devices yet */
        index = vgpu_index_of_uuid(uuid);
    }
    if (index < 0)
        return false;
    uint64_t limit = vgpu_process.memory_limit[index];
    if (limit == 0)
        return false;
    vgpu_tidy();
    *total = limit < real ? limit : real;
    *used = vgpu_usage(index);
    *used = *used > *total ? *total : *used;
    return true;
}

int nvmlDeviceGetMemoryInfo(void *device, void *result)
{
    int code = REAL(nvmlDeviceGetMemoryInfo)(device, result);
    struct memory_v1 *memory = result;
    if (code == 0 && slice(device, memory->total, &memory->total, &memory->used))
        memory->free = memory->total - memory->used;
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, void *result)
{
    int code = REAL(nvmlDeviceGetMemoryInfo_v2)(device, result);
    struct memory_v2 *memory = result;
    if (code == 0 && slice(device, memory->total, &memory->total, &memory->used)) {
        memory->free = memory->total - memory->used;
        memory->reserved = 0; /* of the whole card; a slice reserves nothing */
    }
    return code;
}
