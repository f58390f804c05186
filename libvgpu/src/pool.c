#include "pool.h"

#include "account.h"
#include "capture.h"
#include "devices.h"
#include "log.h"
#include "process.h"
#include "resolve.h"
#include "tag.h"

#include <string.h>

enum { POOLS = 256 };

static const uint64_t STEP_LEAST = (uint64_t)2 << 20, STEP_MOST = (uint64_t)32 << 20;

struct pool {
    uint64_t handle; /* 0: free */
    int device;      /* -1: not memory of a device, or another process counts it */
    bool destroyed;
    uint64_t name; /* of the file by which processes share it; 0: none yet */
    uint64_t live;
    uint64_t charged;
    uint64_t step; /* by which the driver lets it grow */
};

static struct pool pools[POOLS];
static uint64_t graph_instantiated[VGPU_DEVICES], graph_charged[VGPU_DEVICES];
static int32_t owner; /* process that pools belong to; a forked child has none */

/* Caller locks, as for all functions that return a pool. */
static void forget_of_parent(void)
{
    int32_t self = atomic_load(&vgpu_process.pid);
    if (owner == self)
        return;
    memset(pools, 0, sizeof pools);
    memset(graph_instantiated, 0, sizeof graph_instantiated);
    memset(graph_charged, 0, sizeof graph_charged);
    owner = self;
}

static struct pool *find(uint64_t handle)
{
    forget_of_parent();
    for (int i = 0; i < POOLS; i++)
        if (pools[i].handle == handle)
            return &pools[i];
    return NULL;
}

static struct pool *add(uint64_t handle, int device)
{
    struct pool *pool = find(handle);
    pool = pool ? pool : find(0);
    if (pool)
        *pool = (struct pool){.handle = handle, .device = device, .step = STEP_LEAST};
    else
        LOG_ONCE(LOG_WARNING, "more than %d memory pools", POOLS);
    return pool;
}

/* A pool that we have not seen made is a device's own. Asks the driver: not under the lock. */
static int device_of(void *handle)
{
    uint32_t count = 0;
    void *found = NULL;
    REAL(cuDeviceGetCount)(&count);
    for (uint32_t i = 0; i < count; i++)
        if ((REAL(cuDeviceGetMemPool)(&found, i) == 0 && found == handle)
            || (HAS(cuDeviceGetDefaultMemPool) && REAL(cuDeviceGetDefaultMemPool)(&found, i) == 0 && found == handle))
            return vgpu_index_of((int)i);
    int index;
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

static int pool_device(void *handle)
{
    struct vgpu_process *process = &vgpu_process;
    vgpu_lock(&process->lock);
    struct pool *pool = find((uint64_t)(uintptr_t)handle);
    int device = pool ? pool->device : -2;
    vgpu_unlock(&process->lock);
    if (device != -2)
        return device;
    device = device_of(handle);
    keep((uint64_t)(uintptr_t)handle, device);
    return device;
}

static bool attribute(uint64_t pool, uint32_t which, uint64_t *value)
{
    return HAS(cuMemPoolGetAttribute) && REAL(cuMemPoolGetAttribute)((void *)(uintptr_t)pool, which, value) == 0;
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

/* Charges the pool what it has reserved now, in place of `held`, which the caller has charged. False: it has grown
 * beyond the limit. */
static bool reconcile(uint64_t handle, uint64_t held)
{
    struct vgpu_process *process = &vgpu_process;
    uint64_t reserved = 0;
    bool told = attribute(handle, POOL_RESERVED_CURRENT, &reserved);
    vgpu_lock(&process->lock);
    struct pool *pool = find(handle);
    int device = pool ? pool->device : -1;
    uint64_t before = 0, after = 0;
    if (pool) {
        before = pool->charged;
        after = pool->charged = told && reserved > pool->live ? reserved : pool->live;
        learn_step(pool, before, after);
        if (pool->destroyed && !pool->live)
            pool->handle = 0, after = 0;
    }
    vgpu_unlock(&process->lock);
    if (device < 0)
        return true;
    bool fits = vgpu_correct(device, before + held, after, PART_DATA);
    return fits || after <= before + held;
}

void vgpu_pool_freed(uint64_t handle, uint64_t bytes)
{
    vgpu_lock(&vgpu_process.lock);
    struct pool *pool = find(handle);
    if (pool)
        pool->live = vgpu_less(pool->live, bytes);
    vgpu_unlock(&vgpu_process.lock);
    if (pool)
        reconcile(handle, 0);
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
        REAL(cuMemPoolTrimTo)((void *)(uintptr_t)handles[i], 0);
        reconcile(handles[i], 0);
    }
    return vgpu_counted(d) < before;
}

int vgpu_reserve(int d, uint64_t bytes, enum vgpu_part part)
{
    int result = vgpu_charge(d, bytes, part);
    if (UNLIKELY(result == CUDA_OUT_OF_MEMORY) && vgpu_pools_trim(d))
        result = vgpu_charge(d, bytes, part);
    return result;
}

int vgpu_reserve_import(int d, uint64_t before, uint64_t after, enum vgpu_part part, struct vgpu_share *share)
{
    int result = vgpu_import(d, before, after, part, share);
    if (UNLIKELY(result == CUDA_OUT_OF_MEMORY) && vgpu_pools_trim(d))
        result = vgpu_import(d, before, after, part, share);
    return result;
}

/* Bytes to charge before the driver is asked: none if the pool has that much in reserve. -1: refused. */
static int64_t admit(uint64_t pool, int device, uint64_t bytes)
{
    uint64_t reserved, used;
    uint64_t size = vgpu_round(bytes, 512);
    bool told = attribute(pool, POOL_RESERVED_CURRENT, &reserved) && attribute(pool, POOL_USED_CURRENT, &used);
    if (told && reserved >= used && reserved - used >= size)
        return 0;
    if (told)
        size = vgpu_round(size, step_of(pool));
    if (size > INT64_MAX)
        return -1;
    return vgpu_reserve(device, size, PART_DATA) == CUDA_OK ? (int64_t)size : -1;
}

static void remember(uint64_t pool, int device, uint64_t address, uint64_t bytes)
{
    struct vgpu_entry entry = {.key = address, .size = vgpu_round(bytes, 512), .owner = pool, .device = device,
                               .kind = KIND_POOLED, .part = PART_DATA};
    vgpu_lock(&vgpu_process.lock);
    vgpu_table_put(&vgpu_process.memory, &entry);
    struct pool *known = find(pool);
    if (known)
        known->live += entry.size;
    vgpu_unlock(&vgpu_process.lock);
}

static int real_allocate(uint64_t *address, uint64_t bytes, void *pool, void *stream, bool per_thread)
{
    return per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz)(address, bytes, pool, stream)
                      : REAL(cuMemAllocFromPoolAsync)(address, bytes, pool, stream);
}

static void give_back(uint64_t address, void *stream, bool per_thread)
{
    if (per_thread)
        REAL(cuMemFreeAsync_ptsz)(address, stream);
    else
        REAL(cuMemFreeAsync)(address, stream);
}

static int allocate(uint64_t *address, uint64_t bytes, void *pool, void *stream, bool per_thread)
{
    uint64_t handle = (uint64_t)(uintptr_t)pool;
    int device = -1;
    if (address && pool && vgpu_open() && vgpu_capturing(stream, per_thread) != CAPTURING) /* captured, it is memory of a graph */
        device = pool_device(pool);
    if (device < 0)
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : real_allocate(address, bytes, pool, stream, per_thread);
    int64_t held = admit(handle, device, bytes);
    if (held < 0)
        return CUDA_OUT_OF_MEMORY;
    int result = real_allocate(address, bytes, pool, stream, per_thread);
    if (result == CUDA_OK)
        remember(handle, device, *address, bytes);
    if (!reconcile(handle, (uint64_t)held) && result == CUDA_OK) {
        /* The pool has grown by more than was asked for, and beyond the limit. */
        struct vgpu_entry entry;
        vgpu_lock(&vgpu_process.lock);
        vgpu_table_take(&vgpu_process.memory, *address, &entry);
        vgpu_unlock(&vgpu_process.lock);
        give_back(*address, stream, per_thread);
        vgpu_pool_freed(handle, entry.size);
        vgpu_pools_trim(device);
        return CUDA_OUT_OF_MEMORY;
    }
    return result;
}

static int allocate_default(uint64_t *address, uint64_t bytes, void *stream, bool per_thread)
{
    uint32_t ordinal;
    void *pool = NULL;
    if (!address || REAL(cuCtxGetDevice)(&ordinal) != 0 || REAL(cuDeviceGetMemPool)(&pool, ordinal) != 0)
        return per_thread ? REAL(cuMemAllocAsync_ptsz)(address, bytes, stream)
                          : REAL(cuMemAllocAsync)(address, bytes, stream);
    return allocate(address, bytes, pool, stream, per_thread);
}

int cuMemAllocAsync(void *address, uint64_t bytes, void *stream)
{
    return allocate_default(address, bytes, stream, false);
}

int cuMemAllocAsync_ptsz(void *address, uint64_t bytes, void *stream)
{
    return allocate_default(address, bytes, stream, true);
}

int cuMemAllocFromPoolAsync(void *address, uint64_t bytes, void *pool, void *stream)
{
    return allocate(address, bytes, pool, stream, false);
}

int cuMemAllocFromPoolAsync_ptsz(void *address, uint64_t bytes, void *pool, void *stream)
{
    return allocate(address, bytes, pool, stream, true);
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
    int device = given->location == LOCATION_DEVICE ? vgpu_index_of((int)given->id) : -1;
    vgpu_lock(&vgpu_process.lock);
    add(*(uint64_t *)pool, device);
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* Its memory goes with the last allocation. */
int cuMemPoolDestroy(void *pool)
{
    int result = REAL(cuMemPoolDestroy)(pool);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    vgpu_lock(&vgpu_process.lock);
    struct pool *known = find((uint64_t)(uintptr_t)pool);
    uint64_t less = 0;
    int device = -1;
    if (known) {
        device = known->device;
        less = known->charged - (known->live < known->charged ? known->live : known->charged);
        known->charged -= less;
        known->destroyed = true;
        if (!known->live)
            known->handle = 0;
    }
    vgpu_unlock(&vgpu_process.lock);
    if (device >= 0)
        vgpu_uncharge(device, less, PART_DATA);
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
        keep(*(uint64_t *)pool, -1); /* its exporter counts what it has in reserve */
        name_pool(*(uint64_t *)pool, name);
    }
    return result;
}

int cuMemPoolTrimTo(void *pool, uint64_t bytes)
{
    int result = REAL(cuMemPoolTrimTo)(pool, bytes);
    if (vgpu_is_open())
        reconcile((uint64_t)(uintptr_t)pool, 0);
    return result;
}

int vgpu_graph_memory(int d, int64_t instantiated)
{
    struct vgpu_process *process = &vgpu_process;
    uint64_t more = instantiated > 0 ? (uint64_t)instantiated : 0;
    int result = vgpu_charge(d, more, PART_DATA);
    if (result == CUDA_OUT_OF_MEMORY && vgpu_pools_trim(d))
        result = vgpu_charge(d, more, PART_DATA);
    if (result != CUDA_OK)
        return result;
    vgpu_lock(&process->lock);
    forget_of_parent();
    graph_charged[d] += more;
    graph_instantiated[d] = instantiated > 0 ? graph_instantiated[d] + more
        : vgpu_less(graph_instantiated[d], (uint64_t)-instantiated);
    vgpu_unlock(&process->lock);
    return result;
}

void vgpu_graph_memory_look(int d, int ordinal)
{
    struct vgpu_process *process = &vgpu_process;
    uint64_t reserved = 0;
    if (!HAS(cuDeviceGetGraphMemAttribute)
        || REAL(cuDeviceGetGraphMemAttribute)((uint32_t)ordinal, GRAPH_RESERVED_CURRENT, &reserved) != 0)
        reserved = 0;
    vgpu_lock(&process->lock);
    forget_of_parent();
    uint64_t before = graph_charged[d];
    uint64_t after = graph_instantiated[d] > reserved ? graph_instantiated[d] : reserved;
    graph_charged[d] = after;
    vgpu_unlock(&process->lock);
    if (before != after)
        vgpu_correct(d, before, after, PART_DATA);
}
