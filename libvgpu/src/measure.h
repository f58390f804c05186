/* Measures what the driver takes by itself: by what NVML tells of this process; of a process that is new on the device, if NVML
 * tells the host's numbers; or by what the free memory of the device loses. What others do meanwhile distorts that one, so it
 * is the last resort: for a context whose size nobody has told, and for modules that are loaded whole. */
#ifndef VGPU_MEASURE_H
#define VGPU_MEASURE_H

#include "driver_nvml.h"

/* What NVML tells that this process takes of a device: nobody else distorts it. */
struct vgpu_own {
    int index;
    bool told;
    uint64_t used, counted;
    struct vgpu_pids before; /* of a process that had no context: all that were there */
};

/* Of a process that has a context there, or is about to make its first one. False: NVML does not tell. */
bool vgpu_own_begin(struct vgpu_own *own, int index, bool has_context);

/* Bytes that the driver has taken since, negative for those that it has given back, without what was charged meanwhile. False:
 * NVML does not tell. */
bool vgpu_own_change(const struct vgpu_own *own, int64_t *bytes);

/* Bytes of this process since its first context. A driver that tells the host's numbers does not say which process this is: one
 * that was not there; of several, the one with the least, since others have memory beside their context. False: NVML does not
 * tell. */
bool vgpu_own_first(const struct vgpu_own *own, uint64_t *bytes);

struct vgpu_measure {
    int index;    /* place of the device in the limits; -1: cannot be measured */
    bool by_nvml;
    uint64_t free, counted;
};

/* Of the device with that number. With a context of it, CUDA is asked; the CUDA runtime makes a primary context current before
 * it takes it, and then CUDA does not answer. */
void vgpu_measure_begin(struct vgpu_measure *measure, int ordinal, bool has_context);

/* Bytes that the driver has taken since, without what was charged meanwhile. Not more than `most`. */
uint64_t vgpu_measure_taken(const struct vgpu_measure *measure, uint64_t most);

#endif
