/* Memory that belongs to a context: plain, pitched, managed. */
#include "account.h"
#include "blocks.h"
#include "devices.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"

static void remember(uint64_t address, int d, uint64_t size, uint64_t context)
{
    struct vgpu_allocation made = {.address = address, .owner = context, .kind = OF_CONTEXT,
                                   .amount = {.bytes = size, .device = d, .part = PART_DATA}};
    vgpu_lock(&vgpu_process.lock);
    vgpu_table_put(&vgpu_process.memory, &made);
    vgpu_unlock(&vgpu_process.lock);
}

enum which { PLAIN, PLAIN_V1, MANAGED };

static int call(enum which which, void *address, uint64_t bytes, uint32_t flags)
{
    switch (which) {
    case PLAIN: return REAL(cuMemAlloc_v2)(address, bytes);
    case PLAIN_V1: return REAL(cuMemAlloc)(address, (uint32_t)bytes);
    default: return REAL(cuMemAllocManaged)(address, bytes, flags);
    }
}

static int allocate(enum which which, void *address, uint64_t bytes, uint32_t flags)
{
    int d;
    uint64_t context;
    if (UNLIKELY(!address || !vgpu_current(&d, &context)))
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : call(which, address, bytes, flags);
    uint64_t size = vgpu_pages(bytes);
    int result = vgpu_reserve(d, size, PART_DATA);
    if (result != CUDA_OK)
        return result;
    VGPU_POINT(50);
    result = call(which, address, bytes, flags);
    VGPU_POINT(51);
    if (result == CUDA_OK)
        remember(which == PLAIN_V1 ? *(uint32_t *)address : *(uint64_t *)address, d, size, context);
    else
        vgpu_uncharge(d, size, PART_DATA);
    VGPU_POINT(52);
    return result;
}

int cuMemAlloc_v2(void *address, uint64_t bytes)
{
    return allocate(PLAIN, address, bytes, 0);
}

int cuMemAlloc(void *address, uint32_t bytes)
{
    return allocate(PLAIN_V1, address, bytes, 0);
}

int cuMemAllocManaged(void *address, uint64_t bytes, uint32_t flags)
{
    return allocate(MANAGED, address, bytes, flags);
}

static int call_pitched(bool v1, void *address, void *pitch, uint64_t width, uint64_t height, uint32_t element)
{
    return v1 ? REAL(cuMemAllocPitch)(address, pitch, (uint32_t)width, (uint32_t)height, element)
              : REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
}

/* The pitch is the driver's: charged as it usually is, corrected to what it was. */
static int allocate_pitched(bool v1, void *address, void *pitch, uint64_t width, uint64_t height, uint32_t element)
{
    int d;
    uint64_t context;
    if (!address || !pitch || !vgpu_current(&d, &context))
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : call_pitched(v1, address, pitch, width, height, element);
    uint64_t size = vgpu_pages(vgpu_multiply(vgpu_round(width, VGPU_GRANULE), height));
    int result = vgpu_reserve(d, size, PART_DATA);
    if (result != CUDA_OK)
        return result;
    result = call_pitched(v1, address, pitch, width, height, element);
    if (result != CUDA_OK) {
        vgpu_uncharge(d, size, PART_DATA);
        return result;
    }
    uint64_t real = vgpu_pages(vgpu_multiply(v1 ? *(uint32_t *)pitch : *(uint64_t *)pitch, height));
    uint64_t place = v1 ? *(uint32_t *)address : *(uint64_t *)address;
    result = vgpu_recharge(d, size, real, PART_DATA);
    if (result == CUDA_OK) {
        remember(place, d, real, context);
    } else {
        if (v1)
            REAL(cuMemFree)((uint32_t)place);
        else
            REAL(cuMemFree_v2)(place);
        vgpu_uncharge(d, size, PART_DATA);
    }
    return result;
}

int cuMemAllocPitch_v2(void *address, void *pitch, uint64_t width, uint64_t height, uint32_t element)
{
    return allocate_pitched(false, address, pitch, width, height, element);
}

int cuMemAllocPitch(void *address, void *pitch, uint32_t width, uint32_t height, uint32_t element)
{
    return allocate_pitched(true, address, pitch, width, height, element);
}

/* Taken from the table before the driver is asked: the address may be someone's again as soon as it answers. */
static bool take(uint64_t address, struct vgpu_allocation *taken)
{
    if (!address || !vgpu_is_open())
        return false;
    vgpu_lock(&vgpu_process.lock);
    bool known = vgpu_table_take(&vgpu_process.memory, address, taken);
    vgpu_unlock(&vgpu_process.lock);
    return known;
}

/* What other processes may hold, too. */
static void freed_of_others(const struct vgpu_allocation *gone)
{
    struct vgpu_freed freed = {0};
    vgpu_lock(&vgpu_process.lock);
    vgpu_free(&freed, &gone->amount);
    vgpu_unlock(&vgpu_process.lock);
    if (gone->kind == OF_POOL)
        freed.bytes[gone->amount.device][gone->amount.part] = 0; /* the pool counts it */
    vgpu_uncharge_all(&freed);
}

/* A buffer in external memory, or memory of a pool that was bound to something, which may hold it on though its pool no longer
 * counts it. */
static void freed_of_block(const struct vgpu_allocation *gone)
{
    struct vgpu_freed freed = {0};
    struct vgpu_allocation rest = *gone;
    vgpu_lock(&vgpu_process.lock);
    if (rest.opened > 1) {
        rest.opened--;
        vgpu_table_put(&vgpu_process.memory, &rest);
        vgpu_unlock(&vgpu_process.lock);
        return;
    }
    struct vgpu_block *block = vgpu_table_find(&vgpu_process.blocks, gone->block);
    if (block && gone->kind == OF_POOL && block->mappings) {
        block->amount = (struct vgpu_amount){.bytes = gone->amount.bytes, .device = gone->amount.device,
                                             .part = PART_DATA};
        vgpu_correct(block->amount.device, 0, block->amount.bytes, PART_DATA);
    }
    vgpu_block_leave(gone->block, &freed);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
}

static int freed(bool known, const struct vgpu_allocation *gone, int result)
{
    const struct vgpu_amount *amount = &gone->amount;
    if (!known)
        return result;
    VGPU_POINT(60);
    if (result != CUDA_OK) {
        vgpu_lock(&vgpu_process.lock);
        vgpu_table_put(&vgpu_process.memory, gone);
        vgpu_unlock(&vgpu_process.lock);
    } else {
        if (UNLIKELY(amount->exported || amount->share.record))
            freed_of_others(gone);
        else if (gone->kind != OF_POOL)
            vgpu_uncharge(amount->device, amount->bytes, (enum vgpu_part)amount->part);
        if (UNLIKELY(gone->block))
            freed_of_block(gone);
        if (gone->kind == OF_POOL)
            vgpu_pool_freed(gone->owner, amount->bytes);
    }
    VGPU_POINT(61);
    return result;
}

int cuMemFree_v2(uint64_t address)
{
    struct vgpu_allocation gone;
    bool known = take(address, &gone);
    return freed(known, &gone, REAL(cuMemFree_v2)(address));
}

int cuMemFree(uint32_t address)
{
    struct vgpu_allocation gone;
    bool known = take(address, &gone);
    return freed(known, &gone, REAL(cuMemFree)(address));
}

int cuMemFreeAsync(uint64_t address, void *stream)
{
    struct vgpu_allocation gone;
    bool known = take(address, &gone);
    return freed(known, &gone, REAL(cuMemFreeAsync)(address, stream));
}

int cuMemFreeAsync_ptsz(uint64_t address, void *stream)
{
    struct vgpu_allocation gone;
    bool known = take(address, &gone);
    return freed(known, &gone, REAL(cuMemFreeAsync_ptsz)(address, stream));
}
