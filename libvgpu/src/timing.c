#include "timing.h"

#include "lock.h"
#include "resolve.h"

enum { PLACES = 64 };
enum { FREE, STARTED, RUNNING };

struct sample {
    int state;
    uint64_t context; /* whose events these are; 0: none made yet */
    void *first, *second;
    struct vgpu_estimate *estimate;
    struct vgpu_bucket *bucket;
};

static struct vgpu_lock lock;
static struct sample sample[PLACES];
static _Atomic int open_samples;

/* A query of an event would break a capture that another stream of the thread has begun. */
static uint32_t relax(void)
{
    uint32_t mode = CAPTURE_MODE_RELAXED;
    if (HAS(cuThreadExchangeStreamCaptureMode))
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static void restore(uint32_t mode)
{
    if (HAS(cuThreadExchangeStreamCaptureMode))
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static int record(void *event, void *stream, bool per_thread)
{
    return per_thread ? REAL(cuEventRecord_ptsz)(event, stream) : REAL(cuEventRecord)(event, stream);
}

static struct sample *free_sample(uint64_t context)
{
    struct sample *unmade = NULL;
    for (int i = 0; i < PLACES; i++) {
        if (sample[i].state == FREE && sample[i].context == context)
            return &sample[i];
        if (!unmade && sample[i].context == 0)
            unmade = &sample[i];
    }
    if (!unmade || REAL(cuEventCreate)(&unmade->first, 0) != 0)
        return NULL;
    if (REAL(cuEventCreate)(&unmade->second, 0) != 0) {
        REAL(cuEventDestroy_v2)(unmade->first);
        return NULL;
    }
    unmade->context = context;
    return unmade;
}

int vgpu_timing_begin(struct vgpu_estimate *estimate, struct vgpu_bucket *bucket, uint64_t context, void *stream,
                      bool per_thread)
{
    if (!vgpu_trylock(&lock))
        return -1;
    uint32_t mode = relax();
    struct sample *one = free_sample(context);
    bool good = one && record(one->first, stream, per_thread) == 0;
    restore(mode);
    if (good) {
        one->state = STARTED;
        one->estimate = estimate;
        one->bucket = bucket;
    }
    vgpu_unlock(&lock);
    return good ? (int)(one - sample) : -1;
}

void vgpu_timing_end(int place, void *stream, bool per_thread, bool launched)
{
    vgpu_lock(&lock);
    struct sample *one = &sample[place];
    if (one->state == STARTED) { /* else its context was destroyed meanwhile */
        uint32_t mode = relax();
        bool good = launched && record(one->second, stream, per_thread) == 0;
        restore(mode);
        one->state = good ? RUNNING : FREE;
        if (good)
            atomic_fetch_add(&open_samples, 1);
    }
    vgpu_unlock(&lock);
}

static bool settle(struct sample *one)
{
    int result = REAL(cuEventQuery)(one->second);
    if (result == CUDA_NOT_READY)
        return false;
    float milliseconds;
    if (result == CUDA_OK && REAL(cuEventElapsedTime)(&milliseconds, one->first, one->second) == 0) {
        uint64_t elapsed = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
        vgpu_bucket_settle(one->bucket, vgpu_estimate_measured(one->estimate, elapsed ? elapsed : 1));
    }
    one->state = FREE;
    atomic_fetch_sub(&open_samples, 1);
    return true;
}

bool vgpu_timing_poll(void)
{
    if (LIKELY(atomic_load_explicit(&open_samples, memory_order_relaxed) == 0))
        return false;
    if (!vgpu_trylock(&lock))
        return true;
    uint32_t mode = relax();
    for (int i = 0, asked = 0; i < PLACES && asked < 4; i++)
        if (sample[i].state == RUNNING)
            asked += !settle(&sample[i]); /* work in progress ends in about the order it began */
    restore(mode);
    vgpu_unlock(&lock);
    return atomic_load(&open_samples) > 0;
}

void vgpu_timing_forget(uint64_t context)
{
    if (!context)
        lock = (struct vgpu_lock){0}; /* a child has only one thread */
    vgpu_lock(&lock);
    for (int i = 0; i < PLACES; i++)
        if (!context || sample[i].context == context) {
            if (sample[i].state == RUNNING)
                atomic_fetch_sub(&open_samples, 1);
            sample[i] = (struct sample){0};
        }
    vgpu_unlock(&lock);
}
