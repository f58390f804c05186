/* Physical memory by handle, and its mappings. It is held as long as a handle or a mapping is left. */
#include "account.h"
#include "devices.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"

struct properties {
    uint32_t type, handles, location, id;
};

static uint64_t last_block;

static int reserve(int d, uint64_t size)
{
    int result = vgpu_charge(d, size, PART_DATA);
    if (result == CUDA_OUT_OF_MEMORY && vgpu_pools_trim(d))
        result = vgpu_charge(d, size, PART_DATA);
    return result;
}

/* References and mappings of a block change. Returns the bytes to uncharge once both are zero. Caller locks. */
static uint64_t change(uint64_t number, int references, int mappings, int *device)
{
    struct vgpu_entry *block = vgpu_table_find(&vgpu_process.blocks, number), gone;
    if (!block)
        return 0;
    block->owner += (uint64_t)(int64_t)references;
    block->second += (uint64_t)(int64_t)mappings;
    if (block->owner || block->second)
        return 0;
    vgpu_table_take(&vgpu_process.blocks, number, &gone);
    *device = gone.device;
    return gone.size;
}

/* One more reference by the handle. Caller locks. */
static void refer(uint64_t handle, uint64_t number)
{
    struct vgpu_entry *known = vgpu_table_find(&vgpu_process.handles, handle);
    if (known && known->second == number)
        known->size++;
    else
        vgpu_table_put(&vgpu_process.handles, &(struct vgpu_entry){.key = handle, .size = 1, .second = number,
                                                                   .kind = KIND_BLOCK});
}

/* One reference less; the number of the block, 0 if the handle is not known. Caller locks. */
static uint64_t unrefer(uint64_t handle)
{
    struct vgpu_entry *known = vgpu_table_find(&vgpu_process.handles, handle), gone;
    if (!known)
        return 0;
    uint64_t number = known->second;
    if (--known->size == 0)
        vgpu_table_take(&vgpu_process.handles, handle, &gone);
    return number;
}

int cuMemCreate(void *handle, uint64_t size, void *properties, uint64_t flags)
{
    const struct properties *given = properties;
    if (!handle || !given || given->location != LOCATION_DEVICE || !vgpu_open())
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuMemCreate)(handle, size, properties, flags);
    int d = vgpu_index_of((int)given->id);
    int result = d < 0 ? CUDA_OK : reserve(d, size);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (d >= 0 && result != CUDA_OK) {
        vgpu_uncharge(d, size, PART_DATA);
    } else if (d >= 0) {
        vgpu_lock(&vgpu_process.lock);
        uint64_t number = ++last_block;
        vgpu_table_put(&vgpu_process.blocks, &(struct vgpu_entry){.key = number, .size = size, .owner = 1, .device = d,
                                                                  .kind = KIND_BLOCK});
        refer(*(uint64_t *)handle, number);
        vgpu_unlock(&vgpu_process.lock);
    }
    return result;
}

int cuMemRelease(uint64_t handle)
{
    int device = -1;
    uint64_t bytes = 0, number = 0;
    if (vgpu_is_open()) {
        vgpu_lock(&vgpu_process.lock);
        number = unrefer(handle);
        vgpu_unlock(&vgpu_process.lock);
    }
    int result = REAL(cuMemRelease)(handle);
    if (!number)
        return result;
    vgpu_lock(&vgpu_process.lock);
    if (result == CUDA_OK)
        bytes = change(number, -1, 0, &device);
    else
        refer(handle, number);
    vgpu_unlock(&vgpu_process.lock);
    if (device >= 0)
        vgpu_uncharge(device, bytes, PART_DATA);
    return result;
}

/* The block that is mapped at an address, 0 if none. Caller locks. */
static uint64_t block_at(uint64_t address)
{
    struct vgpu_table *table = &vgpu_process.memory;
    for (uint64_t i = 0; i < table->capacity; i++) {
        const struct vgpu_entry *entry = &table->entry[i];
        if (entry->key && entry->kind == KIND_MAPPING && address >= entry->key && address - entry->key < entry->size)
            return entry->second;
    }
    return 0;
}

int cuMemRetainAllocationHandle(void *handle, void *address)
{
    int result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    int device;
    vgpu_lock(&vgpu_process.lock);
    uint64_t number = block_at((uint64_t)(uintptr_t)address);
    if (number) {
        change(number, 1, 0, &device);
        refer(*(uint64_t *)handle, number);
    }
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

int cuMemMap(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle, uint64_t flags)
{
    int result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    int device;
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_entry *known = vgpu_table_find(&vgpu_process.handles, handle);
    if (known) {
        uint64_t number = known->second;
        change(number, 0, 1, &device);
        vgpu_table_put(&vgpu_process.memory, &(struct vgpu_entry){.key = address, .size = size, .second = number,
                                                                  .kind = KIND_MAPPING});
    }
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* The mapping that begins at the address, or any within the range. Caller locks. */
static bool take_mapping(uint64_t from, uint64_t size, struct vgpu_entry *taken)
{
    struct vgpu_table *table = &vgpu_process.memory;
    struct vgpu_entry *found = vgpu_table_find(table, from);
    if (found && found->kind == KIND_MAPPING)
        return vgpu_table_take(table, from, taken);
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->entry[i].key >= from && table->entry[i].key - from < size && table->entry[i].key
            && table->entry[i].kind == KIND_MAPPING)
            return vgpu_table_take(table, table->entry[i].key, taken);
    return false;
}

int cuMemUnmap(uint64_t address, uint64_t size)
{
    int result = REAL(cuMemUnmap)(address, size);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    uint64_t bytes[VGPU_DEVICES] = {0}, at = address, left = size;
    struct vgpu_entry gone;
    vgpu_lock(&vgpu_process.lock);
    while (left && take_mapping(at, left, &gone)) {
        int device = -1;
        uint64_t freed = change(gone.second, 0, -1, &device);
        if (device >= 0)
            bytes[device] += freed;
        if (gone.key == at) {
            at += gone.size < left ? gone.size : left;
            left = address + size - at;
        }
    }
    vgpu_unlock(&vgpu_process.lock);
    for (int d = 0; d < VGPU_DEVICES; d++)
        vgpu_uncharge(d, bytes[d], PART_DATA);
    return result;
}
