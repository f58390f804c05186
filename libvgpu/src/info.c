/* What programs are told about memory: the slice, not the card. */
#include "account.h"
#include "devices.h"
#include "log.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"
#include "suspend.h"

int cuInit(uint32_t flags)
{
    int result = REAL(cuInit)(flags);
    if (result != CUDA_OK)
        return result;
    return vgpu_attach() || !vgpu_is_forbidden() ? CUDA_OK : CUDA_NOT_PERMITTED;
}

/* Free and total bytes as the container has them, given those of the card. */
static void slice(int d, uint64_t *free, uint64_t *total)
{
    uint64_t limit = vgpu_process.memory_limit[d];
    if (limit == 0)
        return;
    uint64_t most = limit == UINT64_MAX ? 0 : limit < *total ? limit : *total;
    uint64_t left = vgpu_less(most, vgpu_usage(d));
    *total = most;
    *free = left < *free ? left : *free;
}

/* Some programs pass NULL for what they do not want to know. */
int cuMemGetInfo_v2(void *free, void *total)
{
    uint64_t free_bytes = 0, total_bytes = 0;
    int d, result = REAL(cuMemGetInfo_v2)(&free_bytes, &total_bytes);
    if (result != CUDA_OK)
        return result;
    if (vgpu_current(&d, NULL)) {
        static _Atomic uint32_t calls;
        vgpu_refresh();
        vgpu_suspend_look();
        if (UNLIKELY((atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) & 15) == 0))
            vgpu_tidy();
        vgpu_pools_look(d);
        slice(d, &free_bytes, &total_bytes);
    }
    if (free)
        *(uint64_t *)free = free_bytes;
    if (total)
        *(uint64_t *)total = total_bytes;
    return result;
}

int cuMemGetInfo(void *free, void *total)
{
    uint32_t free_v1 = 0, total_v1 = 0;
    int d, result = REAL(cuMemGetInfo)(&free_v1, &total_v1);
    if (result != CUDA_OK)
        return result;
    uint64_t free_bytes = free_v1, total_bytes = total_v1;
    if (vgpu_current(&d, NULL))
        slice(d, &free_bytes, &total_bytes);
    if (free)
        *(uint32_t *)free = (uint32_t)free_bytes;
    if (total)
        *(uint32_t *)total = (uint32_t)total_bytes;
    return result;
}

static uint64_t total_of(int ordinal, uint64_t real)
{
    int d = vgpu_open() ? vgpu_index_of(ordinal) : -1;
    uint64_t limit = d < 0 ? 0 : vgpu_process.memory_limit[d];
    return limit && limit < real ? limit : real;
}

int cuDeviceTotalMem_v2(void *bytes, uint32_t device)
{
    int result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_OK && bytes)
        *(uint64_t *)bytes = total_of((int)device, *(uint64_t *)bytes);
    return result;
}

int cuDeviceTotalMem(void *bytes, uint32_t device)
{
    int result = REAL(cuDeviceTotalMem)(bytes, device);
    if (result == CUDA_OK && bytes)
        *(uint32_t *)bytes = (uint32_t)total_of((int)device, *(uint32_t *)bytes);
    return result;
}
