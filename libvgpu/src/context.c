#include "context.h"

#include "account.h"
#include "devices.h"
#include "driver_nvml.h"
#include "launch.h"
#include "log.h"
#include "objects.h"
#include "process.h"
#include "resolve.h"

/* A context that seems to take more was made while another tenant took memory: not ours to pay. */
static const uint64_t MOST = (uint64_t)2 << 30;

enum { LONGEST_MS = 1000 };

/* One thread after the other; but none waits for long for one that is in the driver, which may wait for this one. */
static bool take_turn(atomic_bool *taken)
{
    for (int i = 0; atomic_exchange(taken, true); i++) {
        if (i == LONGEST_MS)
            return false;
        vgpu_pause(1000000);
    }
    return true;
}

/* In a container, some drivers list the processes of the host: one of them may have the number of this one, which has nothing. */
static void begin_measure(struct vgpu_making *making, int ordinal)
{
    making->counted = vgpu_counted(making->index);
    making->told = !vgpu_nvml_used(vgpu_uuid_at(making->index), &making->used) || making->counted;
    vgpu_measure_begin(&making->measure, ordinal, false);
    if (making->measure.index < 0)
        LOG_ONCE(LOG_WARNING, "the memory of contexts is not counted: neither the limits nor NVML tell it");
}

static uint64_t taken(const struct vgpu_making *making)
{
    uint64_t used;
    if (!making->told || making->measure.index < 0 || !vgpu_nvml_used(vgpu_uuid_at(making->index), &used))
        return vgpu_measure_taken(&making->measure, UINT64_MAX);
    return vgpu_less(vgpu_less(used, making->used), vgpu_less(vgpu_counted(making->index), making->counted));
}

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
    making->measured = !known && take_turn(&vgpu_process.measures);
    if (making->measured)
        begin_measure(making, ordinal);
    return CUDA_OK;
}

/* A primary context is the same for all threads that ask for it at once: it counts once, with the most that one of them has
 * charged. An earlier context may have had the handle, whose end another thread is about to count. */
static void keep(void *context, int index, uint64_t bytes)
{
    uint64_t key = (uint64_t)(uintptr_t)context;
    struct vgpu_object made = {.handle = key, .context = key, .is_context = true,
                               .amount = {.bytes = bytes, .device = index, .part = PART_CONTEXT}};
    struct vgpu_freed freed = {0};
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_object *known = vgpu_table_find(&vgpu_process.objects, key);
    if (known && known->going) {
        vgpu_context_take(key, &freed);
        known = NULL;
    }
    if (known && known->is_context && known->amount.device == index) {
        freed.bytes[index][PART_CONTEXT] = known->amount.bytes < bytes ? known->amount.bytes : bytes;
        made.amount.bytes = known->amount.bytes > bytes ? known->amount.bytes : bytes;
    }
    vgpu_table_put(&vgpu_process.objects, &made);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
}

int vgpu_context_end(struct vgpu_making *making, void *place, int result, bool *undo)
{
    *undo = false;
    if (making->index < 0)
        return result;
    uint64_t more = result == CUDA_OK && making->measured ? taken(making) : 0;
    if (making->measured)
        atomic_store(&vgpu_process.measures, false);
    more = more <= MOST ? more : 0;
    if (result == CUDA_OK && more) {
        result = vgpu_charge(making->index, more, PART_CONTEXT);
        *undo = result != CUDA_OK;
        if (*undo)
            LOG_ONCE(LOG_WARNING, "a context takes %llu bytes, which do not fit in the memory limit",
                     (unsigned long long)more);
    }
    void *context = result == CUDA_OK ? *(void **)place : NULL;
    if (context)
        keep(context, making->index, making->charged + more);
    else
        vgpu_uncharge(making->index, making->charged, PART_CONTEXT);
    return result;
}

/* Caller locks. */
static struct vgpu_object *context_at(uint64_t handle)
{
    struct vgpu_object *known = vgpu_table_find(&vgpu_process.objects, handle);
    return known && known->is_context ? known : NULL;
}

void vgpu_context_going(void *context)
{
    if (!vgpu_is_open())
        return;
    vgpu_launch_forget((uint64_t)(uintptr_t)context);
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_object *known = context_at((uint64_t)(uintptr_t)context);
    if (known)
        known->going++;
    vgpu_unlock(&vgpu_process.lock);
}

int vgpu_context_ended(void *context, int result)
{
    struct vgpu_freed freed = {0};
    if (!context || !vgpu_is_open())
        return result;
    VGPU_POINT(78);
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_object *known = context_at((uint64_t)(uintptr_t)context);
    if (result == CUDA_OK && (!known || known->going))
        vgpu_context_take((uint64_t)(uintptr_t)context, &freed);
    else if (known && known->going)
        known->going--;
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}

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

/* Of threads that take and leave a primary context, or set a limit, one sees what the other has made of it. */
struct turn {
    atomic_bool *taken; /* NULL: not this thread's */
    int state;
};

static struct turn begin_turn(atomic_bool *turn)
{
    int state = vgpu_keep_thread();
    return (struct turn){turn && take_turn(turn) ? turn : NULL, state};
}

static void end_turn(struct turn turn)
{
    if (turn.taken)
        atomic_store(turn.taken, false);
    vgpu_release_thread(turn.state);
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
    struct turn turn = begin_turn(turn_of(device));
    int result = take_primary(context, device);
    end_turn(turn);
    return result;
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
    struct turn turn = begin_turn(turn_of(device));
    uint64_t handle = device < VGPU_ORDINALS ? atomic_load(&vgpu_process.primary[device]) : 0;
    vgpu_context_going((void *)(uintptr_t)handle);
    int result = end_primary(ending, device);
    bool ended = result == CUDA_OK && (ending == RESET || ending == RESET_V1 || !is_active(device));
    vgpu_context_ended((void *)(uintptr_t)handle, ended ? CUDA_OK : CUDA_NOT_PERMITTED);
    if (ended && device < VGPU_ORDINALS)
        atomic_store(&vgpu_process.primary[device], 0);
    end_turn(turn);
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
static struct vgpu_object limit_of(uint64_t context, uint32_t limit, int d)
{
    struct vgpu_object fresh = {.handle = context + limit, .context = context,
                                .amount = {.device = d, .part = PART_CONTEXT}};
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_object *known = vgpu_table_find(&vgpu_process.objects, fresh.handle);
    struct vgpu_object found = known ? *known : fresh;
    vgpu_unlock(&vgpu_process.lock);
    return found;
}

static int set_limit(uint64_t context, int d, uint32_t limit, uint64_t value)
{
    uint64_t usual = 0;
    struct vgpu_object heap = limit_of(context, limit, d);
    if (!heap.usual && REAL(cuCtxGetLimit)(&usual, limit) == CUDA_OK)
        heap.usual = usual;
    uint64_t before = heap.amount.bytes, after = vgpu_round(vgpu_less(value, heap.usual), VGPU_GRANULE);
    int result = vgpu_charge(d, vgpu_less(after, before), PART_CONTEXT);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuCtxSetLimit)(limit, value);
    if (result != CUDA_OK) {
        vgpu_uncharge(d, vgpu_less(after, before), PART_CONTEXT);
        return result;
    }
    vgpu_uncharge(d, vgpu_less(before, after), PART_CONTEXT);
    heap.amount.bytes = after;
    vgpu_object_keep(&heap);
    return result;
}

/* One thread after the other: what the driver holds is what the last of them has asked for. */
int cuCtxSetLimit(uint32_t limit, uint64_t value)
{
    int d;
    uint64_t context;
    if ((limit != PRINTF_FIFO && limit != MALLOC_HEAP) || !vgpu_current(&d, &context))
        return REAL(cuCtxSetLimit)(limit, value);
    struct turn turn = begin_turn(&vgpu_process.limit_turn);
    int result = set_limit(context, d, limit, value);
    end_turn(turn);
    return result;
}
