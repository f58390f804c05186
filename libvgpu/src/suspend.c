#include "suspend.h"

#include "account.h"
#include "liveness.h"
#include "process.h"
#include "resolve.h"
#include "shares.h"
#include "slots.h"

#include <unistd.h>

enum { STATE_CHECKPOINTED = 2, TRIES = 3 };

/* Whether the driver says that what the process had is on no card. */
static bool is_away(uint32_t pid)
{
    uint32_t state;
    return HAS(cuCheckpointProcessGetState) && REAL(cuCheckpointProcessGetState)(pid, &state) == CUDA_OK
        && state == STATE_CHECKPOINTED;
}

/* The slot of a process of this container, NULL if there is none. */
static struct region_slot *slot_of(uint32_t pid)
{
    struct vgpu_process *process = &vgpu_process;
    return vgpu_open() && process->shares ? vgpu_region_slot(process->region, pid) : NULL;
}

/* Several may suspend and wake a process at once. Each asks the driver after its own change, and again after it has written what
 * that says. What remains unclear counts. */
static void settle(struct region_slot *slot, uint32_t pid)
{
    for (int i = 0; i < TRIES; i++) {
        bool away = is_away(pid);
        VGPU_POINT(92);
        vgpu_slot_suspend(vgpu_process.region, slot, away);
        VGPU_POINT(93);
        if (is_away(pid) == away)
            return;
    }
    vgpu_slot_suspend(vgpu_process.region, slot, false);
}

/* Whether devices on which the process counts anything are within their limits. */
static bool is_within(struct region_slot *slot)
{
    bool records = vgpu_shares_version(vgpu_process.region) != 0;
    for (int d = 0; d < VGPU_DEVICES; d++) {
        const struct region_memory *memory = &slot->memory[d];
        if ((records || memory->total || memory->imported) && !vgpu_is_within(d))
            return false;
    }
    return true;
}

/* Counts the memory first, then looks at the sum, as an allocation does. */
static bool has_room(struct region_slot *slot, uint32_t pid)
{
    struct vgpu_process *process = &vgpu_process;
    vgpu_refresh();
    for (int i = 0; i < TRIES; i++) {
        vgpu_slot_suspend(process->region, slot, false);
        VGPU_POINT(90);
        if (is_within(slot))
            return true;
        settle(slot, pid);
        VGPU_POINT(91);
        vgpu_region_reap(process->region, process->config.region);
        vgpu_pause(20000L << i);
    }
    return false;
}

void vgpu_suspend_look(void)
{
    struct vgpu_process *process = &vgpu_process;
    if (vgpu_is_open() && process->region && vgpu_is_own_suspended(process))
        settle(&process->region->slot[process->slot], (uint32_t)getpid());
}

/* With storage of the caller's own, memory is on the card until the operation is complete. */
int cuCheckpointProcessCheckpoint(uint32_t pid, void *arguments)
{
    int result = REAL(cuCheckpointProcessCheckpoint)(pid, arguments);
    struct region_slot *slot = result == CUDA_OK ? slot_of(pid) : NULL;
    if (slot)
        settle(slot, pid);
    return result;
}

int cuCheckpointProcessRestore(uint32_t pid, void *arguments)
{
    struct region_slot *slot = slot_of(pid);
    if (slot && is_away(pid) && !has_room(slot, pid))
        return CUDA_OUT_OF_MEMORY;
    int result = REAL(cuCheckpointProcessRestore)(pid, arguments);
    if (slot)
        settle(slot, pid);
    return result;
}

/* The operation does not tell of which process it is. */
int cuCheckpointOperationComplete(void *operation)
{
    int result = REAL(cuCheckpointOperationComplete)(operation);
    struct vgpu_process *process = &vgpu_process;
    if (result != CUDA_OK || !vgpu_open() || !process->shares)
        return result;
    int used = vgpu_region_used(process->region);
    for (int i = 0; i < used; i++) {
        struct region_slot *slot = &process->region->slot[i];
        int32_t pid = slot->pid;
        if (pid > 0 && !vgpu_is_elsewhere(slot->identity) && !vgpu_is_dead(pid, slot->identity))
            settle(slot, (uint32_t)pid);
    }
    return result;
}
