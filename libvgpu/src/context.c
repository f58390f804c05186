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

enum { LONGEST_MS = 1000 };

/* None waits for long for one that is in the driver, which may wait for this one. */
static bool take_turn(atomic_bool *taken)
{
    for (int i = 0; atomic_exchange(taken, true); i++) {
        if (i == LONGEST_MS)
            return false;
        vgpu_pause(1000000);
    }
    return true;
}

struct vgpu_turn vgpu_turn_begin(atomic_bool *turn)
{
    int state = vgpu_keep_thread();
    return (struct vgpu_turn){turn && take_turn(turn) ? turn : NULL, state};
}

void vgpu_turn_end(struct vgpu_turn turn)
{
    if (turn.taken)
        atomic_store(turn.taken, false);
    vgpu_release_thread(turn.state);
}

static void begin_measure(struct vgpu_making *making, int ordinal)
{
    vgpu_own_begin(&making->own, making->index, false);
    vgpu_measure_begin(&making->measure, ordinal, false);
    if (making->measure.index < 0)
        LOG_ONCE(LOG_WARNING, "the memory of contexts is not counted: neither the limits nor NVML tell it");
}

static uint64_t taken(const struct vgpu_making *making)
{
    int64_t change;
    uint64_t seen;
    if (making->measure.index < 0)
        return 0;
    if (vgpu_own_change(&making->own, &change))
        return change > 0 ? (uint64_t)change : 0;
    if (vgpu_own_first(&making->own, &seen))
        return seen;
    seen = vgpu_measure_taken(&making->measure, UINT64_MAX);
    return seen <= MOST ? seen : 0;
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

/* -- how often a context was attached to */

int cuCtxAttach(void *place, uint32_t flags)
{
    int result = REAL(cuCtxAttach)(place, flags);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_object *known = context_at(*(uint64_t *)place);
    if (known)
        known->attached++;
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* Whether the context stays, since it was attached to: once less. */
static bool is_attached(void *context)
{
    if (!vgpu_is_open())
        return false;
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_object *known = context_at((uint64_t)(uintptr_t)context);
    bool attached = known && known->attached;
    if (attached)
        known->attached--;
    vgpu_unlock(&vgpu_process.lock);
    return attached;
}

int cuCtxDetach(void *context)
{
    if (is_attached(context))
        return REAL(cuCtxDetach)(context);
    vgpu_context_going(context);
    return vgpu_context_ended(context, REAL(cuCtxDetach)(context));
}
