/* Processes that are suspended (cuCheckpointProcess*): what is not on the card does not count, until it is there again. */
#ifndef VGPU_SUSPEND_H
#define VGPU_SUSPEND_H

#include "process.h"

/* A process that somebody has woken in whom the limiter is not, as on the host, counts again from its own next request on. The
 * caller holds no lock. */
void vgpu_suspend_look(void);

static inline bool vgpu_is_own_suspended(const struct vgpu_process *process)
{
    return UNLIKELY(process->slot >= 0
                    && atomic_load_explicit(&process->region->slot[process->slot].status, memory_order_relaxed)
                        == SLOT_SUSPENDED);
}

#endif
