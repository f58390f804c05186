#include "devices.h"

#include "driver_nvml.h"
#include "log.h"
#include "process.h"
#include "resolve.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static void uuid_text(const unsigned char *bytes, char *text)
{
    int at = sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(text + at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
}

static bool read_uuid(int ordinal, char *text)
{
    unsigned char bytes[16];
    if ((HAS(cuDeviceGetUuid_v2) && REAL(cuDeviceGetUuid_v2)(bytes, (uint32_t)ordinal) == 0)
        || (HAS(cuDeviceGetUuid) && REAL(cuDeviceGetUuid)(bytes, (uint32_t)ordinal) == 0)) {
        uuid_text(bytes, text);
        return true;
    }
    return false;
}

static const char *digits(const char *uuid)
{
    const char *dash = strchr(uuid, '-'); /* GPU-…, MIG-… */
    return dash ? dash + 1 : uuid;
}

const char *vgpu_uuid_at(int index)
{
    const struct vgpu_process *process = &vgpu_process;
    return process->config.trusted ? process->config.device[index].uuid : process->region->uuid[index];
}

int vgpu_index_of_uuid(const char *uuid)
{
    for (int d = 0; d < VGPU_DEVICES; d++) {
        const char *listed = vgpu_uuid_at(d);
        if (*listed && !strncasecmp(digits(listed), digits(uuid), 36))
            return d;
    }
    return -1;
}

/* Where the environment gives the limits, a place in them is a place in NVML's order. */
static void learn_uuids(struct vgpu_process *process)
{
    struct region *region = process->region;
    if (process->config.trusted || region->uuid[0][0])
        return;
    int count = vgpu_nvml_count();
    for (int d = 0; d < count && d < VGPU_DEVICES; d++)
        vgpu_nvml_uuid(d, region->uuid[d], UUID_TEXT);
    if (count > 0)
        atomic_store(&region->device_count, (uint64_t)(count < VGPU_DEVICES ? count : VGPU_DEVICES));
}

static int without_uuid(const struct vgpu_process *process, int ordinal)
{
    uint32_t count = 0;
    int listed = process->config.trusted ? process->config.count : VGPU_DEVICES;
    if (process->config.trusted
        && (REAL(cuDeviceGetCount)(&count) != 0 || (int)count != listed || ordinal >= listed)) {
        LOG_ONCE(LOG_ERROR, "a GPU that this container was not given: no memory of it may be used");
        return VGPU_DEVICES - 1 > listed ? listed : VGPU_DEVICES - 1;
    }
    return ordinal < VGPU_DEVICES ? ordinal : VGPU_DEVICES - 1;
}

int vgpu_index_of(int ordinal)
{
    struct vgpu_process *process = &vgpu_process;
    if (ordinal < 0 || ordinal >= VGPU_ORDINALS)
        return -1;
    int known = atomic_load_explicit(&process->index[ordinal], memory_order_relaxed);
    if (LIKELY(known))
        return known - 1;
    char uuid[UUID_TEXT];
    if (!read_uuid(ordinal, uuid))
        return -1;
    learn_uuids(process);
    int index = vgpu_index_of_uuid(uuid);
    if (index < 0)
        index = without_uuid(process, ordinal);
    if (!process->config.trusted && index < VGPU_DEVICES && !process->region->uuid[index][0])
        memcpy(process->region->uuid[index], uuid, UUID_TEXT);
    atomic_store(&process->index[ordinal], index + 1);
    return index;
}

bool vgpu_current(int *index, uint64_t *context)
{
    uint32_t ordinal;
    void *current = NULL;
    if (UNLIKELY(!vgpu_open()) || REAL(cuCtxGetDevice)(&ordinal) != 0)
        return false;
    *index = vgpu_index_of((int)ordinal);
    if (context) {
        REAL(cuCtxGetCurrent)(&current);
        *context = (uint64_t)(uintptr_t)current;
    }
    return *index >= 0;
}
