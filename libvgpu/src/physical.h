/* Physical memory by handle, and its mappings. */
#ifndef VGPU_PHYSICAL_H
#define VGPU_PHYSICAL_H

#include "counted.h"

/* Before memory of a handle is mapped or bound as far as `end`: an imported block is at least that large, and charged so from now
 * on. 0, or why it must not be. *before: the block as it was; its number is 0 if nothing has changed. */
int vgpu_physical_widen(uint64_t handle, uint64_t end, struct vgpu_block *before);

/* The driver has refused: what was shown is not held. */
void vgpu_physical_narrow(uint64_t handle, uint64_t end, const struct vgpu_block *before);

#endif
