#include "nvml.h"

#include "account.h"
#include "devices.h"
#include "driver_nvml.h"
#include "process.h"
#include "resolve.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NVML_INSUFFICIENT_SIZE = 7 };

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

/* Whether NVML names processes by their numbers on the host: some drivers translate them into the numbers of the
 * caller's PID namespace, others do not. They differ where the monitor has written the number on the host. */
static bool by_host_numbers(const struct vgpu_listing *all, uint32_t size)
{
    static atomic_bool known;
    for (uint32_t i = 0; i < all->count && !atomic_load(&known); i++)
        if (vgpu_region_number(vgpu_process.region, vgpu_process_at(all, i, size), true))
            atomic_store(&known, true);
    return atomic_load(&known);
}

/* Whether the container has limits, and so gets to see no others. */
static bool is_contained(void)
{
    return !vgpu_open() || vgpu_process.config.trusted || *vgpu_process.config.region;
}

/* Leaves the entries of this container, with the numbers that they have in it. */
static void keep_own(struct vgpu_listing *all, uint32_t size)
{
    const struct vgpu_process *process = &vgpu_process;
    bool host = process->region && by_host_numbers(all, size);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        uint32_t pid = vgpu_process_at(all, i, size);
        uint32_t own = !host && pid == (uint32_t)getpid() ? pid : 0;
        if (!own && process->region)
            own = vgpu_region_number(process->region, pid, host);
        if (!own)
            continue;
        memmove(all->entries + (uint64_t)kept * size, all->entries + (uint64_t)i * size, size);
        memcpy(all->entries + (uint64_t)kept * size, &own, sizeof own);
        kept++;
    }
    all->count = kept;
}

int vgpu_nvml_processes(vgpu_list real, void *device, void *count, void *entries, uint32_t size)
{
    struct vgpu_listing all;
    uint32_t *room = count;
    if (!room || !is_contained())
        return real(device, count, entries);
    int code = vgpu_nvml_list(real, device, size, &all);
    if (code != 0)
        return code;
    keep_own(&all, size);
    if (all.count > *room || (all.count && !entries))
        code = NVML_INSUFFICIENT_SIZE;
    else if (all.count)
        memcpy(entries, all.entries, (uint64_t)all.count * size);
    *room = all.count;
    munmap(all.entries, all.bytes);
    return code;
}

/* The list that says most has a frame of its own around the others' parameters. */
struct detail_list {
    uint32_t version, mode, count;
    void *entries;
};

enum { DETAIL_BYTES = 32 };

static _Thread_local struct detail_list detailed __attribute__((tls_model("initial-exec")));

static int details(void *device, void *count, void *entries)
{
    struct detail_list list = detailed;
    list.count = *(uint32_t *)count;
    list.entries = entries;
    int code = REAL(nvmlDeviceGetRunningProcessDetailList)(device, &list);
    *(uint32_t *)count = list.count;
    return code;
}

int nvmlDeviceGetRunningProcessDetailList(void *device, void *given)
{
    struct detail_list *list = given;
    if (!list)
        return REAL(nvmlDeviceGetRunningProcessDetailList)(device, given);
    detailed = *list;
    return vgpu_nvml_processes(details, device, &list->count, list->entries, DETAIL_BYTES);
}
