/* Charges what cannot be computed beforehand, contexts, modules and arrays, by what the driver's free memory loses. */
#ifndef VGPU_MEASURE_H
#define VGPU_MEASURE_H

#include "table.h"

struct vgpu_measure {
    int index;        /* -1: cannot be measured */
    uint64_t context;
    uint64_t free, counted;
};

/* In the current context. */
void vgpu_measure_begin(struct vgpu_measure *measure);

/* Bytes that the driver has taken since, without what was charged meanwhile. Not more than `most`. */
uint64_t vgpu_measure_taken(const struct vgpu_measure *measure, uint64_t most);

/* Charges a module. 0, or 2 if it does not fit: the caller unloads it. */
int vgpu_measure_module(const struct vgpu_measure *measure, void *handle);

/* Remembers a charge that is returned when the handle goes. */
void vgpu_object_put(void *handle, int index, uint64_t bytes, uint64_t owner, enum vgpu_kind kind, enum vgpu_part part);
void vgpu_object_keep(const struct vgpu_entry *entry);

/* Before the handle goes, and after it: charges are returned if the driver has agreed. */
bool vgpu_object_take(void *handle, struct vgpu_entry *entry);
void vgpu_object_end(bool known, const struct vgpu_entry *entry, int result);

/* A context is gone and its memory with it. */
void vgpu_context_gone(uint64_t context);

#endif
