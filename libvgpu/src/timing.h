/* Measures how long launches take, by pairs of events around some of them. Never waits for the device. */
#ifndef VGPU_TIMING_H
#define VGPU_TIMING_H

#include "control.h"

/* Records the first event. Returns a place, or -1 if this launch cannot be measured. */
int vgpu_timing_begin(struct vgpu_estimate *estimate, struct vgpu_bucket *bucket, uint64_t context, void *stream,
                      bool per_thread);

/* Records the second event, or, if the launch has failed, forgets the first. At most `most_host` nanoseconds of the call are
 * taken for time in which the GPU had nothing to do. */
void vgpu_timing_end(int place, void *stream, bool per_thread, bool launched, uint64_t most_host);

/* Settles measurements that have finished. Returns whether any are still open. */
bool vgpu_timing_poll(void);

/* Before a context goes: its events go first. */
void vgpu_timing_forget(uint64_t context);

/* In a child that copied this process: events of the parent do not exist there. */
void vgpu_timing_forked(void);

#endif
