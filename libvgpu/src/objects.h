/* What is charged for handles of the driver's: contexts, arrays, modules, external memory. */
#ifndef VGPU_OBJECTS_H
#define VGPU_OBJECTS_H

#include "counted.h"

struct vgpu_freed; /* account.h */

/* Remembers a charge that is returned when the handle, or its context, goes. */
void vgpu_object_put(void *handle, int index, uint64_t bytes, uint64_t context, enum vgpu_part part);
void vgpu_object_keep(const struct vgpu_object *object);

/* Before the handle goes, and after it: charges are returned if the driver has agreed. */
bool vgpu_object_take(void *handle, struct vgpu_object *object);
void vgpu_object_end(bool known, const struct vgpu_object *object, int result);

/* A context is gone and its memory with it. The caller of the second locks, and returns what was freed. */
void vgpu_context_gone(uint64_t context);
void vgpu_context_take(uint64_t context, struct vgpu_freed *freed);

#endif
