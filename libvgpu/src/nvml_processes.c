#include "nvml_processes.h"

#include "process.h"
#include "resolve.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7 };

static const struct vgpu_entry NUMBER = {sizeof(uint32_t), 0};

/* Whether NVML names processes by their numbers on the host: some drivers translate them into the numbers of the
 * caller's PID namespace, others do not. They differ where the monitor has written the number on the host. */
static bool by_host_numbers(const struct vgpu_listing *all)
{
    static atomic_bool known;
    for (uint32_t i = 0; i < all->count && !atomic_load(&known); i++)
        if (vgpu_region_number(vgpu_process.region, vgpu_process_at(all, i), true))
            atomic_store(&known, true);
    return atomic_load(&known);
}

/* Whether the container has limits, and so gets to see no others. */
static bool is_contained(void)
{
    return !vgpu_open() || vgpu_process.config.trusted || *vgpu_process.config.region;
}

/* The number that a process has in this container, given the one that NVML names; 0 if it is of another one. */
static uint32_t own_number(uint32_t pid, bool host)
{
    if (!host && pid == (uint32_t)getpid())
        return pid;
    return vgpu_process.region ? vgpu_region_number(vgpu_process.region, pid, host) : 0;
}

/* Leaves the entries of this container, with the numbers that they have in it. */
static void keep_own(struct vgpu_listing *all)
{
    uint64_t size = all->entry.size;
    bool host = vgpu_process.region && by_host_numbers(all);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        uint32_t own = own_number(vgpu_process_at(all, i), host);
        if (!own)
            continue;
        memmove(all->entries + kept * size, all->entries + i * size, size);
        memcpy(all->entries + kept * size + all->entry.number, &own, sizeof own);
        kept++;
    }
    all->count = kept;
}

int vgpu_nvml_processes(vgpu_list real, void *device, void *count, void *entries, struct vgpu_entry entry,
                        enum vgpu_without_room without_room)
{
    struct vgpu_listing all;
    uint32_t *room = count;
    if (!room || !is_contained())
        return real(device, count, entries);
    int code = vgpu_nvml_list(real, device, entry, &all);
    if (code != 0)
        return code;
    keep_own(&all);
    bool asks = !*room && without_room == VGPU_NO_ROOM_ASKS;
    if (!asks && (all.count > *room || (all.count && !entries)))
        code = NVML_INSUFFICIENT_SIZE;
    else if (!asks && all.count)
        memcpy(entries, all.entries, (uint64_t)all.count * entry.size);
    *room = all.count;
    munmap(all.entries, all.bytes);
    return code;
}

/* -- lists in a frame of their own, or with more parameters: these are kept while the list is asked for */

struct detail_list {
    uint32_t version, mode, count;
    void *entries;
};

struct utilization_list {
    uint32_t version, count;
    uint64_t since;
    void *entries;
};

static const struct vgpu_entry DETAIL = {32, 0}, SAMPLE = {32, 0}, UTILIZATION = {40, 8};

static _Thread_local union {
    struct detail_list detail;
    struct utilization_list utilization;
    uint64_t since;
} asked __attribute__((tls_model("initial-exec")));

static int details(void *device, void *count, void *entries)
{
    struct detail_list list = asked.detail;
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
    asked.detail = *list;
    return vgpu_nvml_processes(details, device, &list->count, list->entries, DETAIL, VGPU_NO_ROOM_IS_ERROR);
}

static int utilizations(void *device, void *count, void *entries)
{
    struct utilization_list list = asked.utilization;
    list.count = *(uint32_t *)count;
    list.entries = entries;
    int code = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &list);
    *(uint32_t *)count = list.count;
    return code;
}

int nvmlDeviceGetProcessesUtilizationInfo(void *device, void *given)
{
    struct utilization_list *list = given;
    if (!list)
        return REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, given);
    asked.utilization = *list;
    return vgpu_nvml_processes(utilizations, device, &list->count, list->entries, UTILIZATION, VGPU_NO_ROOM_IS_ERROR);
}

static int samples(void *device, void *count, void *entries)
{
    return REAL(nvmlDeviceGetProcessUtilization)(device, entries, count, asked.since);
}

/* Where there is nothing to tell, NVML finds nothing. */
int nvmlDeviceGetProcessUtilization(void *device, void *entries, void *count, uint64_t since)
{
    if (!count)
        return REAL(nvmlDeviceGetProcessUtilization)(device, entries, count, since);
    asked.since = since;
    int code = vgpu_nvml_processes(samples, device, count, entries, SAMPLE, VGPU_NO_ROOM_IS_ERROR);
    return code == 0 && !*(uint32_t *)count ? NVML_NOT_FOUND : code;
}

/* -- what is told of one process */

/* The number by which NVML knows a process of this container; 0 for one of another container. */
static uint32_t listed_number(void *device, uint32_t pid)
{
    struct vgpu_listing all;
    bool host = false;
    if (!own_number(pid, false))
        return 0;
    if (vgpu_nvml_list(REAL(nvmlDeviceGetAccountingPids), device, NUMBER, &all) == 0) {
        host = vgpu_process.region && by_host_numbers(&all);
        munmap(all.entries, all.bytes);
    }
    return host ? vgpu_region_host_number(vgpu_process.region, pid) : pid;
}

int nvmlDeviceGetAccountingStats(void *device, uint32_t pid, void *stats)
{
    uint32_t listed = is_contained() ? listed_number(device, pid) : pid;
    return listed ? REAL(nvmlDeviceGetAccountingStats)(device, listed, stats) : NVML_NOT_FOUND;
}

/* The process is named in the first word of what is asked for. */
int nvmlDeviceGetAccountingStats_v2(void *device, void *stats)
{
    uint32_t *named = stats;
    if (!named || !is_contained())
        return REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
    uint32_t pid = *named, listed = listed_number(device, pid);
    if (!listed)
        return NVML_NOT_FOUND;
    *named = listed;
    int code = REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
    *named = pid;
    return code;
}

int nvmlSystemGetProcessName(uint32_t pid, void *name, uint32_t length)
{
    if (is_contained() && !own_number(pid, false))
        return NVML_NOT_FOUND;
    return REAL(nvmlSystemGetProcessName)(pid, name, length);
}
