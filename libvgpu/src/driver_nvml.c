#include "driver_nvml.h"

#include "resolve.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NVML_INSUFFICIENT_SIZE = 7, NVML_NO_MEMORY = 20, PROCESSES_AT_ONCE = 256 };

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

int vgpu_nvml_list(vgpu_list real, void *device, struct vgpu_entry entry, struct vgpu_listing *all)
{
    all->entry = entry;
    int code = NVML_INSUFFICIENT_SIZE;
    uint32_t room = PROCESSES_AT_ONCE;
    for (int i = 0; i < 4 && code == NVML_INSUFFICIENT_SIZE; i++) { /* processes may start meanwhile */
        all->bytes = (uint64_t)room * entry.size;
        all->entries = mmap(NULL, all->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all->entries == MAP_FAILED)
            return NVML_NO_MEMORY;
        all->count = room;
        code = real(device, &all->count, all->entries);
        if (code == 0)
            return code;
        munmap(all->entries, all->bytes);
        room = (all->count > room ? all->count : room) + PROCESSES_AT_ONCE;
    }
    return code;
}

uint32_t vgpu_process_at(const struct vgpu_listing *all, uint32_t i)
{
    uint32_t pid;
    memcpy(&pid, all->entries + (uint64_t)i * all->entry.size + all->entry.number, sizeof pid);
    return pid;
}

struct process {
    uint32_t pid;
    uint64_t used;
    uint32_t instance, compute_instance;
};

/* The caller unmaps the list. */
static bool list_processes(const char *uuid, struct vgpu_listing *all)
{
    void *device;
    return *uuid && is_there() && HAS(nvmlDeviceGetComputeRunningProcesses_v3)
        && REAL(nvmlDeviceGetHandleByUUID)((void *)(uintptr_t)uuid, &device) == 0
        && vgpu_nvml_list(REAL(nvmlDeviceGetComputeRunningProcesses_v3), device,
                          (struct vgpu_entry){sizeof(struct process), 0}, all) == 0;
}

static struct process at(const struct vgpu_listing *all, uint32_t i)
{
    struct process process;
    memcpy(&process, all->entries + (uint64_t)i * sizeof process, sizeof process);
    return process;
}

static struct vgpu_pids pids_of(const struct vgpu_listing *all)
{
    struct vgpu_pids pids = {0};
    pids.told = all->count <= sizeof pids.pid / sizeof *pids.pid;
    for (; pids.told && pids.count < all->count; pids.count++)
        pids.pid[pids.count] = at(all, pids.count).pid;
    return pids;
}

bool vgpu_nvml_used(const char *uuid, uint64_t *bytes, struct vgpu_pids *all)
{
    struct vgpu_listing list;
    *bytes = 0;
    if (all)
        all->told = false;
    if (!list_processes(uuid, &list))
        return false;
    bool found = false;
    for (uint32_t i = 0; i < list.count && !found; i++) {
        struct process own = at(&list, i);
        found = own.pid == (uint32_t)getpid() && own.used != UINT64_MAX;
        *bytes = found ? own.used : 0;
    }
    if (all)
        *all = pids_of(&list);
    munmap(list.entries, list.bytes);
    return found;
}

static bool is_among(const struct vgpu_pids *pids, uint32_t pid)
{
    uint32_t i = 0;
    while (i < pids->count && pids->pid[i] != pid)
        i++;
    return i < pids->count;
}

bool vgpu_nvml_least_new(const char *uuid, const struct vgpu_pids *before, uint64_t *bytes)
{
    struct vgpu_listing all;
    *bytes = UINT64_MAX;
    if (!before->told || !list_processes(uuid, &all))
        return false;
    for (uint32_t i = 0; i < all.count; i++) {
        struct process process = at(&all, i);
        if (!is_among(before, process.pid) && process.used < *bytes)
            *bytes = process.used;
    }
    munmap(all.entries, all.bytes);
    return *bytes != UINT64_MAX;
}

bool vgpu_nvml_free(const char *uuid, uint64_t *bytes)
{
    struct memory {
        uint64_t total, free, used;
    } memory;
    void *device;
    if (!*uuid || !is_there() || REAL(nvmlDeviceGetHandleByUUID)((void *)(uintptr_t)uuid, &device) != 0
        || REAL(nvmlDeviceGetMemoryInfo)(device, &memory) != 0)
        return false;
    *bytes = memory.free;
    return true;
}
