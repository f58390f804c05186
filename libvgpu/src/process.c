#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "process.h"

#include "compute.h"
#include "log.h"
#include "slots.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

struct vgpu_process vgpu_process;
atomic_bool vgpu_copies_count;
_Atomic int64_t vgpu_look_at = INT64_MAX;
_Atomic(_Atomic int32_t *) vgpu_free_recent;

/* How the file with the limits was when it was read. */
static struct stat seen;
static uint32_t last_generation;

enum { CLOSED, OPENING, OPEN };

enum { FIRST_TRIES = 100, FIRST_PAUSE = 5000000 /* nanoseconds */ };

/* In a page that the kernel clears in every child with a copy of our memory, however it was made: fork, clone. */
static _Atomic(_Atomic int *) stage;
static _Atomic int plain_stage;
static struct vgpu_lock claim_lock;

uint64_t vgpu_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static _Atomic int *stage_word(void)
{
    _Atomic int *word = atomic_load_explicit(&stage, memory_order_acquire);
    if (LIKELY(word != NULL))
        return word;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _Atomic int *fresh = page == MAP_FAILED ? &plain_stage : page;
    if (fresh != &plain_stage && madvise(page, 4096, MADV_WIPEONFORK) != 0) {
        munmap(page, 4096);
        fresh = &plain_stage; /* Linux before 4.14: forks are told by the process number alone */
    }
    if (atomic_compare_exchange_strong(&stage, &word, fresh))
        return fresh;
    if (fresh != &plain_stage)
        munmap(page, 4096);
    return word;
}

bool vgpu_is_open(void)
{
    _Atomic int *word = atomic_load_explicit(&stage, memory_order_acquire);
    if (UNLIKELY(!word || atomic_load_explicit(word, memory_order_acquire) != OPEN))
        return false;
    return LIKELY(word != &plain_stage) || atomic_load(&vgpu_process.pid) == (int32_t)getpid();
}

bool vgpu_is_inherited(int32_t *owner)
{
    int32_t before = *owner;
    *owner = atomic_load(&vgpu_process.pid);
    return before && before != *owner;
}

static int most_cores(const struct vgpu_config *config, int d, int cores)
{
    if (config->policy == POLICY_FORCE)
        return cores;
    return config->device[d].cores_most ? config->device[d].cores_most : 100;
}

static bool counts_copies(const struct vgpu_process *process, const struct vgpu_config *config)
{
    bool limited = false;
    for (int d = 0; d < VGPU_DEVICES; d++)
        limited |= atomic_load(&process->core_limit[d]) < 100;
    return limited && config->trusted && config->compute_of == OF_ALL && config->policy != POLICY_DISABLE
        && config->compute_by != BY_NOTHING;
}

/* The region's limits count where the environment, which the pod itself can change, says something else. */
static void apply_limits(struct vgpu_process *process, const struct vgpu_config *config, bool made)
{
    for (int d = 0; d < VGPU_DEVICES; d++) {
        uint64_t memory = config->device[d].memory;
        uint64_t cores = (uint64_t)config->device[d].cores;
        if (config->trusted && d >= config->count) {
            memory = UINT64_MAX; /* a device that the container was not given */
        } else if (!config->trusted && process->shares && !made) {
            uint64_t set = process->region->memory_limit[d], set_cores = process->region->core_limit[d];
            if (set && set != memory) {
                if (memory)
                    LOG_ONCE(LOG_WARNING, "the memory limit of the shared region counts, not that of the environment");
                memory = set;
            }
            if (set_cores > 0 && set_cores <= 100)
                cores = set_cores;
        }
        atomic_store(&process->memory_limit[d], memory);
        atomic_store(&process->core_limit[d], (int)cores);
        atomic_store(&process->core_most[d], most_cores(config, d, (int)cores));
    }
    atomic_store(&process->policy, (int)config->policy);
    atomic_store(&process->compute_by, (int)config->compute_by);
    atomic_store(&vgpu_copies_count, counts_copies(process, config));
    __atomic_store_n(&process->generation, ++last_generation, __ATOMIC_RELEASE);
}

static void open_region(struct vgpu_process *process)
{
    bool made = true;
    if (*process->config.region)
        process->region = vgpu_region_open(process->config.region, &process->config, &made);
    process->shares = process->region != NULL;
    if (!process->region) {
        if (*process->config.region)
            LOG_ONCE(LOG_WARNING, "cannot use the shared region %s: limits hold for each process by itself",
                     process->config.region);
        process->region = vgpu_region_private(&process->config);
        made = true;
    }
    if (process->region)
        apply_limits(process, &process->config, made);
}

static int64_t coarse_second(void)
{
    struct timespec time;
    return clock_gettime(CLOCK_MONOTONIC_COARSE, &time) == 0 ? time.tv_sec : 0;
}

static bool is_same(const struct stat *one, const struct stat *other)
{
    return one->st_ino == other->st_ino && one->st_dev == other->st_dev && one->st_size == other->st_size
        && one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

/* Who writes the file in place says so in its mode, before and after: by no other sign could a reader tell that a writer has
 * been stopped in the middle. */
static bool is_being_written(const struct stat *about)
{
    return about->st_mode & S_ISVTX;
}

/* Whether nobody has written the file since it was as in *about: what has been read meanwhile is one text. */
static bool is_whole(const struct vgpu_process *process, const struct stat *about)
{
    struct stat now;
    return stat(process->limits, &now) == 0 && is_same(&now, about) && !is_being_written(&now);
}

/* The same devices, in the same order: others cannot be given to a container that runs. */
static bool is_for_same_devices(const struct vgpu_config *one, const struct vgpu_config *other)
{
    bool same = one->count == other->count;
    for (int d = 0; same && d < one->count; d++)
        same = !strcmp(one->device[d].uuid, other->device[d].uuid);
    return same;
}

/* New limits count from now on; what is held beyond a lower one may be kept. A file that cannot be used is looked at again a
 * second later. */
static void read_again(struct vgpu_process *process, const struct stat *about)
{
    size_t size = sizeof(struct vgpu_config);
    struct vgpu_config *config = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (config == MAP_FAILED)
        return;
    bool good = vgpu_config_read_again(config, process->limits) && is_for_same_devices(config, &process->config);
    bool whole = is_whole(process, about);
    if (good && whole) {
        apply_limits(process, config, false);
        seen = *about;
    } else if (whole) {
        LOG_ONCE(LOG_WARNING, "%s has changed and cannot be used: earlier limits hold", process->limits);
    }
    munmap(config, size);
}

/* One thread in a second. */
__attribute__((noinline, cold)) static void look_at_limits(struct vgpu_process *process)
{
    struct stat about;
    int64_t now = coarse_second(), due = atomic_load(&vgpu_look_at);
    if (now < due || !atomic_compare_exchange_strong(&vgpu_look_at, &due, now + 1) || !vgpu_trylock(&claim_lock))
        return;
    int state = vgpu_keep_thread();
    if (stat(process->limits, &about) == 0 && !is_same(&about, &seen) && !is_being_written(&about))
        read_again(process, &about);
    vgpu_unlock(&claim_lock);
    vgpu_release_thread(state);
}

/* A process that begins has no earlier limits: it waits for who is writing them, but for no writer that has died. */
static void read_first(struct vgpu_process *process)
{
    bool known = vgpu_limits_path(process->limits, sizeof process->limits);
    for (int tries = 0;; tries++) {
        memset(&seen, 0, sizeof seen);
        bool there = known && stat(process->limits, &seen) == 0, last = tries == FIRST_TRIES;
        if (!there || last || !is_being_written(&seen)) {
            vgpu_config_read(&process->config, known ? process->limits : NULL);
            atomic_store(&vgpu_look_at, there && process->config.trusted ? coarse_second() + 1 : INT64_MAX);
            if (!there || is_whole(process, &seen))
                return;
            if (last) {
                memset(&seen, 0, sizeof seen);
                return;
            }
        }
        vgpu_pause(FIRST_PAUSE);
    }
}

static void start(struct vgpu_process *process)
{
    if (atomic_load(&process->pid)) { /* copied from the parent: its mappings are shared, its charges are not ours */
        vgpu_table_clear(&process->memory);
        vgpu_table_clear(&process->objects);
        vgpu_table_clear(&process->blocks);
        vgpu_table_clear(&process->handles);
        vgpu_table_clear(&process->mappings);
        vgpu_table_clear(&process->bindings);
        vgpu_table_clear(&process->endpoints);
        vgpu_table_clear(&process->events);
        vgpu_compute_close(process->compute);
        if (process->region)
            munmap(process->region, REGION_FILE);
        vgpu_region_forked();
    }
    atomic_store(&vgpu_free_recent, NULL);
    memset(process, 0, sizeof *process);
    process->lock = claim_lock = (struct vgpu_lock){0};
    process->slot = -1;
    read_first(process);
    if (process->config.valid)
        open_region(process);
    if (process->region && !(process->compute = vgpu_compute_open(process->shares ? process->config.compute : "")))
        process->region = NULL;
    atomic_store(&process->pid, (int32_t)getpid());
}

bool vgpu_open(void)
{
    if (LIKELY(vgpu_is_open()))
        return vgpu_process.region != NULL;
    _Atomic int *word = stage_word();
    int expected = CLOSED;
    if (word == &plain_stage && atomic_load(&vgpu_process.pid) != (int32_t)getpid())
        atomic_compare_exchange_strong(word, &(int){OPEN}, CLOSED);
    if (atomic_compare_exchange_strong(word, &expected, OPENING)) {
        int state = vgpu_keep_thread();
        start(&vgpu_process);
        atomic_store_explicit(word, OPEN, memory_order_release);
        vgpu_release_thread(state);
    }
    while (atomic_load_explicit(word, memory_order_acquire) != OPEN)
        sched_yield(); /* another thread of this process is opening; what it does is bounded */
    return vgpu_process.region != NULL;
}

bool vgpu_is_forbidden(void)
{
    return !vgpu_open();
}

bool vgpu_are_copies_charged(void)
{
    return vgpu_open() && atomic_load(&vgpu_copies_count);
}

void vgpu_refresh(void)
{
    if (UNLIKELY(vgpu_is_look_due()))
        look_at_limits(&vgpu_process);
}

bool vgpu_attach(void)
{
    struct vgpu_process *process = &vgpu_process;
    if (!vgpu_open())
        return false;
    vgpu_refresh();
    if (LIKELY(__atomic_load_n(&process->slot, __ATOMIC_ACQUIRE) >= 0))
        return true;
    int state = vgpu_keep_thread();
    vgpu_lock(&claim_lock);
    if (process->slot < 0) {
        const char *path = process->config.region;
        if (process->shares && vgpu_compute_is_due(process->compute, vgpu_now()))
            vgpu_region_reap(process->region, path);
        int slot = vgpu_slot_claim(process->region, path);
        __atomic_store_n(&process->slot, slot, __ATOMIC_RELEASE);
    }
    vgpu_unlock(&claim_lock);
    vgpu_release_thread(state);
    if (process->slot < 0)
        LOG_ONCE(LOG_ERROR, "%d processes of this container use GPUs: no more can", REGION_SLOTS);
    return process->slot >= 0;
}

/* A process that ends with memory keeps its slot until the driver has let go of that memory, that is until others see
 * that it is gone; monitors skip it at once. */
__attribute__((destructor)) static void leave(void)
{
    struct vgpu_process *process = &vgpu_process;
    if (!vgpu_is_open() || process->slot < 0 || atomic_load(&process->pid) != (int32_t)getpid())
        return;
    struct region_slot *slot = &process->region->slot[process->slot];
    if (slot->pid != process->pid)
        return;
    bool has_memory = process->imports != 0;
    for (int d = 0; d < VGPU_DEVICES; d++)
        for (int part = 0; part < PART_COUNT; part++)
            has_memory |= process->counted[d][part] != 0;
    if (has_memory) {
        atomic_store(&slot->status, SLOT_ENDED);
        return;
    }
    vgpu_slot_release(process->region, slot);
}
