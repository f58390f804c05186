/* Contexts take memory of the device by themselves. The limits say how much, as the device plugin has measured it on a card
 * with no other user; where they do not, it is measured here (measure.h). */
#ifndef VGPU_CONTEXT_H
#define VGPU_CONTEXT_H

#include "measure.h"

struct vgpu_making {
    int index; /* -1: not charged */
    uint64_t charged;
    bool measured;               /* by this thread, since it was not known */
    struct vgpu_own own;         /* by what NVML tells of this process */
    struct vgpu_measure measure; /* where NVML does not tell */
};

/* Of threads that take and leave a context, or set a limit of one, one sees what the other has made of it. */
struct vgpu_turn {
    atomic_bool *taken; /* NULL: not this thread's */
    int state;
};

/* One thread after the other; but none waits for more than a second. */
struct vgpu_turn vgpu_turn_begin(atomic_bool *turn);
void vgpu_turn_end(struct vgpu_turn turn);

/* Before a context is made on the device, and written to `place`. 0, or why it must not be made. */
int vgpu_context_begin(struct vgpu_making *making, void *place, int ordinal);

/* After it: the result. *undo: the context takes more than fits, and must go again. */
int vgpu_context_end(struct vgpu_making *making, void *place, int result, bool *undo);

/* Around the end of a context. */
void vgpu_context_going(void *context);
int vgpu_context_ended(void *context, int result);

#endif
