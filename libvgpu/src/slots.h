/* Slots of processes in the region: taken, given back, and freed when a process is gone. */
#ifndef VGPU_SLOTS_H
#define VGPU_SLOTS_H

#include "region.h"

/* A slot for this process, counters zero; -1 if all are taken by processes that live. */
int vgpu_slot_claim(struct region *region, const char *path);

/* Gives the slot back. Counters must be zero before, or the process must be gone. */
void vgpu_slot_release(struct region *region, struct region_slot *slot);

/* The process is suspended, or it is not. One that has ended is neither. */
void vgpu_slot_suspend(struct region *region, struct region_slot *slot, bool suspended);

/* Frees the slots of processes that are gone. Skipped if another process does so just now. Returns how many. */
int vgpu_region_reap(struct region *region, const char *path);

#endif
