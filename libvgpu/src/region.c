#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "region.h"

#include "config.h"
#include "liveness.h"
#include "lock.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

/* What pthread_atfork calls; that itself is in libpthread before glibc 2.34. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);
extern void *__dso_handle __attribute__((visibility("hidden")));

/* No lock is held across a fork: the child would keep a copy of it for as long as it lives. */
static struct vgpu_lock fork_guard;
static int kept; /* of the thread that holds it: whether it can be canceled otherwise */
static atomic_flag guarded = ATOMIC_FLAG_INIT;

static void before_fork(void)
{
    vgpu_lock(&fork_guard);
}

static void after_fork(void)
{
    vgpu_unlock(&fork_guard);
}

static void fork_child(void)
{
    vgpu_lock_forked(&fork_guard);
}

void vgpu_region_forked(void)
{
    fork_child(); /* of a raw clone, which runs no handlers */
}

static void leave_section(void)
{
    int state = kept;
    vgpu_unlock(&fork_guard);
    vgpu_release_thread(state);
}

/* The file is opened for each section and closed after it: a daemon that closes all descriptors loses nothing, and
 * the lock of the open file description dies with the process. */
int vgpu_file_lock(const char *path, int milliseconds)
{
    if (!atomic_flag_test_and_set(&guarded))
        __register_atfork(before_fork, after_fork, fork_child, &__dso_handle);
    vgpu_lock(&fork_guard);
    kept = vgpu_keep_thread();
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    for (int waited = 0; file >= 0; waited++) {
        if (fcntl(file, F_OFD_SETLK, &lock) == 0)
            return file;
        if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || waited >= milliseconds) {
            close(file);
            file = -1;
            break;
        }
        vgpu_pause(1000000);
    }
    leave_section();
    return file;
}

void vgpu_file_unlock(int file)
{
    close(file);
    leave_section();
}

static void fill(struct region *region, const struct vgpu_config *config)
{
    VGPU_POINT(10);
    region->major = REGION_MAJOR;
    region->minor = REGION_MINOR;
    /* as sem_init(…, 1, 1) leaves it: value 1, shared between processes */
    memcpy(region->semaphore, (uint32_t[8]){1, 0, 128}, sizeof region->semaphore);
    memcpy(region->second_semaphore, region->semaphore, sizeof region->semaphore);
    VGPU_POINT(11);
    for (int d = 0; d < VGPU_DEVICES; d++) {
        region->memory_limit[d] = config->device[d].memory;
        region->core_limit[d] = (uint64_t)config->device[d].cores;
        memcpy(region->uuid[d], config->device[d].uuid, UUID_TEXT);
    }
    region->device_count = (uint64_t)config->count;
    region->limit_switch = 1;
    region->recent_kernel = 0;
    region->priority = config->priority;
    VGPU_POINT(12);
    atomic_store(&region->magic, REGION_MAGIC);
    VGPU_POINT(13);
}

static struct region *map(int file)
{
    void *at = mmap(NULL, REGION_FILE, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
                    file, 0);
    return at == MAP_FAILED ? NULL : at;
}

struct region *vgpu_region_private(const struct vgpu_config *config)
{
    struct region *region = map(-1);
    if (region)
        fill(region, config);
    return region;
}

static bool is_usable(int file)
{
    struct stat about;
    return fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size >= (off_t)sizeof(struct region)
        && about.st_size <= REGION_FILE;
}

/* Gives a new or empty file its size. Blocks are reserved, so that a full disk is an error here, not a signal later. */
static bool grow(int file, bool created)
{
    struct stat about;
    if (created)
        fchmod(file, 0666); /* containers run processes of several users; the umask is theirs */
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode))
        return false;
    return about.st_size != 0 || posix_fallocate(file, 0, REGION_FILE) == 0;
}

static struct region *attach(int file, const char *path, const struct vgpu_config *config, bool *made)
{
    if (!is_usable(file))
        return NULL;
    struct region *region = map(file);
    if (!region)
        return NULL;
    if (UNLIKELY(atomic_load(&region->magic) != REGION_MAGIC)) {
        int lock = vgpu_file_lock(path, 50);
        if (lock >= 0) {
            if (atomic_load(&region->magic) != REGION_MAGIC) {
                fill(region, config);
                *made = true;
            }
            vgpu_file_unlock(lock);
        }
    }
    if (atomic_load(&region->magic) == REGION_MAGIC && region->major == REGION_MAJOR)
        return region;
    munmap(region, REGION_FILE);
    return NULL;
}

struct region *vgpu_region_open(const char *path, const struct vgpu_config *config, bool *made)
{
    *made = false;
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    bool created = false;
    int file = open(path, flags);
    if (file < 0 && errno == ENOENT) {
        file = open(path, flags | O_CREAT | O_EXCL, 0666);
        created = file >= 0;
        if (file < 0 && errno == EEXIST)
            file = open(path, flags);
    }
    if (file < 0)
        return NULL;
    VGPU_POINT(14);
    struct region *region = grow(file, created) ? attach(file, path, config, made) : NULL;
    close(file);
    return region;
}

int vgpu_region_used(struct region *region)
{
    int32_t used = atomic_load_explicit(&region->slots_used, memory_order_relaxed);
    return used < 0 ? 0 : used > REGION_SLOTS ? REGION_SLOTS : used;
}

uint32_t vgpu_region_number(struct region *region, uint32_t pid, bool on_host)
{
    int used = vgpu_region_used(region);
    for (int i = 0; i < used; i++) {
        const struct region_slot *slot = &region->slot[i];
        int32_t number = slot->pid;
        if (number <= 0 || (uint32_t)(on_host ? slot->host_pid : number) != pid || !pid)
            continue;
        if ((on_host || !vgpu_is_elsewhere(slot->identity)) && !vgpu_is_dead(number, slot->identity))
            return (uint32_t)number;
    }
    return 0;
}

struct region_slot *vgpu_region_slot(struct region *region, uint32_t pid)
{
    int used = vgpu_region_used(region);
    for (int i = 0; i < used; i++) {
        struct region_slot *slot = &region->slot[i];
        int32_t number = slot->pid;
        if (number > 0 && (uint32_t)number == pid && !vgpu_is_elsewhere(slot->identity)
            && !vgpu_is_dead(number, slot->identity))
            return slot;
    }
    return NULL;
}

uint32_t vgpu_region_host_number(struct region *region, uint32_t pid)
{
    const struct region_slot *slot = vgpu_region_slot(region, pid);
    return slot ? (uint32_t)slot->host_pid : 0;
}

void vgpu_region_others(struct region *region, int own, int d, struct vgpu_sum *sum)
{
    int used = vgpu_region_used(region);
    for (int i = 0; i < used; i++) {
        struct region_memory *memory = &region->slot[i].memory[d];
        sum->counted = vgpu_add(sum->counted, atomic_load_explicit(&memory->uncounted, memory_order_relaxed));
        if (i == own || UNLIKELY(atomic_load(&region->slot[i].status) == SLOT_SUSPENDED))
            continue;
        /* The total first: its owner publishes it last. */
        sum->counted = vgpu_add(sum->counted, atomic_load(&memory->total));
        uint64_t imported = atomic_load_explicit(&memory->imported, memory_order_relaxed);
        sum->exported = vgpu_add(sum->exported, atomic_load_explicit(&memory->exported, memory_order_relaxed));
        sum->imported = imported > sum->imported ? imported : sum->imported;
    }
}
