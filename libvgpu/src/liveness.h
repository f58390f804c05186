/* Whether a process still lives, by its number, its start time and its PID namespace. */
#ifndef VGPU_LIVENESS_H
#define VGPU_LIVENESS_H

#include "types.h"

/* Of this process: number of its PID namespace in the upper half, start time in the lower. 0 if /proc is not there. */
uint64_t vgpu_identity(void);

/* True for a process of another PID namespace. */
bool vgpu_is_elsewhere(uint64_t identity);

/* True only if that is certain. Processes of other PID namespaces cannot be judged here: see vgpu_region_reap. */
bool vgpu_is_dead(int32_t pid, uint64_t identity);

#endif
