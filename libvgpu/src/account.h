/* Counting memory and holding it to the limit. Never more than the limit, at no instant: a process adds to its own
 * counter first, then looks at the sum. */
#ifndef VGPU_ACCOUNT_H
#define VGPU_ACCOUNT_H

#include "counted.h"

/* 0, or the CUDA error: 2 where the limit of device d forbids it. A charge of 0 bytes always succeeds. */
int vgpu_charge(int d, uint64_t bytes, enum vgpu_part part);
void vgpu_uncharge(int d, uint64_t bytes, enum vgpu_part part);

/* Replaces a charge of `before` bytes, which the caller holds, by one of `after`. As vgpu_charge. */
int vgpu_recharge(int d, uint64_t before, uint64_t after, enum vgpu_part part);

/* As vgpu_recharge where the memory is already there: never refused. Returns false if it is over the limit now. The caller,
 * who has attached, holds the process's lock since it read `before`: of two who did so at once, one would take away what the
 * other has yet to add. */
bool vgpu_correct(int d, uint64_t before, uint64_t after, enum vgpu_part part);

/* What is to be returned once no lock is held. The caller of vgpu_free holds the process's lock. */
struct vgpu_freed {
    uint64_t bytes[VGPU_DEVICES][PART_COUNT];
};
void vgpu_free(struct vgpu_freed *freed, const struct vgpu_amount *amount);
void vgpu_uncharge_all(const struct vgpu_freed *freed);

/* Other processes may open that memory, NULL if it is not known, by a handle with that name, 0 if it has none. The caller
 * holds the process's lock. */
void vgpu_export(struct vgpu_amount *amount, uint64_t name);
void vgpu_unexport(const struct vgpu_amount *amount);

/* This process holds `after` bytes of a block that was imported, in place of `before`. A block with a name gets a record;
 * one without is charged to `part`. As vgpu_charge. */
int vgpu_import(int d, uint64_t before, uint64_t after, enum vgpu_part part, struct vgpu_share *share);

/* Takes that back: fewer bytes, or none. */
void vgpu_unimport(int d, uint64_t before, uint64_t after, enum vgpu_part part, const struct vgpu_share *share);

/* Bytes that the container uses on device d: what its processes count, and what they hold of memory that was imported
 * and that none of them counts. Records in the region tell blocks apart. Imports without a name, and those for which no
 * record is free, can only be compared by sums: what is exported covers as many bytes, and since several importers may
 * hold the same, the largest counts. */
uint64_t vgpu_usage(int d);
uint64_t vgpu_counted(int d); /* by this process */
bool vgpu_is_within(int d);   /* the container's limit */

/* Frees slots of dead processes if that has not been done within the last second. For those who only look. */
void vgpu_tidy(void);

#endif
