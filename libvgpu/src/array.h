/* Arrays: the driver lays them out. It tells beforehand what that takes, for one whose memory would come later. */
#ifndef VGPU_ARRAY_H
#define VGPU_ARRAY_H

#include "types.h"

/* As cuArray3DCreate_v2 and cuMipmappedArrayCreate take it. */
struct vgpu_array {
    uint64_t width, height, depth;
    uint32_t format, channels, flags;
};

/* The same from what the other functions take; the name is that in hooks.txt. */
struct vgpu_array vgpu_array_flat(const void *given);
struct vgpu_array vgpu_array_flat_v1(const void *given);
struct vgpu_array vgpu_array_deep(const void *given);
struct vgpu_array vgpu_array_deep_v1(const void *given);

struct vgpu_creation {
    int index; /* -1: not charged */
    uint64_t charged, context;
    bool is_later, is_whole; /* its memory is mapped to it later: parts, or all of it at once */
};

/* Before an array with so many levels, 0 for one that is not mipmapped. 0, or why it must not be made. */
int vgpu_array_begin(struct vgpu_creation *creation, void *place, struct vgpu_array array, uint32_t levels);
int vgpu_array_end(const struct vgpu_creation *creation, void *place, int result);

#endif
