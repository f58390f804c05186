#include "physical.h"

#include "account.h"
#include "blocks.h"
#include "devices.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"
#include "shares.h"
#include "tag.h"

struct properties {
    uint32_t type, handles, location, id;
};

int cuMemCreate(void *handle, uint64_t size, void *properties, uint64_t flags)
{
    const struct properties *given = properties;
    if (!handle || !given || !vgpu_open())
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuMemCreate)(handle, size, properties, flags);
    int d = vgpu_index_at(given->location, given->id);
    int result = d < 0 ? CUDA_OK : vgpu_reserve(d, size, PART_DATA);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (d >= 0 && result != CUDA_OK) {
        vgpu_uncharge(d, size, PART_DATA);
    } else if (d >= 0) {
        vgpu_lock(&vgpu_process.lock);
        vgpu_handle_add(*(uint64_t *)handle,
                        (struct vgpu_block){.amount = {.bytes = size, .device = d, .part = PART_DATA}});
        vgpu_unlock(&vgpu_process.lock);
    }
    return result;
}

int cuMemRelease(uint64_t handle)
{
    struct vgpu_freed freed = {0};
    uint64_t number = 0;
    if (vgpu_is_open()) {
        vgpu_lock(&vgpu_process.lock);
        number = vgpu_handle_unrefer(handle);
        vgpu_unlock(&vgpu_process.lock);
    }
    int result = REAL(cuMemRelease)(handle);
    if (!number)
        return result;
    vgpu_lock(&vgpu_process.lock);
    if (result == CUDA_OK)
        vgpu_block_change(number, -1, 0, &freed);
    else
        vgpu_handle_refer(handle, number);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}

int cuMemExportToShareableHandle(void *shareable, uint64_t handle, uint32_t type, uint64_t flags)
{
    int result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_block *known = vgpu_block_of(handle);
    uint64_t name = known ? known->amount.share.block : 0;
    vgpu_unlock(&vgpu_process.lock);
    if (type == HANDLE_FILE)
        name = vgpu_tag(*(int *)shareable, name ? name : vgpu_new_name());
    else
        name = type == HANDLE_FABRIC ? vgpu_name_of(shareable, sizeof(struct vgpu_structure), 0) : 0;
    vgpu_lock(&vgpu_process.lock);
    if ((known = vgpu_block_of(handle)) && !known->is_object)
        vgpu_export(&known->amount, name);
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* The device whose memory a handle means; -1: none, or none that is limited. */
static int device_of(uint64_t handle)
{
    union {
        struct properties known;
        char all[256];
    } properties = {.all = {0}};
    if (!HAS(cuMemGetAllocationPropertiesFromHandle)
        || REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) != CUDA_OK)
        return -1;
    return vgpu_index_at(properties.known.location, properties.known.id);
}

/* By which other processes know the memory of a handle that was passed to this one; 0: nobody does. */
static uint64_t name_of(void *shareable, uint32_t type)
{
    if (type == HANDLE_FILE)
        return vgpu_tag_of((int)(intptr_t)shareable);
    return type == HANDLE_FABRIC && shareable ? vgpu_name_of(shareable, sizeof(struct vgpu_structure), 0) : 0;
}

/* Whether an imported block is larger than was known; the block as it is known. */
static bool is_wider(uint64_t handle, uint64_t end, struct vgpu_block *block)
{
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_block *known = vgpu_block_of(handle);
    bool wider = known && !known->is_object && known->amount.part == PART_IMPORTED && known->amount.device >= 0
        && end > known->amount.bytes;
    if (wider)
        *block = *known;
    vgpu_unlock(&vgpu_process.lock);
    return wider;
}

/* What is charged for it now: its size, and the record of it. */
static void set_size(uint64_t handle, uint64_t size, const struct vgpu_share *share)
{
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_block *block = vgpu_block_of(handle);
    if (block) {
        block->amount.bytes = size;
        block->amount.share = *share;
    }
    vgpu_unlock(&vgpu_process.lock);
}

/* Charges what has shown itself, one after the other: a second one may show still more. */
static int widen(uint64_t handle, uint64_t end, struct vgpu_block *before)
{
    vgpu_lock(&vgpu_process.import_lock);
    bool wider = is_wider(handle, end, before);
    const struct vgpu_amount *amount = &before->amount;
    struct vgpu_share share = wider ? amount->share : (struct vgpu_share){0};
    int result = wider ? vgpu_import(amount->device, amount->bytes, end, PART_IMPORTED, &share) : CUDA_OK;
    VGPU_POINT(76);
    if (wider && result == CUDA_OK)
        set_size(handle, end, &share);
    vgpu_unlock(&vgpu_process.import_lock);
    before->number = wider ? before->number : 0;
    return result;
}

int vgpu_physical_widen(uint64_t handle, uint64_t end, struct vgpu_block *before)
{
    before->number = 0;
    if (!vgpu_is_open() || !is_wider(handle, end, before))
        return CUDA_OK;
    int result = widen(handle, end, before);
    if (result == CUDA_OUT_OF_MEMORY && vgpu_pools_trim(before->amount.device))
        result = widen(handle, end, before);
    return result;
}

/* Unless something else has shown more meanwhile. */
void vgpu_physical_narrow(uint64_t handle, uint64_t end, const struct vgpu_block *block)
{
    const struct vgpu_amount *before = &block->amount;
    if (!block->number)
        return;
    vgpu_lock(&vgpu_process.import_lock);
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_block *known = vgpu_block_of(handle);
    bool same = known && known->number == block->number && known->amount.bytes == end;
    struct vgpu_share share = same ? known->amount.share : (struct vgpu_share){0};
    vgpu_unlock(&vgpu_process.lock);
    if (same) {
        vgpu_unimport(before->device, end, before->bytes, PART_IMPORTED, &share);
        set_size(handle, before->bytes, before->bytes ? &share : &before->share);
    }
    vgpu_unlock(&vgpu_process.import_lock);
}

/* Remembers a handle that was imported. Two handles of one block may be the same number. */
static void remember_import(uint64_t handle, int d, uint64_t name, uint64_t block)
{
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_block *known = vgpu_block_of(handle);
    if (known) {
        known->references++;
        vgpu_handle_refer(handle, known->number);
    } else {
        vgpu_handle_add(handle, (struct vgpu_block){.amount = {.device = d, .part = PART_IMPORTED,
                                                               .share = {.name = name, .block = block}}});
    }
    vgpu_unlock(&vgpu_process.lock);
}

/* A handle holds the memory, mapped or not. Its size is known where a process of this container has exported it, otherwise once
 * it is mapped or bound. */
int cuMemImportFromShareableHandle(void *handle, void *shareable, uint32_t type)
{
    struct vgpu_block before;
    if (!vgpu_open())
        return CUDA_NOT_PERMITTED;
    uint64_t name = name_of(shareable, type);
    int result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
    if (result != CUDA_OK || !handle)
        return result;
    uint64_t given = *(uint64_t *)handle, block = name ? vgpu_share_block(vgpu_process.region, name) : 0;
    remember_import(given, device_of(given), name, block);
    result = vgpu_physical_widen(given, block ? vgpu_share_bytes(vgpu_process.region, block) : 0, &before);
    if (result != CUDA_OK)
        cuMemRelease(given);
    return result;
}

int cuMemRetainAllocationHandle(void *handle, void *address)
{
    int result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    struct vgpu_freed none = {0};
    vgpu_lock(&vgpu_process.lock);
    uint64_t number = vgpu_block_at((uint64_t)(uintptr_t)address);
    if (number) {
        vgpu_block_change(number, 1, 0, &none);
        vgpu_handle_refer(*(uint64_t *)handle, number);
    }
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

static void remember_mapping(uint64_t address, uint64_t size, uint64_t handle)
{
    struct vgpu_freed none = {0};
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_handle *known = vgpu_table_find(&vgpu_process.handles, handle);
    if (known) {
        uint64_t block = known->block;
        vgpu_block_change(block, 0, 1, &none);
        vgpu_table_put(&vgpu_process.mappings, &(struct vgpu_mapping){.address = address, .bytes = size, .block = block});
    }
    vgpu_unlock(&vgpu_process.lock);
}

int cuMemMap(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle, uint64_t flags)
{
    struct vgpu_block before;
    uint64_t end = vgpu_add(offset, size);
    int result = vgpu_physical_widen(handle, end, &before);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result != CUDA_OK)
        vgpu_physical_narrow(handle, end, &before);
    else if (vgpu_is_open())
        remember_mapping(address, size, handle);
    return result;
}

/* The mapping that begins at the address, or any within the range. Caller locks. */
static bool take_mapping(uint64_t from, uint64_t size, struct vgpu_mapping *taken)
{
    struct vgpu_table *table = &vgpu_process.mappings;
    if (vgpu_table_take(table, from, taken))
        return true;
    for (uint64_t i = 0; i < table->capacity; i++) {
        const struct vgpu_mapping *one = vgpu_table_at(table, i);
        if (one && one->address >= from && one->address - from < size)
            return vgpu_table_take(table, one->address, taken);
    }
    return false;
}

int cuMemUnmap(uint64_t address, uint64_t size)
{
    int result = REAL(cuMemUnmap)(address, size);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    struct vgpu_freed freed = {0};
    uint64_t at = address, left = size;
    struct vgpu_mapping gone;
    vgpu_lock(&vgpu_process.lock);
    while (left && take_mapping(at, left, &gone)) {
        vgpu_block_change(gone.block, 0, -1, &freed);
        if (gone.address == at) {
            at += gone.bytes < left ? gone.bytes : left;
            left = address + size - at;
        }
    }
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}
