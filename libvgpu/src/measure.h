/* Measures what the driver takes by itself, by what the free memory of the device loses. What others do meanwhile distorts
 * that, so it is the last resort: for a context whose size nobody has told, and for modules that are loaded whole. */
#ifndef VGPU_MEASURE_H
#define VGPU_MEASURE_H

#include "types.h"

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
