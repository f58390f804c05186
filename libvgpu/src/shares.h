/* Records of memory that several processes hold, in words of the region that HAMi leaves free: which block, how large,
 * by whom. A record belongs to the process whose slot it names, and goes with that slot. So a block counts once, whoever
 * holds it, and nothing waits for anybody. */
#ifndef VGPU_SHARES_H
#define VGPU_SHARES_H

#include "region.h"
#include "counted.h"

enum { SHARE_RECORDS = REGION_SLOTS * VGPU_DEVICES }; /* the first one is not used for a block */

/* Changes whenever a record does; 0: there has never been one. */
uint64_t vgpu_shares_version(const struct region *region);

/* The block that a handle with that name means: that of a record with the name, otherwise the name itself. */
uint64_t vgpu_share_block(struct region *region, uint64_t name);

/* Bytes of a block by its records, 0 if there are none. */
uint64_t vgpu_share_bytes(struct region *region, uint64_t block);

/* A record of the process in slot `owner`; 0 if none is free. Exported: this process counts the block itself. */
uint32_t vgpu_share_add(struct region *region, int owner, int d, uint64_t bytes, const struct vgpu_share *share,
                        bool exported);
void vgpu_share_resize(struct region *region, int owner, uint32_t record, uint64_t bytes);
void vgpu_share_remove(struct region *region, int owner, uint32_t record);

/* Removes the records of a process, those of what it has imported or those of what it has exported: of one block, or of
 * all if that is 0. */
void vgpu_shares_drop(struct region *region, int owner, bool exported, uint64_t block);

/* What records count may have changed otherwise than by a record. */
void vgpu_shares_changed(struct region *region);

/* Bytes on device d that processes hold, suspended ones aside, and that none of them counts itself: those of each block once. Also with a
 * block that a process is about to import, if that is not NULL. */
uint64_t vgpu_shares_sum(struct region *region, int d, const struct vgpu_share *more, uint64_t bytes);

/* Marks slots with records. What names no slot at all is freed. */
void vgpu_shares_owners(struct region *region, bool has_records[REGION_SLOTS]);

#endif
