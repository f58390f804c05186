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
static const uint64_t ALONE_HEARTBEAT = 5000000000; /* a monitor that has stopped for so long tells nobody that he is alone */
static const uint64_t MOST_BRACKET = 2000000000;    /* a measurement of the program takes 2 s at most */
static const uint64_t BRACKET_DEBT = 250000000;     /* and 0.25 s of GPU time beyond its credit */

_Thread_local uint32_t vgpu_launch_count __attribute__((tls_model("initial-exec")));

static struct vgpu_estimate estimates[ESTIMATES];

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
        vgpu_pause(5000000);
        vgpu_timing_poll();
    }
}

static bool is_limited(const struct vgpu_process *process)
{
    for (int d = 0; d < VGPU_DEVICES; d++)
        if (atomic_load(&process->core_limit[d]) < 100 && atomic_load(&process->policy) != POLICY_DISABLE
            && atomic_load(&process->compute_by) != BY_NOTHING)
            return true;
    return false;
}

/* The monitor's switch is off while no other container works on the device. */
static bool is_alone(const struct vgpu_process *process)
{
    if (atomic_load_explicit(&process->region->limit_switch, memory_order_relaxed))
        return false;
    uint64_t beat = atomic_load_explicit(&process->compute->heartbeat, memory_order_relaxed);
    if (!beat) /* of HAMi's */
        return true;
    uint64_t now = vgpu_now();
    return beat <= now && now - beat <= ALONE_HEARTBEAT;
}

/* The percent that count now: from the floor, which is certain, up to the ceiling. */
static int cores_of(const struct vgpu_process *process, int d)
{
    int cores = atomic_load_explicit(&process->core_limit[d], memory_order_relaxed);
    int most = atomic_load_explicit(&process->core_most[d], memory_order_relaxed);
    return most > cores && is_alone(process) ? most : cores;
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
    if (atomic_load_explicit(&process->compute_by, memory_order_relaxed) == BY_NVML)
        vgpu_bucket_bill(bucket, when, sum);
    else
        vgpu_bucket_sample(bucket, when, sum);
}

static void wait_for_credit(struct vgpu_process *process, struct vgpu_bucket *bucket, int d, uint64_t cost)
{
    uint64_t begun = 0;
    bool open = vgpu_timing_poll();
    while (!vgpu_bucket_take(bucket, cost)) {
        take_sample(process, bucket, d);
        int cores = cores_of(process, d);
        uint64_t now = vgpu_now(), wait = vgpu_bucket_refill(bucket, now, cores);
        if (cores >= 100)
            break;
        if (wait == 0)
            continue;
        begun = begun ? begun : now;
        uint64_t most = open ? SHORT_SLICE : SLICE;
        vgpu_pause((long)(wait < most ? wait : most));
        open = vgpu_timing_poll();
    }
    if (begun)
        atomic_fetch_add_explicit(&bucket->throttled, vgpu_now() - begun, memory_order_relaxed);
}

static _Atomic uint32_t generation;
static int32_t owner; /* process that estimates belong to */

/* After limits have changed, or in a child that copied this process. */
__attribute__((noinline, cold)) static void set_up(struct vgpu_process *process)
{
    vgpu_lock(&process->lock);
    if (vgpu_is_inherited(&owner)) {
        memset(estimates, 0, sizeof estimates);
        vgpu_timing_forked();
    }
    vgpu_unlock(&process->lock);
    atomic_store(&vgpu_free_recent, is_limited(process) ? NULL : &process->region->recent_kernel);
    atomic_store(&generation, __atomic_load_n(&process->generation, __ATOMIC_ACQUIRE));
}

static bool is_set_up(struct vgpu_process *process)
{
    return LIKELY(atomic_load_explicit(&generation, memory_order_relaxed)
                  == __atomic_load_n(&process->generation, __ATOMIC_RELAXED));
}

/* Between two events by which the program measures time, as autotuners do, nothing waits: it would choose what happens not to
 * have waited. Debt is paid before the first of them. */
static _Thread_local struct {
    bool open;
    uint64_t begun;
} bracket __attribute__((tls_model("initial-exec")));

static bool is_measuring(const struct vgpu_bucket *bucket)
{
    return UNLIKELY(bracket.open) && vgpu_bucket_debt(bucket) < BRACKET_DEBT && vgpu_now() - bracket.begun < MOST_BRACKET;
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

/* The current device if it has a limit that counts now, else -1. */
static int limited_device(const struct vgpu_process *process)
{
    uint32_t ordinal;
    int d = REAL(cuCtxGetDevice)(&ordinal) == CUDA_OK ? vgpu_index_of((int)ordinal) : -1;
    if (d < 0 || atomic_load_explicit(&process->core_limit[d], memory_order_relaxed) >= 100)
        return -1;
    if (cores_of(process, d) < 100)
        return d;
    vgpu_bucket_rest(&process->compute->bucket[d]);
    return -1;
}

void vgpu_launch_begin(struct vgpu_launch *launch, void *function, uint64_t shape, void *stream, bool per_thread)
{
    struct vgpu_process *process = &vgpu_process;
    *launch = (struct vgpu_launch){.sample = -1, .most_host = UINT64_MAX, .stream = stream, .per_thread = per_thread};
    if (UNLIKELY(!vgpu_attach()))
        return;
    uint32_t count = ++vgpu_launch_count;
    if (!is_set_up(process))
        set_up(process);
    if (UNLIKELY(atomic_load_explicit(&process->region->recent_kernel, memory_order_relaxed) != RECENT_ACTIVE)
        || (count & 255) == 0) {
        wait_while_blocked(process);
        note_activity(process->region);
    }
    int d;
    if (atomic_load_explicit(&vgpu_free_recent, memory_order_relaxed) || (d = limited_device(process)) < 0
        || vgpu_capturing(stream, per_thread) != NOT_CAPTURING)
        return;
    struct vgpu_bucket *bucket = &process->compute->bucket[d];
    if (atomic_load_explicit(&process->compute_by, memory_order_relaxed) == BY_NVML) {
        take_sample(process, bucket, d);
        if (!vgpu_bucket_take(bucket, 0))
            wait_for_credit(process, bucket, d, 0);
        return;
    }
    bool measure;
    launch->estimate = estimate_of(function, shape);
    uint64_t cost = launch->cost = vgpu_estimate_launch(launch->estimate, &measure);
    launch->bucket = bucket;
    if (count % POLL_EVERY == 0)
        vgpu_timing_poll();
    if (is_measuring(bucket))
        vgpu_bucket_settle(bucket, (int64_t)cost);
    else if (!vgpu_bucket_take(bucket, cost))
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
        vgpu_timing_end(launch->sample, launch->stream, launch->per_thread, result == CUDA_OK, launch->most_host);
    if (UNLIKELY(result != CUDA_OK && launch->estimate)) {
        vgpu_estimate_cancel(launch->estimate, launch->cost);
        vgpu_bucket_settle(launch->bucket, -(int64_t)launch->cost);
    }
}

void vgpu_launch_forget(uint64_t context)
{
    if (vgpu_process.region && !is_set_up(&vgpu_process))
        set_up(&vgpu_process);
    if (context)
        vgpu_timing_forget(context);
}

/* -- the program's own measurements */

enum { DISABLE_TIMING = 2 };

int cuEventCreate(void *event, uint32_t flags)
{
    int result = REAL(cuEventCreate)(event, flags);
    if (result == CUDA_OK && !(flags & DISABLE_TIMING) && vgpu_is_open() && is_limited(&vgpu_process)) {
        vgpu_lock(&vgpu_process.lock);
        vgpu_table_put(&vgpu_process.events, &(struct vgpu_event){.handle = *(uint64_t *)event});
        vgpu_unlock(&vgpu_process.lock);
    }
    return result;
}

void vgpu_event_gone(void *event)
{
    struct vgpu_event gone;
    if (!vgpu_is_open() || !vgpu_process.events.count)
        return;
    vgpu_lock(&vgpu_process.lock);
    vgpu_table_take(&vgpu_process.events, (uint64_t)(uintptr_t)event, &gone);
    vgpu_unlock(&vgpu_process.lock);
}

static bool measures_time(void *event)
{
    if (!vgpu_is_open() || !vgpu_process.events.count)
        return false;
    vgpu_lock(&vgpu_process.lock);
    bool known = vgpu_table_find(&vgpu_process.events, (uint64_t)(uintptr_t)event) != NULL;
    vgpu_unlock(&vgpu_process.lock);
    return known;
}

/* They come in pairs: before the first of two, what is owed is paid. */
void vgpu_event_recorded(void *event, void *stream, bool per_thread)
{
    struct vgpu_process *process = &vgpu_process;
    if (LIKELY(!measures_time(event)))
        return;
    int d = vgpu_attach() ? limited_device(process) : -1;
    if (d < 0 || vgpu_capturing(stream, per_thread) != NOT_CAPTURING) {
        bracket.open = false;
        return;
    }
    bracket.open = !bracket.open;
    if (!bracket.open)
        return;
    struct vgpu_bucket *bucket = &process->compute->bucket[d];
    if (!vgpu_bucket_take(bucket, 0))
        wait_for_credit(process, bucket, d, 0);
    bracket.begun = vgpu_now();
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
