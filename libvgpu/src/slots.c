#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "slots.h"

#include "liveness.h"
#include "shares.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

enum { SLOT_LOCKS = 1, HIGH_DESCRIPTOR = 768 }; /* byte 0 is that of vgpu_file_lock */

/* Marks the slot as used for readers that stop at slots_used, ours and HAMi's. */
static void announce(struct region *region, int at)
{
    int32_t used = atomic_load(&region->slots_used);
    while ((used < at + 1 || used > REGION_SLOTS)
           && !atomic_compare_exchange_weak(&region->slots_used, &used, at + 1))
        continue;
}

/* Counters first, the number last: whoever is killed in between leaves a slot that still belongs to a dead process. */
static void zero(struct region *region, struct region_slot *slot)
{
    int number = (int)(slot - region->slot);
    atomic_store(&slot->status, SLOT_ENDED);
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
    int used = vgpu_region_used(region);
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
    atomic_store(&slot->status, SLOT_RUNS);
    VGPU_POINT(28);
    return at;
}

void vgpu_slot_suspend(struct region *region, struct region_slot *slot, bool suspended)
{
    int32_t from = suspended ? SLOT_RUNS : SLOT_SUSPENDED;
    if (atomic_compare_exchange_strong(&slot->status, &from, suspended ? SLOT_SUSPENDED : SLOT_RUNS))
        vgpu_shares_changed(region);
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
    int reaped = 0, used = vgpu_region_used(region);
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
