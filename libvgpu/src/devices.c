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

/* Of a locality domain, the identifier is two bytes: the device, then the domain. */
int vgpu_index_at(uint32_t location, uint32_t id)
{
    if (location == LOCATION_LOCALITY_DOMAIN)
        return vgpu_index_of((int)(id & 0xff));
    return location == LOCATION_DEVICE ? vgpu_index_of((int)id) : -1;
}

/* The context with which what is made in a context goes: of a green one, the primary one. */
static uint64_t lasting(uint64_t context)
{
    if (LIKELY(!atomic_load_explicit(&vgpu_process.greens, memory_order_relaxed)))
        return context;
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_object *known = vgpu_table_find(&vgpu_process.objects, context);
    uint64_t found = known && known->is_green ? known->context : context;
    vgpu_unlock(&vgpu_process.lock);
    return found;
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
        *context = lasting((uint64_t)(uintptr_t)current);
    }
    return *index >= 0;
}

int vgpu_ordinal_of(int index)
{
    for (int i = 0; i < VGPU_ORDINALS; i++)
        if (atomic_load(&vgpu_process.index[i]) == index + 1)
            return i;
    return 0;
}

/* The device of a context that was made here. */
static int ordinal_of_context(void *context)
{
    struct vgpu_process *process = &vgpu_process;
    vgpu_lock(&process->lock);
    const struct vgpu_object *known = vgpu_table_find(&process->objects, (uint64_t)(uintptr_t)context);
    int index = known && (known->is_context || known->is_green) ? known->amount.device : -1;
    vgpu_unlock(&process->lock);
    return index < 0 ? -1 : vgpu_ordinal_of(index);
}

int vgpu_stream_ordinal(void *stream)
{
    uint64_t used = atomic_load_explicit(&vgpu_process.ordinals, memory_order_relaxed);
    if (LIKELY(used && !(used & (used - 1))))
        return __builtin_ctzll(used);
    uint32_t ordinal;
    void *context = NULL;
    bool named = (uintptr_t)stream > STREAM_PER_THREAD && HAS(cuStreamGetCtx);
    int found = named && REAL(cuStreamGetCtx)(stream, &context) == CUDA_OK ? ordinal_of_context(context) : -1;
    return found >= 0 ? found : REAL(cuCtxGetDevice)(&ordinal) == CUDA_OK ? (int)ordinal : -1;
}
