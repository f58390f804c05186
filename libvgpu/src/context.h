/* Contexts take memory of the device by themselves. The limits say how much, as the device plugin has measured it on a card
 * with no other user; where they do not, it is measured here:
 * by what NVML tells of this process, or else by what the free memory of the device loses, which others distort. */
#ifndef VGPU_CONTEXT_H
#define VGPU_CONTEXT_H

#include "measure.h"

struct vgpu_making {
    int index; /* -1: not charged */
    uint64_t charged;
    bool measured; /* by this thread, since it was not known */
    bool told;     /* NVML tells what this process takes; before the context, these bytes */
    uint64_t used, counted;
    struct vgpu_measure measure; /* where NVML does not */
};

/* Before a context is made on the device, and written to `place`. 0, or why it must not be made. */
int vgpu_context_begin(struct vgpu_making *making, void *place, int ordinal);

/* After it: the result. *undo: the context takes more than fits, and must go again. */
int vgpu_context_end(struct vgpu_making *making, void *place, int result, bool *undo);

/* Around the end of a context. */
void vgpu_context_going(void *context);
int vgpu_context_ended(void *context, int result);

#endif
