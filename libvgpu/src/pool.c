#include "pool.h"

#include "account.h"
#include "capture.h"
#include "devices.h"
#include "log.h"
#include "process.h"
#include "resolve.h"
#include "suspend.h"
#include "tag.h"

#include <string.h>

enum { POOLS = 256, MANAGED = 2 };

static const uint64_t LOOK_INTERVAL = 100000000; /* nanoseconds */
static const uint64_t STEP_LEAST = (uint64_t)2 << 20, STEP_MOST = (uint64_t)32 << 20;

struct pool {
    uint64_t handle; /* 0: free */
    int device;      /* -1: not memory of a device, or another process counts it */
    bool destroyed;
    uint64_t name; /* of the file by which processes share it; 0: none yet */
    uint64_t live;
    uint64_t charged;
    uint64_t growing; /* threads that are about to count what they have charged to let it grow */
    uint64_t step; /* by which the driver lets it grow */
    uint64_t looked; /* when the driver was last asked what it has reserved */
    uint64_t looks;  /* how often */
    bool stale;      /* something has been freed since */
    bool imported;
};

static struct pool pools[POOLS];
static uint64_t current_pools[VGPU_ORDINALS]; /* from which a device allocates; 0: the driver must be asked */
static atomic_bool stale_pools;
static int32_t owner; /* process that pools belong to; a forked child has none */

/* Caller locks, as for all functions that return a pool. */
static void forget_of_parent(void)
{
    if (!vgpu_is_inherited(&owner))
        return;
    memset(pools, 0, sizeof pools);
    memset(current_pools, 0, sizeof current_pools);
    atomic_store(&stale_pools, false);
}

static struct pool *find(uint64_t handle)
{
    forget_of_parent();
    for (int i = 0; i < POOLS; i++)
        if (pools[i].handle == handle)
            return &pools[i];
    return NULL;
}

/* Nothing is charged for it any more. */
static void uncharge(struct pool *pool)
{
    if (pool->charged && pool->device >= 0)
        vgpu_correct(pool->device, pool->charged, 0, PART_DATA);
    pool->charged = 0;
}

/* The driver has given the handle to a new pool, which it does once nothing of an earlier one is left. */
static void begin(struct pool *pool, uint64_t handle, int device)
{
    if (pool->handle)
        uncharge(pool);
    *pool = (struct pool){.handle = handle, .device = device, .step = STEP_LEAST, .growing = pool->growing};
}

/* Of a pool that was destroyed nothing is left, and nobody is about to count anything. */
static void forget_if_gone(struct pool *pool)
{
    if (!pool->destroyed || pool->live || pool->growing)
        return;
    uncharge(pool);
    pool->handle = 0;
}

static struct pool *add(uint64_t handle, int device)
{
    struct pool *pool = find(handle);
    pool = pool ? pool : find(0);
    if (pool)
        begin(pool, handle, device);
    else
        LOG_ONCE(LOG_WARNING, "more than %d memory pools", POOLS);
    return pool;
}

static bool attribute(uint64_t pool, uint32_t which, uint64_t *value)
{
    uint32_t mode = vgpu_relax();
    bool told = HAS(cuMemPoolGetAttribute) && REAL(cuMemPoolGetAttribute)((void *)(uintptr_t)pool, which, value) == 0;
    vgpu_restore(mode);
    return told;
}

/* The place of the device on which the driver says that the pool is, -1 for memory of the host. False: it does not say (before
 * CUDA 13.0), or the memory may be anywhere. */
static bool is_located(uint64_t handle, uint32_t devices, int *index)
{
    uint64_t type = 0, location = 0, id = 0;
    if (!attribute(handle, POOL_ALLOCATION_TYPE, &type) || !attribute(handle, POOL_LOCATION_TYPE, &location)
        || !attribute(handle, POOL_LOCATION_ID, &id) || type == MANAGED)
        return false;
    *index = -1;
    if (location >= LOCATION_HOST && location <= LOCATION_HOST_NUMA_CURRENT)
        return true;
    if ((id & 0xff) < devices)
        *index = vgpu_index_at((uint32_t)location, (uint32_t)id);
    return *index >= 0;
}

/* A pool that we have not seen made is one that the driver has made. Asks the driver: not under the lock. */
static int home_of(void *handle)
{
    uint32_t count = 0;
    void *found = NULL;
    REAL(cuDeviceGetCount)(&count);
    for (uint32_t i = 0; i < count; i++)
        if ((REAL(cuDeviceGetMemPool)(&found, i) == 0 && found == handle)
            || (HAS(cuDeviceGetDefaultMemPool) && REAL(cuDeviceGetDefaultMemPool)(&found, i) == 0 && found == handle))
            return vgpu_index_of((int)i);
    int index;
    if (is_located((uint64_t)(uintptr_t)handle, count, &index))
        return index;
    return vgpu_current(&index, NULL) ? index : -1;
}

/* Remembers a pool, unless it is known. */
static void keep(uint64_t handle, int device)
{
    vgpu_lock(&vgpu_process.lock);
    if (!find(handle))
        add(handle, device);
    vgpu_unlock(&vgpu_process.lock);
}

static void keep_imported(uint64_t handle)
{
    keep(handle, -1);
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    if (pool)
        pool->imported = true;
    vgpu_unlock(&vgpu_process.lock);
}

static int pool_device(void *handle)
{
    struct vgpu_process *process = &vgpu_process;
    vgpu_lock(&process->lock);
    struct pool *pool = find((uint64_t)(uintptr_t)handle);
    int device = pool ? pool->device : -2;
    vgpu_unlock(&process->lock);
    if (device != -2)
        return device;
    device = home_of(handle);
    keep((uint64_t)(uintptr_t)handle, device);
    return device;
}

/* The driver does not say by how much pools grow: the largest power of two in the first growth that is seen. */
static void learn_step(struct pool *pool, uint64_t before, uint64_t after)
{
    uint64_t growth = after > before ? after - before : 0, step = growth & -growth;
    if (step > pool->step)
        pool->step = step < STEP_MOST ? step : STEP_MOST;
}

static uint64_t step_of(uint64_t handle)
{
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    uint64_t step = pool ? pool->step : STEP_LEAST;
    vgpu_unlock(&vgpu_process.lock);
    return step;
}

/* Charges the pool what it has reserved now, in place of `held`, which the caller has charged to let it grow. False: it has grown
 * beyond the limit. */
static bool look(uint64_t handle, uint64_t held, bool grown)
{
    struct vgpu_process *process = &vgpu_process;
    uint64_t reserved = 0, looks;
    bool told, fits = true;
    if (!vgpu_attach())
        return false;
    vgpu_lock(&process->lock);
    struct pool *pool = find(handle);
    int tries = 0;
    do {
        looks = pool ? pool->looks : 0;
        vgpu_unlock(&process->lock);
        told = attribute(handle, POOL_RESERVED_CURRENT, &reserved);
        vgpu_lock(&process->lock);
        pool = find(handle);
    } while (pool && pool->looks != looks && ++tries < VGPU_LOOK_TRIES); /* another thread has counted an answer */
    if (pool) {
        uint64_t before = pool->charged;
        if (pool->looks != looks)
            told = true, reserved = before;
        else
            pool->looks++;
        pool->charged = told && reserved > pool->live ? reserved : pool->live;
        pool->looked = vgpu_now();
        pool->stale = false;
        learn_step(pool, before, pool->charged);
        if (pool->device >= 0)
            fits = vgpu_correct(pool->device, before + held, pool->charged, PART_DATA) || pool->charged <= before + held;
        pool->growing -= grown && pool->growing;
        forget_if_gone(pool);
    }
    vgpu_unlock(&process->lock);
    return fits;
}

static void reconcile(uint64_t handle)
{
    look(handle, 0, false);
}

static void stop_growing(uint64_t handle)
{
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    if (pool) {
        pool->growing -= pool->growing != 0;
        forget_if_gone(pool);
    }
    vgpu_unlock(&vgpu_process.lock);
}

/* The pool grows and shrinks without notice: it is looked at now and then. */
static bool is_due(const struct pool *pool)
{
    return pool->destroyed || vgpu_now() - pool->looked > LOOK_INTERVAL;
}

void vgpu_pool_freed(uint64_t handle, uint64_t bytes)
{
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    bool due = pool && is_due(pool);
    if (pool) {
        pool->live = vgpu_less(pool->live, bytes);
        pool->stale = true;
        atomic_store_explicit(&stale_pools, true, memory_order_relaxed);
    }
    vgpu_unlock(&vgpu_process.lock);
    if (due)
        reconcile(handle);
}

void vgpu_pools_look(int d)
{
    uint64_t handles[POOLS];
    int count = 0;
    if (LIKELY(!atomic_load_explicit(&stale_pools, memory_order_relaxed)))
        return;
    vgpu_lock(&vgpu_process.lock);
    forget_of_parent();
    bool others = false;
    for (int i = 0; i < POOLS; i++) {
        bool stale = pools[i].handle && pools[i].stale;
        if (stale && pools[i].device == d)
            handles[count++] = pools[i].handle;
        others |= stale && pools[i].device != d;
    }
    atomic_store(&stale_pools, others);
    vgpu_unlock(&vgpu_process.lock);
    for (int i = 0; i < count; i++)
        reconcile(handles[i]);
}

bool vgpu_pools_trim(int d)
{
    uint64_t handles[POOLS], before = vgpu_counted(d);
    int count = 0;
    vgpu_lock(&vgpu_process.lock);
    forget_of_parent();
    for (int i = 0; i < POOLS; i++)
        if (pools[i].handle && pools[i].device == d && !pools[i].destroyed)
            handles[count++] = pools[i].handle;
    vgpu_unlock(&vgpu_process.lock);
    for (int i = 0; i < count; i++) {
        uint32_t mode = vgpu_relax();
        REAL(cuMemPoolTrimTo)((void *)(uintptr_t)handles[i], 0);
        vgpu_restore(mode);
        reconcile(handles[i]);
    }
    return vgpu_counted(d) < before;
}

int vgpu_reserve(int d, uint64_t bytes, enum vgpu_part part)
{
    vgpu_suspend_look();
    int result = vgpu_charge(d, bytes, part);
    if (UNLIKELY(result == CUDA_OUT_OF_MEMORY) && vgpu_pools_trim(d))
        result = vgpu_charge(d, bytes, part);
    return result;
}

int vgpu_reserve_import(int d, uint64_t before, uint64_t after, enum vgpu_part part, struct vgpu_share *share)
{
    vgpu_suspend_look();
    int result = vgpu_import(d, before, after, part, share);
    if (UNLIKELY(result == CUDA_OUT_OF_MEMORY) && vgpu_pools_trim(d))
        result = vgpu_import(d, before, after, part, share);
    return result;
}

/* An allocation in a pool, by whichever function the program has called. */
struct request {
    enum { DEFAULT, DEFAULT_PTSZ, POOL, POOL_PTSZ } function;
    uint64_t *address;
    uint64_t bytes;
    void *pool, *stream;
};

static int call(const struct request *asked)
{
    switch (asked->function) {
    case DEFAULT: return REAL(cuMemAllocAsync)(asked->address, asked->bytes, asked->stream);
    case DEFAULT_PTSZ: return REAL(cuMemAllocAsync_ptsz)(asked->address, asked->bytes, asked->stream);
    case POOL: return REAL(cuMemAllocFromPoolAsync)(asked->address, asked->bytes, asked->pool, asked->stream);
    default: return REAL(cuMemAllocFromPoolAsync_ptsz)(asked->address, asked->bytes, asked->pool, asked->stream);
    }
}

static bool is_per_thread(const struct request *asked)
{
    return asked->function == DEFAULT_PTSZ || asked->function == POOL_PTSZ;
}

/* Takes room that the pool is charged for already. Without room, the pool stays known until the caller has looked at it. */
static enum { NO_ROOM, ROOM, ROOM_TO_LOOK_AT, UNKNOWN_POOL } take_room(uint64_t handle, uint64_t size)
{
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    bool fits = pool && vgpu_add(pool->live, size) <= pool->charged;
    bool due = fits && is_due(pool);
    if (fits)
        pool->live += size;
    else if (pool)
        pool->growing++;
    vgpu_unlock(&vgpu_process.lock);
    return !pool ? UNKNOWN_POOL : !fits ? NO_ROOM : due ? ROOM_TO_LOOK_AT : ROOM;
}

static void change_live(uint64_t handle, uint64_t more, uint64_t less)
{
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    if (pool)
        pool->live = vgpu_less(vgpu_add(pool->live, more), less);
    vgpu_unlock(&vgpu_process.lock);
}

/* Bytes to charge before the driver is asked: none if the pool has that much in reserve. -1: refused. */
static int64_t admit(uint64_t pool, int device, uint64_t size)
{
    uint64_t reserved, used;
    bool told = attribute(pool, POOL_RESERVED_CURRENT, &reserved) && attribute(pool, POOL_USED_CURRENT, &used);
    if (told && reserved >= used && reserved - used >= size)
        return 0;
    if (told)
        size = vgpu_round(size, step_of(pool));
    if (size > INT64_MAX)
        return -1;
    return vgpu_reserve(device, size, PART_DATA) == CUDA_OK ? (int64_t)size : -1;
}

static void remember(uint64_t address, const struct vgpu_allocation *made)
{
    struct vgpu_allocation kept = *made;
    kept.address = address;
    vgpu_lock(&vgpu_process.lock);
    vgpu_table_put(&vgpu_process.memory, &kept);
    vgpu_unlock(&vgpu_process.lock);
}

static void give_back(const struct request *asked)
{
    if (is_per_thread(asked))
        REAL(cuMemFreeAsync_ptsz)(*asked->address, asked->stream);
    else
        REAL(cuMemFreeAsync)(*asked->address, asked->stream);
}

/* The pool has grown by more than was asked for, and beyond the limit. */
static int undo(const struct request *asked, int device)
{
    struct vgpu_allocation gone;
    vgpu_lock(&vgpu_process.lock);
    bool known = vgpu_table_take(&vgpu_process.memory, *asked->address, &gone);
    vgpu_unlock(&vgpu_process.lock);
    give_back(asked);
    if (known)
        vgpu_pool_freed(gone.owner, gone.amount.bytes);
    vgpu_pools_trim(device);
    return CUDA_OUT_OF_MEMORY;
}

/* More pools than we remember: each allocation is charged by itself. */
static int allocate_by_itself(const struct request *asked, const struct vgpu_amount *amount)
{
    int result = vgpu_reserve(amount->device, amount->bytes, PART_DATA);
    if (result != CUDA_OK)
        return result;
    result = call(asked);
    if (result == CUDA_OK)
        remember(*asked->address, &(struct vgpu_allocation){.amount = *amount, .kind = OF_CONTEXT});
    else
        vgpu_uncharge(amount->device, amount->bytes, PART_DATA);
    return result;
}

/* A pool of another process, which counts what it has in reserve. The driver makes nothing new in it, says cuda.h; if it does, that
 * counts here. */
static bool is_imported(uint64_t handle)
{
    vgpu_lock(&vgpu_process.lock);
    const struct pool *pool = find(handle);
    bool imported = pool && pool->imported;
    vgpu_unlock(&vgpu_process.lock);
    return imported;
}

/* While the pool has room, the driver is asked nothing but what the program asks. */
static int allocate(const struct request *asked)
{
    uint64_t handle = (uint64_t)(uintptr_t)asked->pool, size = vgpu_round(asked->bytes, VGPU_GRANULE);
    int device = -1;
    if (asked->address && handle && vgpu_open() && vgpu_capturing(asked->stream, is_per_thread(asked)) != CAPTURING)
        device = pool_device(asked->pool); /* captured, it is memory of a graph */
    if (device < 0 && handle && is_imported(handle) && vgpu_current(&device, NULL))
        return allocate_by_itself(asked, &(struct vgpu_amount){.bytes = size, .device = device, .part = PART_DATA});
    if (device < 0)
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : call(asked);
    struct vgpu_allocation made = {.owner = handle, .kind = OF_POOL,
                                   .amount = {.bytes = size, .device = device, .part = PART_DATA}};
    int room = take_room(handle, size);
    if (UNLIKELY(room == UNKNOWN_POOL))
        return allocate_by_itself(asked, &made.amount);
    int64_t held = room == NO_ROOM ? admit(handle, device, size) : 0;
    if (held < 0) {
        stop_growing(handle);
        return CUDA_OUT_OF_MEMORY;
    }
    int result = call(asked);
    if (result == CUDA_OK)
        remember(*asked->address, &made);
    if (room == NO_ROOM && result == CUDA_OK)
        change_live(handle, size, 0);
    else if (room != NO_ROOM && result != CUDA_OK)
        change_live(handle, 0, size);
    bool fits = LIKELY(room == ROOM && result == CUDA_OK) || look(handle, (uint64_t)held, room == NO_ROOM);
    return !fits && result == CUDA_OK ? undo(asked, device) : result;
}

static int allocate_default(struct request asked)
{
    int ordinal = asked.address && vgpu_open() ? vgpu_stream_ordinal(asked.stream) : -1;
    if (ordinal < 0)
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : call(&asked);
    vgpu_lock(&vgpu_process.lock);
    forget_of_parent();
    asked.pool = (void *)(uintptr_t)current_pools[ordinal];
    vgpu_unlock(&vgpu_process.lock);
    if (UNLIKELY(!asked.pool)) {
        if (REAL(cuDeviceGetMemPool)(&asked.pool, (uint32_t)ordinal) != CUDA_OK)
            return call(&asked);
        vgpu_lock(&vgpu_process.lock);
        current_pools[ordinal] = (uint64_t)(uintptr_t)asked.pool;
        vgpu_unlock(&vgpu_process.lock);
    }
    return allocate(&asked);
}

int cuMemAllocAsync(void *address, uint64_t bytes, void *stream)
{
    return allocate_default((struct request){.function = DEFAULT, .address = address, .bytes = bytes, .stream = stream});
}

int cuMemAllocAsync_ptsz(void *address, uint64_t bytes, void *stream)
{
    return allocate_default((struct request){.function = DEFAULT_PTSZ, .address = address, .bytes = bytes,
                                             .stream = stream});
}

int cuMemAllocFromPoolAsync(void *address, uint64_t bytes, void *pool, void *stream)
{
    return allocate(&(struct request){.function = POOL, .address = address, .bytes = bytes, .pool = pool,
                                      .stream = stream});
}

int cuMemAllocFromPoolAsync_ptsz(void *address, uint64_t bytes, void *pool, void *stream)
{
    return allocate(&(struct request){.function = POOL_PTSZ, .address = address, .bytes = bytes, .pool = pool,
                                      .stream = stream});
}

/* Which pool a device allocates from has changed: the driver is asked again. */
static int chosen(int result)
{
    if (vgpu_is_open()) {
        vgpu_lock(&vgpu_process.lock);
        memset(current_pools, 0, sizeof current_pools);
        vgpu_unlock(&vgpu_process.lock);
    }
    return result;
}

int cuDeviceSetMemPool(uint32_t device, void *pool)
{
    return chosen(REAL(cuDeviceSetMemPool)(device, pool));
}

int cuMemSetMemPool(void *location, uint32_t type, void *pool)
{
    return chosen(REAL(cuMemSetMemPool)(location, type, pool));
}

struct pool_properties {
    uint32_t type, handles, location, id;
};

int cuMemPoolCreate(void *pool, void *properties)
{
    int result = REAL(cuMemPoolCreate)(pool, properties);
    const struct pool_properties *given = properties;
    if (result != CUDA_OK || !vgpu_open())
        return result;
    int device = vgpu_index_at(given->location, given->id);
    if (given->type == MANAGED && given->location != LOCATION_DEVICE)
        vgpu_current(&device, NULL); /* it may be anywhere: it counts where it was made */
    vgpu_lock(&vgpu_process.lock);
    add(*(uint64_t *)pool, device);
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* Taken from the table before the driver is asked, unless something is left in it: the handle may be another pool's as soon
 * as it answers. */
static struct pool begin_destroying(uint64_t handle)
{
    struct pool gone = {.device = -1};
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    if (pool && !pool->live && !pool->growing) {
        gone = *pool;
        pool->handle = 0;
    } else if (pool) {
        pool->destroyed = true;
    }
    vgpu_unlock(&vgpu_process.lock);
    return gone;
}

/* Its memory goes with the last allocation. */
static void end_destroying(uint64_t handle, struct pool *gone, bool destroyed)
{
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    if (gone->handle && destroyed) {
        uncharge(gone);
    } else if (gone->handle && (pool = pool ? pool : find(0))) {
        *pool = *gone;
    } else if (pool && pool->destroyed) {
        uint64_t less = destroyed ? vgpu_less(pool->charged, pool->live) : 0;
        if (less && pool->device >= 0)
            vgpu_correct(pool->device, less, 0, PART_DATA);
        pool->charged -= less;
        pool->destroyed = destroyed;
        forget_if_gone(pool);
    }
    vgpu_unlock(&vgpu_process.lock);
}

int cuMemPoolDestroy(void *pool)
{
    uint64_t handle = (uint64_t)(uintptr_t)pool;
    if (!handle || !vgpu_is_open())
        return REAL(cuMemPoolDestroy)(pool);
    struct pool gone = begin_destroying(handle);
    int result = chosen(REAL(cuMemPoolDestroy)(pool));
    end_destroying(handle, &gone, result == CUDA_OK);
    return result;
}

/* Of a pool of this process, or one that was imported: 0 if that cannot be told. `otherwise`: the name of one without. */
static uint64_t name_pool(uint64_t handle, uint64_t otherwise)
{
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    if (pool && !pool->name)
        pool->name = otherwise;
    uint64_t name = pool ? pool->name : 0;
    vgpu_unlock(&vgpu_process.lock);
    return name;
}

uint64_t vgpu_pool_name(uint64_t handle, bool own)
{
    return handle ? name_pool(handle, own ? vgpu_new_name() : 0) : 0;
}

int cuMemPoolExportToShareableHandle(void *shareable, void *pool, uint32_t type, uint64_t flags)
{
    int result = REAL(cuMemPoolExportToShareableHandle)(shareable, pool, type, flags);
    if (result == CUDA_OK && type == HANDLE_FILE && vgpu_is_open()) {
        pool_device(pool);
        vgpu_tag(*(int *)shareable, name_pool((uint64_t)(uintptr_t)pool, vgpu_new_name()));
    }
    return result;
}

int cuMemPoolImportFromShareableHandle(void *pool, void *shareable, uint32_t type, uint64_t flags)
{
    if (!vgpu_open())
        return CUDA_NOT_PERMITTED;
    uint64_t name = type == HANDLE_FILE ? vgpu_tag_of((int)(intptr_t)shareable) : 0;
    int result = REAL(cuMemPoolImportFromShareableHandle)(pool, shareable, type, flags);
    if (result == CUDA_OK) {
        keep_imported(*(uint64_t *)pool);
        name_pool(*(uint64_t *)pool, name);
    }
    return result;
}

int cuMemPoolTrimTo(void *pool, uint64_t bytes)
{
    int result = REAL(cuMemPoolTrimTo)(pool, bytes);
    if (vgpu_is_open())
        reconcile((uint64_t)(uintptr_t)pool);
    return result;
}
