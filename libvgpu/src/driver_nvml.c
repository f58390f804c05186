#include "driver_nvml.h"

#include "resolve.h"

#include <sys/mman.h>
#include <unistd.h>

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

bool vgpu_nvml_used(const char *uuid, uint64_t *bytes)
{
    enum { MOST_PROCESSES = 1024 };
    struct process {
        uint32_t pid;
        uint64_t used;
        uint32_t instance, compute_instance;
    };
    void *device;
    uint32_t count = MOST_PROCESSES, own = (uint32_t)getpid();
    *bytes = 0;
    if (!*uuid || !is_there() || !HAS(nvmlDeviceGetComputeRunningProcesses_v3)
        || REAL(nvmlDeviceGetHandleByUUID)((void *)(uintptr_t)uuid, &device) != 0)
        return false;
    struct process *listed = mmap(NULL, MOST_PROCESSES * sizeof *listed, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (listed == MAP_FAILED)
        return false;
    bool found = false;
    if (REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, listed) != 0)
        count = 0;
    for (uint32_t i = 0; i < count && i < MOST_PROCESSES && !found; i++)
        if ((found = listed[i].pid == own && listed[i].used != UINT64_MAX))
            *bytes = listed[i].used;
    munmap(listed, MOST_PROCESSES * sizeof *listed);
    return found;
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
