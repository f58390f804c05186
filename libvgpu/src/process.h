/* What this process knows: limits, its slot in the region, its charges. A child that was forked starts anew. */
#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include "config.h"
#include "counted.h"
#include "lock.h"
#include "region.h"
#include "table.h"

#include <time.h>

struct vgpu_compute; /* compute.h */

struct vgpu_process {
    struct vgpu_lock lock;        /* the tables and counters below */
    struct vgpu_lock import_lock; /* taken before that one, while it is counted what was imported */
    atomic_bool measures;         /* a thread measures a context that it makes */
    _Atomic uint64_t primary[VGPU_ORDINALS]; /* primary contexts by CUDA device number */
    atomic_bool limit_turn;                  /* a thread gives a context a limit */
    atomic_bool primary_turn[VGPU_ORDINALS]; /* a thread takes a primary context, or leaves it */
    _Atomic int32_t pid;           /* 0: nothing is open yet */
    _Atomic int greens;            /* green contexts */
    bool shares;                   /* the region is a file */
    int slot;                      /* -1: none */
    char limits[PATH_TEXT]; /* the file, where it is known */
    struct vgpu_config config;
    struct region *region;
    struct vgpu_compute *compute;
    uint64_t counted[VGPU_DEVICES][PART_COUNT];
    struct {
        uint64_t version, bytes;
    } shared[VGPU_DEVICES];              /* what vgpu_shares_sum said of that version of the records */
    uint64_t imports;                    /* records of what this process has imported */
    uint32_t generation;                 /* of the limits below, and of the process: changes with either */
    _Atomic uint64_t memory_limit[VGPU_DEVICES]; /* bytes, 0: none; UINT64_MAX: nothing may be used */
    _Atomic int core_limit[VGPU_DEVICES];        /* percent, 100: none */
    _Atomic int core_most[VGPU_DEVICES];         /* percent while the container is alone on the device */
    _Atomic int policy, compute_by;              /* of enum vgpu_policy, vgpu_compute_by */
    _Atomic uint64_t ordinals;           /* CUDA devices that have had a context, a bit each */
    _Atomic int32_t index[VGPU_ORDINALS]; /* region index + 1 by CUDA device number, 0: not asked yet */
    struct vgpu_table memory;      /* of struct vgpu_allocation */
    struct vgpu_table objects;     /* of struct vgpu_object, and so on */
    struct vgpu_table blocks, handles, mappings, bindings, endpoints;
    struct vgpu_table events;
};

extern struct vgpu_process vgpu_process;

/* Opens limits and region. False: the limits cannot be read. */
bool vgpu_open(void);

/* As vgpu_open, and has a slot. False also if there is none left. */
bool vgpu_attach(void);

/* Reads the limits again if their file has changed; looks once in a second. Part of vgpu_attach. */
void vgpu_refresh(void);

/* The limits cannot be read, or there is no memory to count in: nothing may be used. */
bool vgpu_is_forbidden(void);

/* Cheap: whether vgpu_open has succeeded in this very process, not in one that it was forked from. */
bool vgpu_is_open(void);

/* Whether what a file keeps for the process `owner`, 0 for none yet, was copied from that process in a fork. It is of this
 * one from now on. The caller locks. */
bool vgpu_is_inherited(int32_t *owner);

uint64_t vgpu_now(void); /* monotonic nanoseconds */

/* The second from which on the file with the limits is to be looked at again, by a clock that costs little. */
extern _Atomic int64_t vgpu_look_at;

static inline bool vgpu_is_look_due(void)
{
    struct timespec time;
    int64_t due = atomic_load_explicit(&vgpu_look_at, memory_order_relaxed);
    return due != INT64_MAX && clock_gettime(CLOCK_MONOTONIC_COARSE, &time) == 0 && time.tv_sec >= due;
}

/* For launches without a compute limit: the monitor's word in the region, or NULL where every launch must be looked at. */
extern _Atomic(_Atomic int32_t *) vgpu_free_recent;

/* Copies are charged as launches are: the limits say so, and there is a compute limit. The function reads the limits first. */
extern atomic_bool vgpu_copies_count;
bool vgpu_are_copies_charged(void);

static inline bool vgpu_is_own_suspended(const struct vgpu_process *process)
{
    return UNLIKELY(process->slot >= 0
                    && atomic_load_explicit(&process->region->slot[process->slot].status, memory_order_relaxed)
                        == SLOT_SUSPENDED);
}

#endif
