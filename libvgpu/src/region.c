#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "region.h"

#include "config.h"
#include "liveness.h"
#include "lock.h"
#include "log.h"
#include "shares.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

enum { SLOT_LOCKS = 1, HIGH_DESCRIPTOR = 768 }; /* byte 0 is that of vgpu_file_lock */

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
    fork_guard = (struct vgpu_lock){0};
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

/* Marks the slot as used for readers that stop at slots_used, ours and HAMi's. */
static void announce(struct region *region, int at)
{
    int32_t used = atomic_load(&region->slots_used);
    while ((used < at + 1 || used > REGION_SLOTS)
           && !atomic_compare_exchange_weak(&region->slots_used, &used, at + 1))
        continue;
}

static int used_slots(struct region *region)
{
    int32_t used = atomic_load_explicit(&region->slots_used, memory_order_relaxed);
    return used < 0 ? 0 : used > REGION_SLOTS ? REGION_SLOTS : used;
}

/* Counters first, the number last: whoever is killed in between leaves a slot that still belongs to a dead process. */
static void zero(struct region *region, struct region_slot *slot)
{
    int number = (int)(slot - region->slot);
    atomic_store(&slot->status, 0);
    VGPU_POINT(20);
    vgpu_shares_drop(region, number, true, 0); /* first: what others still hold is missing at no instant */
    for (int d = 0; d < VGPU_DEVICES; d++) {
        struct region_memory *memory = &slot->memory[d];
        memory->exported = 0;
        memory->context = memory->module = memory->data = memory->total = memory->uncounted = 0;
        memory->imported = 0;
        slot->monitor_used[d] = 0;
        slot->utilization[d].sm = 0;
    }
    vgpu_shares_drop(region, number, false, 0);
    VGPU_POINT(21);
    atomic_store(&slot->host_pid, 0);
    atomic_store(&slot->sampled, 0);
    atomic_store(&slot->identity, 0);
}

void vgpu_slot_release(struct region *region, struct region_slot *slot)
{
    zero(region, slot);
    VGPU_POINT(22);
    atomic_store(&slot->pid, 0);
    VGPU_POINT(23);
}

/* A free slot, or one that this process had before exec, or that a dead one with its number has left. */
static int take(struct region *region, int32_t pid, uint64_t identity)
{
    int used = used_slots(region);
    for (int i = 0; i < used; i++) {
        struct region_slot *slot = &region->slot[i];
        uint64_t other = slot->identity;
        if (slot->pid == pid && (other == 0 || other >> 32 == identity >> 32)) {
            zero(region, slot);
            return i;
        }
    }
    for (int i = 0; i < REGION_SLOTS; i++) {
        int32_t none = 0;
        if (region->slot[i].pid == 0 && atomic_compare_exchange_strong(&region->slot[i].pid, &none, pid)) {
            VGPU_POINT(24);
            zero(region, &region->slot[i]);
            return i;
        }
    }
    return -1;
}

static bool is_same_file(int file, const char *path)
{
    struct stat one, other;
    return file >= 0 && fstat(file, &one) == 0 && stat(path, &other) == 0 && one.st_dev == other.st_dev
        && one.st_ino == other.st_ino;
}

/* Processes of other PID namespaces cannot look this one up, so it locks a byte for its slot as long as it lives. The
 * descriptor has a high number, out of the way of programs that count on low ones. */
static void hold(const char *path, int at)
{
    static int held = -1;
    if (is_same_file(held, path))
        close(held); /* a copy of the parent's, who keeps its lock; or this process claims again */
    held = -1;
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = SLOT_LOCKS + at, .l_len = 1};
    if (file < 0)
        return;
    fcntl(file, F_OFD_SETLK, &lock);
    held = fcntl(file, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (held < 0)
        held = file;
    else
        close(file);
}

/* Whether nobody holds the slot of a process of another PID namespace, such as those of a container that was restarted.
 * `file` is the region, opened by this process for another purpose. */
static bool is_abandoned(int file, int at, const struct region_slot *slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SLOT_LOCKS + at, .l_len = 1};
    return vgpu_is_elsewhere(slot->identity) && fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

int vgpu_slot_claim(struct region *region, const char *path)
{
    int32_t pid = (int32_t)getpid();
    uint64_t identity = vgpu_identity();
    int at = take(region, pid, identity);
    if (at < 0 && vgpu_region_reap(region, path) > 0)
        at = take(region, pid, identity);
    if (at < 0)
        return -1;
    struct region_slot *slot = &region->slot[at];
    VGPU_POINT(25);
    hold(path, at);
    atomic_store(&slot->identity, identity);
    atomic_store(&slot->sequence, 0);
    VGPU_POINT(26);
    announce(region, at);
    VGPU_POINT(27);
    atomic_store(&slot->status, 1);
    VGPU_POINT(28);
    return at;
}

static bool has_counts(struct region_slot *slot)
{
    for (int d = 0; d < VGPU_DEVICES; d++)
        if (slot->memory[d].total || slot->memory[d].uncounted || slot->memory[d].exported || slot->memory[d].imported)
            return true;
    return false;
}

int vgpu_region_reap(struct region *region, const char *path)
{
    int lock = vgpu_file_lock(path, 20);
    if (lock < 0)
        return 0;
    bool has_records[REGION_SLOTS] = {false};
    vgpu_shares_owners(region, has_records);
    int reaped = 0, used = used_slots(region);
    int32_t self = (int32_t)getpid();
    for (int i = 0; i < used; i++) {
        struct region_slot *slot = &region->slot[i];
        int32_t pid = slot->pid, none = 0;
        if (pid == 0) {
            /* Never left so by us. The slot is taken before it is cleared: it may be claimed at this moment. */
            if ((!has_counts(slot) && !has_records[i]) || !atomic_compare_exchange_strong(&slot->pid, &none, self))
                continue;
        } else if (!vgpu_is_dead(pid, slot->identity) && !is_abandoned(lock, i, slot)) {
            continue;
        }
        VGPU_POINT(30);
        vgpu_slot_release(region, slot);
        VGPU_POINT(31);
        reaped++;
    }
    vgpu_file_unlock(lock);
    return reaped;
}

uint32_t vgpu_region_number(struct region *region, uint32_t pid, bool on_host)
{
    int used = used_slots(region);
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

void vgpu_region_others(struct region *region, int own, int d, struct vgpu_sum *sum)
{
    int used = used_slots(region);
    for (int i = 0; i < used; i++) {
        struct region_memory *memory = &region->slot[i].memory[d];
        sum->counted = vgpu_add(sum->counted, atomic_load_explicit(&memory->uncounted, memory_order_relaxed));
        if (i == own)
            continue;
        /* The total first: its owner publishes it last. */
        sum->counted = vgpu_add(sum->counted, atomic_load(&memory->total));
        uint64_t imported = atomic_load_explicit(&memory->imported, memory_order_relaxed);
        sum->exported = vgpu_add(sum->exported, atomic_load_explicit(&memory->exported, memory_order_relaxed));
        sum->imported = imported > sum->imported ? imported : sum->imported;
    }
}
