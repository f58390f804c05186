#include "context.h"

#include "account.h"
#include "devices.h"
#include "launch.h"
#include "log.h"
#include "objects.h"
#include "process.h"
#include "resolve.h"

/* A context that seems to take more was made while another tenant took memory: not ours to pay. */
static const uint64_t MOST = (uint64_t)2 << 30;

int vgpu_context_begin(struct vgpu_making *making, void *place, int ordinal)
{
    *making = (struct vgpu_making){.index = -1, .measure = {.index = -1}};
    if (!place || !vgpu_attach())
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : CUDA_OK;
    int index = vgpu_index_of(ordinal);
    if (index < 0)
        return CUDA_OK;
    atomic_fetch_or(&vgpu_process.ordinals, (uint64_t)1 << ordinal);
    uint64_t known = vgpu_process.config.device[index].context;
    int result = vgpu_charge(index, known, PART_CONTEXT);
    if (result != CUDA_OK) {
        LOG_ONCE(LOG_WARNING, "a context takes %llu bytes, which do not fit in the memory limit",
                 (unsigned long long)known);
        return result;
    }
    making->index = index;
    making->charged = known;
    vgpu_lock(&vgpu_process.context_lock); /* one after the other, so that each can be measured */
    if (!known) {
        vgpu_measure_begin(&making->measure, ordinal);
        if (making->measure.index < 0)
            LOG_ONCE(LOG_WARNING, "the memory of contexts is not counted: neither the limits nor NVML tell it");
    }
    return CUDA_OK;
}

int vgpu_context_end(struct vgpu_making *making, void *place, int result, bool *undo)
{
    *undo = false;
    if (making->index < 0)
        return result;
    uint64_t taken = result == CUDA_OK ? vgpu_measure_taken(&making->measure, UINT64_MAX) : 0;
    vgpu_unlock(&vgpu_process.context_lock);
    taken = taken <= MOST ? taken : 0;
    if (result == CUDA_OK && taken) {
        result = vgpu_charge(making->index, taken, PART_CONTEXT);
        *undo = result != CUDA_OK;
        if (*undo)
            LOG_ONCE(LOG_WARNING, "a context takes %llu bytes, which do not fit in the memory limit",
                     (unsigned long long)taken);
    }
    void *context = result == CUDA_OK ? *(void **)place : NULL;
    if (context)
        vgpu_object_put(context, making->index, making->charged + taken, (uint64_t)(uintptr_t)context, KIND_CONTEXT,
                        PART_CONTEXT);
    else
        vgpu_uncharge(making->index, making->charged, PART_CONTEXT);
    return result;
}

void vgpu_context_going(void *context)
{
    if (vgpu_is_open())
        vgpu_launch_forget((uint64_t)(uintptr_t)context);
}

int vgpu_context_ended(void *context, int result)
{
    if (result == CUDA_OK)
        vgpu_context_gone((uint64_t)(uintptr_t)context);
    return result;
}

static bool is_active(uint32_t device)
{
    uint32_t flags = 0, active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == 0 && active;
}

/* Held while primary contexts come and go, so that each is charged once. */
static struct vgpu_lock primary_lock;

int cuDevicePrimaryCtxRetain(void *context, uint32_t device)
{
    bool undo;
    struct vgpu_making making;
    if (!context || !vgpu_open())
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuDevicePrimaryCtxRetain)(context, device);
    vgpu_lock(&primary_lock);
    int result = CUDA_OK;
    if (is_active(device)) {
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    } else if ((result = vgpu_context_begin(&making, context, (int)device)) == CUDA_OK) {
        result = vgpu_context_end(&making, context, REAL(cuDevicePrimaryCtxRetain)(context, device), &undo);
        if (undo)
            REAL(cuDevicePrimaryCtxRelease_v2)(device);
    }
    vgpu_unlock(&primary_lock);
    return result;
}

/* The primary context of a device, as far as it has been charged; 0 if there is none. */
static void *primary(uint32_t device)
{
    /* Only one context of a device is its own: it is found by asking for it once more. */
    void *context = NULL;
    if (!is_active(device) || REAL(cuDevicePrimaryCtxRetain)(&context, device) != 0)
        return NULL;
    REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return context;
}

enum ending { RELEASE, RELEASE_V1, RESET, RESET_V1 };

static int end_primary(enum ending ending, uint32_t device)
{
    switch (ending) {
    case RELEASE: return REAL(cuDevicePrimaryCtxRelease_v2)(device);
    case RELEASE_V1: return REAL(cuDevicePrimaryCtxRelease)(device);
    case RESET: return REAL(cuDevicePrimaryCtxReset_v2)(device);
    default: return REAL(cuDevicePrimaryCtxReset)(device);
    }
}

static int leave_primary(enum ending ending, uint32_t device)
{
    if (!vgpu_is_open())
        return end_primary(ending, device);
    vgpu_lock(&primary_lock);
    void *context = primary(device);
    vgpu_context_going(context);
    int result = end_primary(ending, device);
    if (ending == RESET || ending == RESET_V1 || !is_active(device))
        vgpu_context_ended(context, result);
    vgpu_unlock(&primary_lock);
    return result;
}

int cuDevicePrimaryCtxRelease_v2(uint32_t device)
{
    return leave_primary(RELEASE, device);
}

int cuDevicePrimaryCtxRelease(uint32_t device)
{
    return leave_primary(RELEASE_V1, device);
}

int cuDevicePrimaryCtxReset_v2(uint32_t device)
{
    return leave_primary(RESET, device);
}

int cuDevicePrimaryCtxReset(uint32_t device)
{
    return leave_primary(RESET_V1, device);
}

/* -- what a context sets aside for what runs on the device */

enum { PRINTF_FIFO = 1, MALLOC_HEAP = 2 };

/* What is charged for one of them, by a key that no handle has. */
static struct vgpu_entry limit_of(uint64_t context, uint32_t limit)
{
    struct vgpu_entry entry = {.key = context + limit, .owner = context, .kind = KIND_OBJECT, .part = PART_CONTEXT};
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_entry *known = vgpu_table_find(&vgpu_process.objects, entry.key);
    entry = known ? *known : entry;
    vgpu_unlock(&vgpu_process.lock);
    return entry;
}

int cuCtxSetLimit(uint32_t limit, uint64_t value)
{
    int d;
    uint64_t context, usual = 0;
    if ((limit != PRINTF_FIFO && limit != MALLOC_HEAP) || !vgpu_current(&d, &context))
        return REAL(cuCtxSetLimit)(limit, value);
    struct vgpu_entry entry = limit_of(context, limit);
    if (!entry.second && REAL(cuCtxGetLimit)(&usual, limit) == CUDA_OK)
        entry.second = usual; /* part of the context */
    uint64_t before = entry.size, after = vgpu_round(vgpu_less(value, entry.second), VGPU_GRANULE);
    int result = vgpu_charge(d, vgpu_less(after, before), PART_CONTEXT);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuCtxSetLimit)(limit, value);
    if (result != CUDA_OK) {
        vgpu_uncharge(d, vgpu_less(after, before), PART_CONTEXT);
        return result;
    }
    vgpu_uncharge(d, vgpu_less(before, after), PART_CONTEXT);
    entry.device = d;
    entry.size = after;
    vgpu_object_keep(&entry);
    return result;
}
