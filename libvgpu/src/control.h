/* The law of the compute limit. Pure: time comes as an argument, nothing is read or written but the records below.
 *
 * A container has one bucket for each device, in nanoseconds of GPU time. It fills by the container's percentage of
 * the time that passes; a launch passes while there is credit and is charged what it will probably take. What a
 * launch takes is measured for some of them. Debt is paid before the next launch.
 */
#ifndef VGPU_CONTROL_H
#define VGPU_CONTROL_H

#include "types.h"

enum { VGPU_FIRST_COST = 20000 }; /* nanoseconds for a kernel of which nothing is known */

/* Shared by the processes of a container; all zero at first. Written by compare-and-swap only: no lock to die with. */
struct vgpu_bucket {
    _Atomic int64_t credit;           /* nanoseconds of GPU time */
    _Atomic uint64_t refilled;        /* until when time has been credited */
    _Atomic uint64_t charged;         /* sum of what was charged, ever */
    _Atomic uint64_t throttled;       /* sum of nanoseconds that launches waited */
    _Atomic uint64_t sampled;         /* time of the last utilization sample */
    _Atomic uint64_t sampled_charged; /* charged at that time */
    _Atomic uint64_t scale;           /* 65536 is 1; 0 is 1 */
    _Atomic uint64_t seen, expected;  /* smoothed utilization, sampled and charged; 65536 is 1 percent */
    _Atomic uint64_t resumed;         /* time of the first sample since launches are charged again; UINT64_MAX: they are not */
    _Atomic uint64_t rounds;          /* samples since then that count */
    _Atomic uint64_t mean_sampled, mean_measured; /* percent of the device in many samples; 256 is 1 */
    _Atomic int64_t off;              /* percent in the last sample that these two do not explain; 256 is 1 */
    _Atomic uint64_t variance;        /* of that */
    uint64_t unused[1];
};

/* What a kernel, or a graph, takes. Of one process. */
struct vgpu_estimate {
    _Atomic uint64_t key;
    _Atomic uint64_t mean;            /* nanoseconds */
    _Atomic uint32_t measured;        /* how often */
    _Atomic uint32_t launches;
    _Atomic uint32_t sampled;         /* launches whose measurement has begun */
    _Atomic uint32_t unsettled;       /* launches before the first measurement */
    _Atomic uint64_t unsettled_cost;  /* what they were charged */
};

/* What the next launch is charged, and whether it is to be measured. */
uint64_t vgpu_estimate_launch(struct vgpu_estimate *estimate, bool *measure);

/* A launch that was charged `cost` has failed, or cannot be measured: it is not settled later. */
void vgpu_estimate_cancel(struct vgpu_estimate *estimate, uint64_t cost);

/* A launch has taken `elapsed`. Returns what is still owed for earlier launches; negative: what they had too much. */
int64_t vgpu_estimate_measured(struct vgpu_estimate *estimate, uint64_t elapsed);

/* Takes `cost` if there is credit, without looking at the clock. */
bool vgpu_bucket_take(struct vgpu_bucket *bucket, uint64_t cost);

/* Credits the time until `now`. Returns 0 if there is credit then, else how long that will take. */
uint64_t vgpu_bucket_refill(struct vgpu_bucket *bucket, uint64_t now, int cores);

/* Charges or, negative, gives back. */
void vgpu_bucket_settle(struct vgpu_bucket *bucket, int64_t cost);

/* A sample, where nothing else tells what launches take: charges it. */
void vgpu_bucket_bill(struct vgpu_bucket *bucket, uint64_t when, uint64_t percent);

/* Nanoseconds that are owed. */
uint64_t vgpu_bucket_debt(const struct vgpu_bucket *bucket);

/* Nothing is charged now, since nothing is limited: what is sampled meanwhile says nothing about charges. */
void vgpu_bucket_rest(struct vgpu_bucket *bucket);

/* A sample: the container had `percent` of the device until `when`. Corrects the scale of what is charged. */
void vgpu_bucket_sample(struct vgpu_bucket *bucket, uint64_t when, uint64_t percent);

#endif
