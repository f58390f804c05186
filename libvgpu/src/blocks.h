/* Blocks of physical memory, and who holds them: handles, mappings, and what they are bound to, which is a multicast object, a
 * logical endpoint or a sparse array. A block is charged until the last of them is gone.
 *
 * The caller of all these functions locks. */
#ifndef VGPU_BLOCKS_H
#define VGPU_BLOCKS_H

#include "counted.h"

struct vgpu_freed; /* account.h */

/* A new block with one reference. Its number. */
uint64_t vgpu_block_add(struct vgpu_block block);

/* References and mappings of a block change. What it was charged is freed once both are zero. */
void vgpu_block_change(uint64_t number, int references, int mappings, struct vgpu_freed *freed);

/* What held a block, 0 for none, is gone: one reference less. */
void vgpu_block_leave(uint64_t number, struct vgpu_freed *freed);

/* A new block with one reference by the handle; one more reference by it; one less, and the number of the block, 0 if the handle
 * is not known. */
void vgpu_handle_add(uint64_t handle, struct vgpu_block block);
void vgpu_handle_refer(uint64_t handle, uint64_t block);
uint64_t vgpu_handle_unrefer(uint64_t handle);

/* The block of a handle, NULL if it is not known. */
struct vgpu_block *vgpu_block_of(uint64_t handle);

/* The number of the block that is mapped at an address, 0 if none is. */
uint64_t vgpu_block_at(uint64_t address);

/* The object, by the number of its block, holds a block of memory from now on, at a place. */
void vgpu_block_bind(uint64_t object, uint64_t block, uint64_t plane, const struct vgpu_box *box);

/* The object no longer holds what was bound to it: memory of a device, -1 for all, that begins in a range of the object. */
void vgpu_block_unbind(uint64_t object, int device, uint64_t from, uint64_t size, struct vgpu_freed *freed);

/* The same for a part of a plane of the object. What was bound beyond that part stays. */
void vgpu_block_cut(uint64_t object, uint64_t plane, const struct vgpu_box *box, struct vgpu_freed *freed);

#endif
