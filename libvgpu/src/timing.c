#include "timing.h"

#include "capture.h"
#include "process.h"
#include "resolve.h"

#include <string.h>

enum { PLACES = 128, PLACES_OF_CONTEXT = 8, QUERIES = 4, GAP_TRIES = 8 };
enum { FREE, CLAIMED, RUNNING };
enum { UNKNOWN, ASKED, KNOWN };

static const uint64_t MOST_GAP = 10000; /* nanoseconds; more is the time slice of a neighbor */

/* A place belongs to the thread that has claimed it; no lock is held while the driver is called, which may take long. */
struct sample {
    _Atomic int state;
    _Atomic uint64_t context; /* whose events these are; 0: none made yet */
    atomic_bool gone;         /* the context has been destroyed meanwhile */
    void *first, *second;
    struct vgpu_estimate *estimate; /* NULL: nothing is between the events */
    struct vgpu_bucket *bucket;
    uint64_t begun; /* when the first event was recorded */
    uint64_t host;  /* for how long the GPU had nothing to do since, since the launch took so long */
};

static struct sample sample[PLACES];
static _Atomic int open_samples;

/* Nanoseconds that two events tell with nothing between them: the card needs them for the events, and the kernel not. */
static _Atomic uint64_t gap;
static _Atomic int gap_state;

static bool claim(struct sample *one, int state)
{
    return atomic_compare_exchange_strong(&one->state, &state, CLAIMED);
}

/* The caller has claimed it. */
static void clear(struct sample *one)
{
    if (!one->estimate)
        atomic_compare_exchange_strong(&gap_state, &(int){ASKED}, UNKNOWN);
    atomic_store(&one->gone, false);
    atomic_store(&one->context, 0);
    atomic_store(&one->state, FREE);
}

static void release(struct sample *one, int state)
{
    atomic_store(&one->state, state);
    if (UNLIKELY(atomic_load(&one->gone)) && claim(one, state)) {
        if (state == RUNNING)
            atomic_fetch_sub(&open_samples, 1);
        clear(one);
    }
}

static int record(void *event, void *stream, bool per_thread)
{
    return per_thread ? REAL(cuEventRecord_ptsz)(event, stream) : REAL(cuEventRecord)(event, stream);
}

static bool make_events(struct sample *one, uint64_t context)
{
    if (REAL(cuEventCreate)(&one->first, 0) != 0)
        return false;
    if (REAL(cuEventCreate)(&one->second, 0) != 0) {
        REAL(cuEventDestroy_v2)(one->first);
        return false;
    }
    atomic_store(&one->context, context);
    return true;
}

/* A place with events of the context, claimed; NULL if it has none left: none may take all. */
static struct sample *claim_place(uint64_t context)
{
    int own = 0;
    for (int i = 0; i < PLACES; i++) {
        bool mine = atomic_load_explicit(&sample[i].context, memory_order_relaxed) == context;
        own += mine;
        if (mine && claim(&sample[i], FREE)) {
            if (atomic_load(&sample[i].context) == context)
                return &sample[i];
            release(&sample[i], FREE);
        }
    }
    for (int i = 0; i < PLACES && own < PLACES_OF_CONTEXT; i++) {
        if (atomic_load_explicit(&sample[i].context, memory_order_relaxed) || !claim(&sample[i], FREE))
            continue;
        if (!atomic_load(&sample[i].context) && make_events(&sample[i], context))
            return &sample[i];
        release(&sample[i], FREE);
        return NULL;
    }
    return NULL;
}

static void ask_for_gap(uint64_t context, void *stream, bool per_thread)
{
    if (LIKELY(atomic_load_explicit(&gap_state, memory_order_relaxed) != UNKNOWN)
        || !atomic_compare_exchange_strong(&gap_state, &(int){UNKNOWN}, ASKED))
        return;
    struct sample *one = claim_place(context);
    bool good = one && record(one->first, stream, per_thread) == 0 && record(one->second, stream, per_thread) == 0;
    if (good) {
        one->estimate = NULL;
        atomic_fetch_add(&open_samples, 1);
    } else {
        atomic_store(&gap_state, UNKNOWN);
    }
    if (one)
        release(one, good ? RUNNING : FREE);
}

static void note_gap(uint64_t elapsed)
{
    static _Atomic int tries;
    bool good = elapsed <= MOST_GAP;
    if (good)
        atomic_store(&gap, elapsed);
    atomic_store(&gap_state, good || atomic_fetch_add(&tries, 1) == GAP_TRIES ? KNOWN : UNKNOWN);
}

int vgpu_timing_begin(struct vgpu_estimate *estimate, struct vgpu_bucket *bucket, uint64_t context, void *stream,
                      bool per_thread)
{
    uint32_t mode = vgpu_relax();
    ask_for_gap(context, stream, per_thread);
    struct sample *one = claim_place(context);
    bool good = one && record(one->first, stream, per_thread) == 0;
    vgpu_restore(mode);
    if (good) {
        one->estimate = estimate;
        one->bucket = bucket;
        one->begun = vgpu_now();
    } else if (one) {
        release(one, FREE);
    }
    return good ? (int)(one - sample) : -1;
}

void vgpu_timing_end(int place, void *stream, bool per_thread, bool launched, uint64_t most_host)
{
    struct sample *one = &sample[place];
    uint32_t mode = vgpu_relax();
    /* If the GPU had nothing else to do it has waited for the launch, which may have loaded code. */
    one->host = launched && REAL(cuEventQuery)(one->first) == CUDA_OK ? vgpu_now() - one->begun : 0;
    one->host = one->host > most_host ? most_host : one->host;
    bool good = launched && record(one->second, stream, per_thread) == 0;
    vgpu_restore(mode);
    if (good)
        atomic_fetch_add(&open_samples, 1);
    release(one, good ? RUNNING : FREE);
}

static bool settle(struct sample *one)
{
    int result = REAL(cuEventQuery)(one->second);
    if (result == CUDA_NOT_READY) {
        release(one, RUNNING);
        return false;
    }
    float milliseconds;
    uint64_t elapsed = UINT64_MAX;
    if (result == CUDA_OK && REAL(cuEventElapsedTime)(&milliseconds, one->first, one->second) == 0)
        elapsed = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
    if (UNLIKELY(!one->estimate)) {
        note_gap(elapsed);
    } else if (elapsed != UINT64_MAX) {
        elapsed = vgpu_less(elapsed, vgpu_add(one->host, atomic_load(&gap)));
        vgpu_bucket_settle(one->bucket, vgpu_estimate_measured(one->estimate, elapsed ? elapsed : 1));
    }
    atomic_fetch_sub(&open_samples, 1);
    release(one, FREE);
    return true;
}

bool vgpu_timing_poll(void)
{
    static _Atomic uint32_t next;
    if (LIKELY(atomic_load_explicit(&open_samples, memory_order_relaxed) == 0))
        return false;
    uint32_t mode = vgpu_relax();
    uint32_t first = atomic_fetch_add_explicit(&next, PLACES_OF_CONTEXT, memory_order_relaxed);
    for (uint32_t i = 0, asked = 0; i < PLACES && asked < QUERIES; i++) {
        struct sample *one = &sample[(first + i) % PLACES];
        if (atomic_load_explicit(&one->state, memory_order_relaxed) == RUNNING && claim(one, RUNNING))
            asked += !settle(one); /* work in progress ends in about the order it began */
    }
    vgpu_restore(mode);
    return atomic_load(&open_samples) > 0;
}

void vgpu_timing_forget(uint64_t context)
{
    for (int i = 0; i < PLACES; i++) {
        struct sample *one = &sample[i];
        if (atomic_load(&one->context) != context)
            continue;
        atomic_store(&one->gone, true); /* who has claimed it clears it */
        bool running = claim(one, RUNNING);
        if (!running && !claim(one, FREE))
            continue;
        if (running)
            atomic_fetch_sub(&open_samples, 1);
        REAL(cuEventDestroy_v2)(one->first);
        REAL(cuEventDestroy_v2)(one->second);
        clear(one);
    }
}

void vgpu_timing_forked(void)
{
    memset(sample, 0, sizeof sample);
    atomic_compare_exchange_strong(&gap_state, &(int){ASKED}, UNKNOWN);
    atomic_store(&open_samples, 0);
}
