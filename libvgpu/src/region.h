/* The region that the processes of a container, the device plugin and the node monitor share.
 *
 * Layout 1.2 of HAMi, so that HAMi's monitor, plugin and library work with ours. Words that HAMi leaves free:
 * in each slot, `identity` tells processes with the same number apart; `uncounted` is memory that the monitor sees
 * and the limiter does not; `exported`, `imported` and the records are memory that processes share; `sampled` is when the
 * monitor last wrote to the slot.
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include "types.h"

enum { REGION_MAGIC = 19920718, REGION_MAJOR = 1, REGION_MINOR = 2, REGION_SLOTS = 1024, REGION_FILE = 2008953 };

/* HAMi's numbers. What a suspended process counts is on no card. */
enum region_status { SLOT_ENDED, SLOT_RUNS, SLOT_SUSPENDED };

struct region_memory {
    _Atomic uint64_t context, module, data, offset, total;
    _Atomic uint64_t uncounted; /* by our monitor: bytes on the host beyond `total` */
    _Atomic uint64_t exported;  /* of `data`: what other processes may have opened */
    _Atomic uint64_t imported;  /* what this process has opened of others and no record tells apart; not in `total` */
};

/* A block of memory that a process holds, and others may hold, too. It lies in any slot, not in that of the process. */
struct region_record {
    _Atomic uint64_t state; /* 0: free; whose it is, device, size: shares.c */
    _Atomic uint64_t name;  /* of the handle by which others open the block */
    _Atomic uint64_t block; /* the same for all handles of a block */
};

struct region_utilization {
    _Atomic uint64_t decoder, encoder, sm;
    struct region_record record;
};

struct region_slot {
    _Atomic int32_t pid; /* 0: free */
    _Atomic int32_t host_pid;
    struct region_memory memory[VGPU_DEVICES];
    _Atomic uint64_t monitor_used[VGPU_DEVICES];
    struct region_utilization utilization[VGPU_DEVICES];
    _Atomic int32_t status; /* of enum region_status */
    int32_t padding;
    _Atomic uint64_t sequence; /* always even: our readers never wait for it */
    _Atomic uint64_t identity; /* PID namespace in the upper half, start time in the lower; 0: not yet known */
    _Atomic uint64_t sampled;  /* monotonic nanoseconds at which the monitor wrote utilization and uncounted */
};

struct region {
    _Atomic int32_t magic; /* written last */
    uint32_t major, minor;
    _Atomic int32_t sm_initialized;
    _Atomic uint64_t owner;
    uint32_t semaphore[8]; /* left as an unlocked sem_t for HAMi's library */
    _Atomic uint64_t device_count;
    char uuid[VGPU_DEVICES][96];
    _Atomic uint64_t memory_limit[VGPU_DEVICES];
    _Atomic uint64_t core_limit[VGPU_DEVICES];
    struct region_slot slot[REGION_SLOTS];
    _Atomic int32_t slots_used; /* slots from here on have never been used */
    _Atomic int32_t limit_switch;
    _Atomic int32_t recent_kernel; /* above 0: active, below 0: blocked by the monitor */
    int32_t priority;
    _Atomic uint64_t last_kernel_time; /* Unix seconds */
    uint32_t second_semaphore[8];
};

_Static_assert(offsetof(struct region, semaphore) == 24, "layout 1.2");
_Static_assert(offsetof(struct region, device_count) == 56, "layout 1.2");
_Static_assert(offsetof(struct region, uuid) == 64, "layout 1.2");
_Static_assert(offsetof(struct region, memory_limit) == 1600, "layout 1.2");
_Static_assert(offsetof(struct region, core_limit) == 1728, "layout 1.2");
_Static_assert(offsetof(struct region, slot) == 1856, "layout 1.2");
_Static_assert(sizeof(struct region_slot) == 1960, "layout 1.2");
_Static_assert(offsetof(struct region_slot, memory) == 8, "layout 1.2");
_Static_assert(offsetof(struct region_slot, monitor_used) == 1032, "layout 1.2");
_Static_assert(offsetof(struct region_slot, utilization) == 1160, "layout 1.2");
_Static_assert(offsetof(struct region_slot, utilization[0].record) == 1184, "layout 1.2");
_Static_assert(offsetof(struct region_slot, status) == 1928, "layout 1.2");
_Static_assert(offsetof(struct region_slot, identity) == 1944, "layout 1.2");
_Static_assert(offsetof(struct region, slots_used) == 2008896, "layout 1.2");
_Static_assert(offsetof(struct region, last_kernel_time) == 2008912, "layout 1.2");
_Static_assert(sizeof(struct region) == 2008952, "layout 1.2");

struct vgpu_config;

/* Opens or makes the region at `path`. Returns NULL if it cannot be had within 100 ms; *made: it was new. */
struct region *vgpu_region_open(const char *path, const struct vgpu_config *config, bool *made);

/* A region of this process only. */
struct region *vgpu_region_private(const struct vgpu_config *config);

/* Slots from here on have never been used. */
int vgpu_region_used(struct region *region);

/* A lock on the file that dies with its holder; -1 if it is not to be had within `milliseconds`. */
int vgpu_file_lock(const char *path, int milliseconds);
void vgpu_file_unlock(int file);

/* In a child that copied this process: locks of other threads do not exist there. */
void vgpu_region_forked(void);

/* The number, in its own PID namespace, of the process that lives and has a slot: looked up by the number that it has on
 * the host, as far as the monitor has written it, or that it has here. 0: none. */
uint32_t vgpu_region_number(struct region *region, uint32_t pid, bool on_host);

/* The number on the host of the process with that number here, which lives and has a slot. 0: there is none, or the monitor has not
 * written it. */
uint32_t vgpu_region_host_number(struct region *region, uint32_t pid);

/* The slot of the process with that number here, which lives. NULL: it has none. */
struct region_slot *vgpu_region_slot(struct region *region, uint32_t pid);

/* Adds what all other slots count on device d, but for those of suspended processes. Of what is imported, the largest remains. */
struct vgpu_sum {
    uint64_t counted, exported, imported;
};
void vgpu_region_others(struct region *region, int own, int d, struct vgpu_sum *sum);

#endif
