/* What NVML tells of memory: the slice, not the card. */
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

static int show_slice(int code, void *device, struct memory_v1 *memory)
{
    if (code == 0 && slice(device, memory->total, &memory->total, &memory->used))
        memory->free = memory->total - memory->used;
    return code;
}

int nvmlDeviceGetMemoryInfo(void *device, void *result)
{
    return show_slice(REAL(nvmlDeviceGetMemoryInfo)(device, result), device, result);
}

/* Protected memory is all the memory of a card that runs in the mode of confidential computing. */
int nvmlDeviceGetConfComputeProtectedMemoryUsage(void *device, void *result)
{
    return show_slice(REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, result), device, result);
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
