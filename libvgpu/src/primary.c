/* The primary context of each device, which counts once for all that retain it: the program, the CUDA runtime, green contexts. */
#include "account.h"
#include "context.h"
#include "devices.h"
#include "launch.h"
#include "objects.h"
#include "process.h"
#include "resolve.h"

/* A device has a new primary context: an earlier one is gone. */
static void note_primary(uint32_t device, void *context)
{
    uint64_t handle = (uint64_t)(uintptr_t)context;
    uint64_t before = device < VGPU_ORDINALS ? atomic_exchange(&vgpu_process.primary[device], handle) : handle;
    if (before != handle)
        vgpu_context_gone(before);
}

static bool is_counted(void *context)
{
    vgpu_lock(&vgpu_process.lock);
    bool counted = vgpu_table_find(&vgpu_process.objects, (uint64_t)(uintptr_t)context) != NULL;
    vgpu_unlock(&vgpu_process.lock);
    return counted;
}

static bool is_active(uint32_t device)
{
    uint32_t flags = 0, active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == 0 && active;
}

static atomic_bool *turn_of(uint32_t device)
{
    return device < VGPU_ORDINALS ? &vgpu_process.primary_turn[device] : NULL;
}

static int take_primary(void *context, uint32_t device)
{
    bool undo = false;
    struct vgpu_making making = {.index = -1};
    int refused = is_active(device) ? CUDA_OK : vgpu_context_begin(&making, context, (int)device);
    if (refused && !is_active(device)) /* another thread may have made it meanwhile */
        return refused;
    int result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (making.index < 0 && result == CUDA_OK && !is_counted(*(void **)context)) { /* or have let it go */
        result = vgpu_context_begin(&making, context, (int)device);
        undo = result != CUDA_OK;
    }
    if (result == CUDA_OK || making.index >= 0)
        result = vgpu_context_end(&making, context, result, &undo);
    if (undo)
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    else if (result == CUDA_OK)
        note_primary(device, *(void **)context);
    return result;
}

int cuDevicePrimaryCtxRetain(void *context, uint32_t device)
{
    if (!context || !vgpu_open())
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuDevicePrimaryCtxRetain)(context, device);
    struct vgpu_turn turn = vgpu_turn_begin(turn_of(device));
    int result = take_primary(context, device);
    vgpu_turn_end(turn);
    return result;
}

enum ending { RELEASE, RELEASE_V1, RESET, RESET_V1, GREEN };

static int end_primary(enum ending ending, uint32_t device, void *green)
{
    switch (ending) {
    case RELEASE: return REAL(cuDevicePrimaryCtxRelease_v2)(device);
    case RELEASE_V1: return REAL(cuDevicePrimaryCtxRelease)(device);
    case RESET: return REAL(cuDevicePrimaryCtxReset_v2)(device);
    case RESET_V1: return REAL(cuDevicePrimaryCtxReset)(device);
    default: return REAL(cuGreenCtxDestroy)(green);
    }
}

/* It goes with its last reference. The caller has the turn of the device. */
static int leave_primary(enum ending ending, uint32_t device, void *green)
{
    uint64_t handle = device < VGPU_ORDINALS ? atomic_load(&vgpu_process.primary[device]) : 0;
    vgpu_context_going((void *)(uintptr_t)handle);
    int result = end_primary(ending, device, green);
    bool ended = result == CUDA_OK && (ending == RESET || ending == RESET_V1 || !is_active(device));
    vgpu_context_ended((void *)(uintptr_t)handle, ended ? CUDA_OK : CUDA_NOT_PERMITTED);
    if (ended && device < VGPU_ORDINALS)
        atomic_store(&vgpu_process.primary[device], 0);
    return result;
}

static int leave_in_turn(enum ending ending, uint32_t device)
{
    if (!vgpu_is_open())
        return end_primary(ending, device, NULL);
    struct vgpu_turn turn = vgpu_turn_begin(turn_of(device));
    int result = leave_primary(ending, device, NULL);
    vgpu_turn_end(turn);
    return result;
}

int cuDevicePrimaryCtxRelease_v2(uint32_t device)
{
    return leave_in_turn(RELEASE, device);
}

int cuDevicePrimaryCtxRelease(uint32_t device)
{
    return leave_in_turn(RELEASE_V1, device);
}

int cuDevicePrimaryCtxReset_v2(uint32_t device)
{
    return leave_in_turn(RESET, device);
}

int cuDevicePrimaryCtxReset(uint32_t device)
{
    return leave_in_turn(RESET_V1, device);
}

/* -- green contexts: each is a reference to the primary context, with what it takes by itself, which NVML may tell */

/* What belongs to it. The driver treats the handle of it as a context as it does the primary one. */
static void remember_green(void *green, int index, uint64_t primary, uint64_t bytes)
{
    void *context = NULL;
    if (HAS(cuCtxFromGreenCtx) && REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_OK)
        context = NULL;
    struct vgpu_object made = {.handle = (uint64_t)(uintptr_t)green, .context = primary, .is_green = true,
                               .other = (uint64_t)(uintptr_t)context,
                               .amount = {.bytes = bytes, .device = index, .part = PART_CONTEXT}};
    struct vgpu_object other = {.handle = made.other, .context = primary, .is_green = true,
                                .amount = {.device = index, .part = PART_CONTEXT}};
    vgpu_lock(&vgpu_process.lock);
    if (other.handle && other.handle != made.handle)
        vgpu_table_put(&vgpu_process.objects, &other);
    vgpu_table_put(&vgpu_process.objects, &made);
    vgpu_unlock(&vgpu_process.lock);
    atomic_fetch_add(&vgpu_process.greens, 1);
}

/* More than the primary context takes is what another thread has taken meanwhile. */
static uint64_t own_bytes(const struct vgpu_own *own, uint64_t primary)
{
    int64_t change;
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_object *known = vgpu_table_find(&vgpu_process.objects, primary);
    uint64_t most = known && known->is_context ? known->amount.bytes : 0;
    vgpu_unlock(&vgpu_process.lock);
    if (!vgpu_own_change(own, &change) || change <= 0)
        return 0;
    return (uint64_t)change < most ? (uint64_t)change : most;
}

/* The caller has a reference to the primary context. */
static int make_green(void *place, void *resources, uint32_t device, uint32_t flags, uint64_t primary)
{
    struct vgpu_own own = {0};
    int index = vgpu_index_of((int)device);
    struct vgpu_turn turn = vgpu_turn_begin(&vgpu_process.measures);
    if (turn.taken && index >= 0)
        vgpu_own_begin(&own, index, true);
    int result = REAL(cuGreenCtxCreate)(place, resources, device, flags);
    uint64_t bytes = result == CUDA_OK ? own_bytes(&own, primary) : 0;
    vgpu_turn_end(turn);
    if (result != CUDA_OK || index < 0)
        return result;
    void *green = *(void **)place;
    result = vgpu_charge(index, bytes, PART_CONTEXT);
    if (result == CUDA_OK)
        remember_green(green, index, primary, bytes);
    else
        REAL(cuGreenCtxDestroy)(green);
    return result;
}

/* The primary context is taken for the time of the call, so that it is charged as whenever it is taken. The green one keeps it. */
int cuGreenCtxCreate(void *place, void *resources, uint32_t device, uint32_t flags)
{
    void *primary;
    if (!place || !vgpu_open())
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuGreenCtxCreate)(place, resources, device, flags);
    struct vgpu_turn turn = vgpu_turn_begin(turn_of(device));
    int result = take_primary(&primary, device);
    if (result == CUDA_OK) {
        result = make_green(place, resources, device, flags, (uint64_t)(uintptr_t)primary);
        if (result == CUDA_OK)
            REAL(cuDevicePrimaryCtxRelease_v2)(device);
        else
            leave_primary(RELEASE, device, NULL);
    }
    vgpu_turn_end(turn);
    return result;
}

/* Takes both handles of it from the table before the driver is asked, which gives them to another one as soon as it answers. */
static bool take_green(void *green, struct vgpu_object *made, struct vgpu_object *other)
{
    struct vgpu_table *objects = &vgpu_process.objects;
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_object *found = vgpu_table_find(objects, (uint64_t)(uintptr_t)green);
    bool known = found && found->is_green && vgpu_table_take(objects, found->handle, made);
    if (known && !vgpu_table_take(objects, made->other, other))
        other->handle = 0;
    vgpu_unlock(&vgpu_process.lock);
    return known;
}

static int destroy_green(void *green, const struct vgpu_object *made, const struct vgpu_object *other)
{
    uint32_t device = (uint32_t)vgpu_ordinal_of(made->amount.device);
    vgpu_launch_forget(made->handle);
    vgpu_launch_forget(other->handle);
    struct vgpu_turn turn = vgpu_turn_begin(turn_of(device));
    int result = leave_primary(GREEN, device, green);
    vgpu_turn_end(turn);
    if (result != CUDA_OK) {
        vgpu_object_keep(made);
        vgpu_object_keep(other); /* nothing if it has no handle */
        return result;
    }
    atomic_fetch_sub(&vgpu_process.greens, 1);
    vgpu_uncharge(made->amount.device, made->amount.bytes, PART_CONTEXT);
    return result;
}

int cuGreenCtxDestroy(void *green)
{
    struct vgpu_object made, other;
    if (!green || !vgpu_is_open() || !take_green(green, &made, &other))
        return REAL(cuGreenCtxDestroy)(green);
    return destroy_green(green, &made, &other);
}
