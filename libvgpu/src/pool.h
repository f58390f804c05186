/* Memory pools: a pool is charged what it has reserved, which is more than its live allocations. */
#ifndef VGPU_POOL_H
#define VGPU_POOL_H

#include "counted.h"

/* Releases what the pools of device d hold in reserve. True if that has changed what is charged. */
bool vgpu_pools_trim(int d);

/* As vgpu_charge, if need be after the pools of this process have given up what they hold in reserve. */
int vgpu_reserve(int d, uint64_t bytes, enum vgpu_part part);

/* As vgpu_import, in the same way. */
int vgpu_reserve_import(int d, uint64_t before, uint64_t after, enum vgpu_part part, struct vgpu_share *share);

/* The name by which processes know a pool, 0 if that cannot be told. Its own process gives it one. */
uint64_t vgpu_pool_name(uint64_t pool, bool own);

/* An allocation of the pool is gone. */
void vgpu_pool_freed(uint64_t pool, uint64_t bytes);

/* Before somebody is told what device d has left: pools may have given memory back to the driver. */
void vgpu_pools_look(int d);

/* How often the driver is asked what it holds, while other threads count their answers. The second that was counted since
 * this thread began is an answer to a later question: nothing is left to count for this one. */
enum { VGPU_LOOK_TRIES = 3 };

#endif
