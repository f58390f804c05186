/* Launches wait here for GPU time, and while the monitor blocks the container. */
#ifndef VGPU_LAUNCH_H
#define VGPU_LAUNCH_H

#include "process.h"

struct vgpu_bucket;
struct vgpu_estimate;

struct vgpu_launch {
    struct vgpu_estimate *estimate; /* NULL: not limited */
    struct vgpu_bucket *bucket;
    uint64_t cost;
    int sample;                     /* place of its events, -1: not measured */
    uint64_t most_host;             /* nanoseconds for which the GPU waits at most for what the call does before */
    void *stream;
    bool per_thread;
};

enum { RECENT_ACTIVE = 2 };

extern _Thread_local uint32_t vgpu_launch_count __attribute__((tls_model("initial-exec")));

/* True: nothing is to be done. Now and then false, so that activity is noted. */
static inline bool vgpu_launch_is_free(void)
{
    _Atomic int32_t *recent = atomic_load_explicit(&vgpu_free_recent, memory_order_relaxed);
    return LIKELY(recent && atomic_load_explicit(recent, memory_order_relaxed) == RECENT_ACTIVE
                  && (++vgpu_launch_count & 255) && !vgpu_is_look_due());
}

void vgpu_launch_begin(struct vgpu_launch *launch, void *function, uint64_t shape, void *stream, bool per_thread);
void vgpu_launch_begin_config(struct vgpu_launch *launch, void *function, const void *config, bool per_thread);
void vgpu_launch_end(struct vgpu_launch *launch, int result);

/* Before a context goes. 0: none. */
void vgpu_launch_forget(uint64_t context);

/* Around the program's own events. */
void vgpu_event_recorded(void *event, void *stream, bool per_thread);
void vgpu_event_gone(void *event);

#endif
