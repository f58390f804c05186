#include "launch.h"

#include "capture.h"
#include "compute.h"
#include "devices.h"
#include "process.h"
#include "resolve.h"
#include "timing.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ESTIMATES = 4096, PROBES = 8, POLL_EVERY = 8 };

static const uint64_t SLICE = 20000000;      /* a wait is looked at anew after 20 ms at most */
static const uint64_t SHORT_SLICE = 200000;  /* after 0.2 ms while measurements are open */
static const uint64_t HEARTBEAT = 30000000000;

_Atomic(_Atomic int32_t *) vgpu_free_recent;
_Thread_local uint32_t vgpu_launch_count __attribute__((tls_model("initial-exec")));

static struct vgpu_estimate estimates[ESTIMATES];

static void wait_for(uint64_t nanoseconds)
{
    struct timespec time = {0, (long)nanoseconds};
    nanosleep(&time, NULL);
}

/* Tells the monitor that the container is active. It counts the word down, so this is written rarely. */
static void note_activity(struct region *region)
{
    int32_t recent = atomic_load(&region->recent_kernel);
    if (recent >= 0 && recent != RECENT_ACTIVE)
        atomic_compare_exchange_strong(&region->recent_kernel, &recent, RECENT_ACTIVE);
    uint64_t now = (uint64_t)time(NULL);
    if (atomic_load_explicit(&region->last_kernel_time, memory_order_relaxed) != now)
        atomic_store(&region->last_kernel_time, now);
}

/* While the monitor blocks the container for one of higher priority. A monitor that has stopped blocks nobody. */
static void wait_while_blocked(struct vgpu_process *process)
{
    while (UNLIKELY(atomic_load(&process->region->recent_kernel) < 0)) {
        uint64_t beat = atomic_load(&process->compute->heartbeat), now = vgpu_now();
        if (beat && (beat > now || now - beat > HEARTBEAT))
            return;
        wait_for(5000000);
        vgpu_timing_poll();
    }
}

static bool is_limited(const struct vgpu_process *process)
{
    for (int d = 0; d < VGPU_DEVICES; d++)
        if (process->core_limit[d] < 100 && process->config.policy != POLICY_DISABLE)
            return true;
    return false;
}

/* A lossy table: where too many kernels meet, the estimate of one of them starts anew. */
static struct vgpu_estimate *estimate_of(void *function, uint64_t shape)
{
    /* Kernels of about the same number of threads share an estimate. */
    uint64_t size = shape ? 64 - (uint64_t)__builtin_clzll(shape) : 0;
    uint64_t key = ((uint64_t)(uintptr_t)function ^ size << 56) * 0x9e3779b97f4a7c15u;
    key = key ? key : 1;
    uint64_t at = key >> 52;
    for (uint64_t i = 0; i < PROBES; i++) {
        struct vgpu_estimate *one = &estimates[(at + i) % ESTIMATES];
        uint64_t known = atomic_load_explicit(&one->key, memory_order_relaxed);
        if (LIKELY(known == key) || (known == 0 && atomic_compare_exchange_strong(&one->key, &known, key))
            || known == key)
            return one;
    }
    struct vgpu_estimate *one = &estimates[at % ESTIMATES];
    atomic_store(&one->measured, 0);
    atomic_store(&one->launches, 0);
    atomic_store(&one->sampled, 0);
    atomic_store(&one->unsettled, 0);
    atomic_store(&one->unsettled_cost, 0);
    atomic_store(&one->key, key);
    return one;
}

/* Utilization of the container, as the monitor has written it into the slots. */
static void take_sample(struct vgpu_process *process, struct vgpu_bucket *bucket, int d)
{
    struct region *region = process->region;
    if (process->slot < 0)
        return;
    uint64_t when = atomic_load(&region->slot[process->slot].sampled), sum = 0;
    if (when == 0 || when == atomic_load_explicit(&bucket->sampled, memory_order_relaxed))
        return;
    int32_t used = atomic_load(&region->slots_used);
    for (int32_t i = 0; i < used && i < REGION_SLOTS; i++)
        if (atomic_load(&region->slot[i].sampled) == when)
            sum = vgpu_add(sum, atomic_load(&region->slot[i].utilization[d].sm));
    vgpu_bucket_sample(bucket, when, sum);
}

static void wait_for_credit(struct vgpu_process *process, struct vgpu_bucket *bucket, int d, uint64_t cost)
{
    uint64_t begun = 0;
    bool open = vgpu_timing_poll();
    while (!vgpu_bucket_take(bucket, cost)) {
        take_sample(process, bucket, d);
        uint64_t now = vgpu_now(), wait = vgpu_bucket_refill(bucket, now, process->core_limit[d]);
        if (wait == 0)
            continue;
        begun = begun ? begun : now;
        uint64_t most = open ? SHORT_SLICE : SLICE;
        wait_for(wait < most ? wait : most);
        open = vgpu_timing_poll();
        if (process->config.policy == POLICY_DEFAULT && !atomic_load(&process->region->limit_switch))
            break;
    }
    if (begun)
        atomic_fetch_add_explicit(&bucket->throttled, vgpu_now() - begun, memory_order_relaxed);
}

static void set_up(struct vgpu_process *process)
{
    if (!is_limited(process))
        atomic_store(&vgpu_free_recent, &process->region->recent_kernel);
}

/* Where nothing can be measured a kernel costs what an unknown one does; its cost must not grow with its launches. */
static void note_sample(struct vgpu_launch *launch)
{
    if (LIKELY(launch->sample >= 0)) {
        atomic_fetch_add_explicit(&launch->estimate->sampled, 1, memory_order_relaxed);
    } else if (!atomic_load(&launch->estimate->sampled) && launch->cost > VGPU_FIRST_COST) {
        vgpu_estimate_cancel(launch->estimate, launch->cost);
        vgpu_bucket_settle(launch->bucket, VGPU_FIRST_COST - (int64_t)launch->cost);
        launch->cost = VGPU_FIRST_COST;
    }
}

void vgpu_launch_begin(struct vgpu_launch *launch, void *function, uint64_t shape, void *stream, bool per_thread)
{
    struct vgpu_process *process = &vgpu_process;
    *launch = (struct vgpu_launch){.sample = -1, .stream = stream, .per_thread = per_thread};
    if (UNLIKELY(!vgpu_attach()))
        return;
    uint32_t count = ++vgpu_launch_count;
    if (atomic_load_explicit(&vgpu_free_recent, memory_order_relaxed) == NULL)
        set_up(process);
    if (UNLIKELY(atomic_load_explicit(&process->region->recent_kernel, memory_order_relaxed) != RECENT_ACTIVE)
        || (count & 255) == 0) {
        wait_while_blocked(process);
        note_activity(process->region);
    }
    int d;
    uint32_t ordinal;
    if (atomic_load_explicit(&vgpu_free_recent, memory_order_relaxed)
        || (process->config.policy == POLICY_DEFAULT
            && !atomic_load_explicit(&process->region->limit_switch, memory_order_relaxed))
        || REAL(cuCtxGetDevice)(&ordinal) != 0 || (d = vgpu_index_of((int)ordinal)) < 0
        || process->core_limit[d] >= 100 || vgpu_capturing(stream, per_thread) != NOT_CAPTURING)
        return;
    struct vgpu_bucket *bucket = &process->compute->bucket[d];
    bool measure;
    launch->estimate = estimate_of(function, shape);
    uint64_t cost = launch->cost = vgpu_estimate_launch(launch->estimate, &measure);
    launch->bucket = bucket;
    if (count % POLL_EVERY == 0)
        vgpu_timing_poll();
    if (!vgpu_bucket_take(bucket, cost))
        wait_for_credit(process, bucket, d, cost);
    if (measure) {
        void *context = NULL;
        REAL(cuCtxGetCurrent)(&context);
        launch->sample = vgpu_timing_begin(launch->estimate, bucket, (uint64_t)(uintptr_t)context, stream, per_thread);
        note_sample(launch);
    }
}

struct launch_config {
    uint32_t grid[3], block[3], shared;
    void *stream;
};

void vgpu_launch_begin_config(struct vgpu_launch *launch, void *function, const void *config, bool per_thread)
{
    const struct launch_config *given = config;
    uint64_t shape = 1;
    for (int i = 0; given && i < 3; i++)
        shape = vgpu_multiply(shape, (uint64_t)given->grid[i] * given->block[i]);
    vgpu_launch_begin(launch, function, shape, given ? given->stream : NULL, per_thread);
}

void vgpu_launch_end(struct vgpu_launch *launch, int result)
{
    if (UNLIKELY(launch->sample >= 0))
        vgpu_timing_end(launch->sample, launch->stream, launch->per_thread, result == CUDA_OK);
    if (UNLIKELY(result != CUDA_OK && launch->estimate)) {
        vgpu_estimate_cancel(launch->estimate, launch->cost);
        vgpu_bucket_settle(launch->bucket, -(int64_t)launch->cost);
    }
}

void vgpu_launch_forget(uint64_t context)
{
    if (context)
        vgpu_timing_forget(context);
}

void vgpu_launch_forked(void)
{
    atomic_store(&vgpu_free_recent, NULL);
    memset(estimates, 0, sizeof estimates);
    vgpu_timing_forked();
}

struct multi_launch {
    void *function;
    uint32_t grid[3], block[3], shared;
    void *stream;
    void *parameters;
};

/* One kernel on several devices; the time of the first stands for all. */
int cuLaunchCooperativeKernelMultiDevice(void *list, uint32_t count, uint32_t flags)
{
    const struct multi_launch *first = list;
    if (!first || !count || vgpu_launch_is_free())
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    struct vgpu_launch launch;
    uint64_t shape = 1;
    for (int i = 0; i < 3; i++)
        shape = vgpu_multiply(shape, (uint64_t)first->grid[i] * first->block[i]);
    vgpu_launch_begin(&launch, first->function, shape, first->stream, false);
    int result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    vgpu_launch_end(&launch, result);
    return result;
}
