/* Physical memory by handle, its mappings, and multicast objects, to which it is bound. It is held as long as a handle, a
 * mapping or a binding is left. */
#include "account.h"
#include "devices.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"
#include "shares.h"
#include "tag.h"

struct properties {
    uint32_t type, handles, location, id;
};

static uint64_t last_number; /* of blocks and bindings */

static void change(uint64_t number, int references, int mappings, struct vgpu_freed *freed);

/* Bindings to a multicast object end: those of memory of a device, -1 for all, in a range of it. Caller locks. */
static void unbind(uint64_t object, int device, uint64_t from, uint64_t size, struct vgpu_freed *freed)
{
    struct vgpu_table *table = &vgpu_process.bindings;
    struct vgpu_binding gone;
    for (uint64_t i = 0; i < table->capacity;) {
        const struct vgpu_binding *one = vgpu_table_at(table, i);
        bool meant = one && one->object == object && (device < 0 || one->device == device);
        if (!meant || one->offset < from || one->offset - from >= size) {
            i++;
            continue;
        }
        vgpu_table_take(table, one->number, &gone); /* the next one may have moved to this place */
        change(gone.block, 0, -1, freed);
    }
}

/* References and mappings of a block change. What it was charged is freed once both are zero. Caller locks. */
static void change(uint64_t number, int references, int mappings, struct vgpu_freed *freed)
{
    struct vgpu_block *block = vgpu_table_find(&vgpu_process.blocks, number), gone;
    if (!block)
        return;
    block->references += references;
    block->mappings += mappings;
    if (block->references || block->mappings)
        return;
    vgpu_table_take(&vgpu_process.blocks, number, &gone);
    if (gone.is_multicast)
        unbind(number, -1, 0, UINT64_MAX, freed);
    else
        vgpu_free(freed, &gone.amount);
}

/* One more reference by the handle. Caller locks. */
static void refer(uint64_t handle, uint64_t block)
{
    struct vgpu_handle *known = vgpu_table_find(&vgpu_process.handles, handle);
    if (known && known->block == block)
        known->references++;
    else
        vgpu_table_put(&vgpu_process.handles, &(struct vgpu_handle){.handle = handle, .block = block, .references = 1});
}

/* One reference less; the number of the block, 0 if the handle is not known. Caller locks. */
static uint64_t unrefer(uint64_t handle)
{
    struct vgpu_handle *known = vgpu_table_find(&vgpu_process.handles, handle), gone;
    if (!known)
        return 0;
    uint64_t block = known->block;
    if (--known->references == 0)
        vgpu_table_take(&vgpu_process.handles, handle, &gone);
    return block;
}

/* Remembers a new block with one reference. Caller locks. */
static void add(uint64_t handle, struct vgpu_block block)
{
    block.number = ++last_number;
    block.references = 1;
    vgpu_table_put(&vgpu_process.blocks, &block);
    refer(handle, block.number);
}

static struct vgpu_block *block_of(uint64_t handle)
{
    const struct vgpu_handle *known = vgpu_table_find(&vgpu_process.handles, handle);
    return known ? vgpu_table_find(&vgpu_process.blocks, known->block) : NULL;
}

int cuMemCreate(void *handle, uint64_t size, void *properties, uint64_t flags)
{
    const struct properties *given = properties;
    if (!handle || !given || given->location != LOCATION_DEVICE || !vgpu_open())
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuMemCreate)(handle, size, properties, flags);
    int d = vgpu_index_of((int)given->id);
    int result = d < 0 ? CUDA_OK : vgpu_reserve(d, size, PART_DATA);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (d >= 0 && result != CUDA_OK) {
        vgpu_uncharge(d, size, PART_DATA);
    } else if (d >= 0) {
        vgpu_lock(&vgpu_process.lock);
        add(*(uint64_t *)handle, (struct vgpu_block){.amount = {.bytes = size, .device = d, .part = PART_DATA}});
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
        number = unrefer(handle);
        vgpu_unlock(&vgpu_process.lock);
    }
    int result = REAL(cuMemRelease)(handle);
    if (!number)
        return result;
    vgpu_lock(&vgpu_process.lock);
    if (result == CUDA_OK)
        change(number, -1, 0, &freed);
    else
        refer(handle, number);
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
    struct vgpu_block *known = block_of(handle);
    uint64_t name = known ? known->amount.share.block : 0;
    vgpu_unlock(&vgpu_process.lock);
    if (type == HANDLE_FILE)
        name = vgpu_tag(*(int *)shareable, name ? name : vgpu_new_name());
    else
        name = type == HANDLE_FABRIC ? vgpu_name_of(shareable, sizeof(struct vgpu_structure), 0) : 0;
    vgpu_lock(&vgpu_process.lock);
    if ((known = block_of(handle)) && !known->is_multicast)
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
        || REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) != CUDA_OK
        || properties.known.location != LOCATION_DEVICE)
        return -1;
    return vgpu_index_of((int)properties.known.id);
}

/* By which other processes know the memory of a handle that was passed to this one; 0: nobody does. */
static uint64_t name_of(void *shareable, uint32_t type)
{
    if (type == HANDLE_FILE)
        return vgpu_tag_of((int)(intptr_t)shareable);
    return type == HANDLE_FABRIC && shareable ? vgpu_name_of(shareable, sizeof(struct vgpu_structure), 0) : 0;
}

/* The size is not known before the memory is mapped. Two handles of one block may be the same number. */
int cuMemImportFromShareableHandle(void *handle, void *shareable, uint32_t type)
{
    if (!vgpu_open())
        return CUDA_NOT_PERMITTED;
    uint64_t name = name_of(shareable, type);
    int result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
    if (result != CUDA_OK || !handle)
        return result;
    uint64_t given = *(uint64_t *)handle;
    int d = device_of(given);
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_block *known = block_of(given);
    if (known) {
        known->references++;
        refer(given, known->number);
    } else {
        uint64_t block = name ? vgpu_share_block(vgpu_process.region, name) : 0;
        add(given, (struct vgpu_block){.amount = {.device = d, .part = PART_IMPORTED,
                                                  .share = {.name = name, .block = block}}});
    }
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* The block that is mapped at an address, 0 if none. Caller locks. */
static uint64_t block_at(uint64_t address)
{
    const struct vgpu_table *table = &vgpu_process.mappings;
    for (uint64_t i = 0; i < table->capacity; i++) {
        const struct vgpu_mapping *one = vgpu_table_at(table, i);
        if (one && address >= one->address && address - one->address < one->bytes)
            return one->block;
    }
    return 0;
}

int cuMemRetainAllocationHandle(void *handle, void *address)
{
    int result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    struct vgpu_freed none = {0};
    vgpu_lock(&vgpu_process.lock);
    uint64_t number = block_at((uint64_t)(uintptr_t)address);
    if (number) {
        change(number, 1, 0, &none);
        refer(*(uint64_t *)handle, number);
    }
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* Whether a mapping shows that an imported block is larger than was known; the block as it is known. */
static bool is_wider(uint64_t handle, uint64_t end, struct vgpu_block *block)
{
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_block *known = block_of(handle);
    bool wider = known && !known->is_multicast && known->amount.part == PART_IMPORTED && known->amount.device >= 0
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
    struct vgpu_block *block = block_of(handle);
    if (block) {
        block->amount.bytes = size;
        block->amount.share = *share;
    }
    vgpu_unlock(&vgpu_process.lock);
}

static void remember_mapping(uint64_t address, uint64_t size, uint64_t handle)
{
    struct vgpu_freed none = {0};
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_handle *known = vgpu_table_find(&vgpu_process.handles, handle);
    if (known) {
        uint64_t block = known->block;
        change(block, 0, 1, &none);
        vgpu_table_put(&vgpu_process.mappings, &(struct vgpu_mapping){.address = address, .bytes = size, .block = block});
    }
    vgpu_unlock(&vgpu_process.lock);
}

/* Charges what a mapping shows, one after the other: a second one may show still more. *block: as it was before, if that has
 * changed anything. */
static int widen(uint64_t handle, uint64_t end, struct vgpu_block *block)
{
    vgpu_lock(&vgpu_process.import_lock);
    bool wider = is_wider(handle, end, block);
    const struct vgpu_amount *amount = &block->amount;
    struct vgpu_share share = wider ? amount->share : (struct vgpu_share){0};
    int result = wider ? vgpu_import(amount->device, amount->bytes, end, PART_IMPORTED, &share) : CUDA_OK;
    VGPU_POINT(76);
    if (wider && result == CUDA_OK)
        set_size(handle, end, &share);
    vgpu_unlock(&vgpu_process.import_lock);
    block->number = wider ? block->number : 0;
    return result;
}

/* The mapping has failed: what it has shown is not held, unless another one has shown more meanwhile. */
static void narrow(uint64_t handle, uint64_t end, const struct vgpu_block *block)
{
    const struct vgpu_amount *before = &block->amount;
    vgpu_lock(&vgpu_process.import_lock);
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_block *known = block_of(handle);
    bool same = known && known->number == block->number && known->amount.bytes == end;
    struct vgpu_share share = same ? known->amount.share : (struct vgpu_share){0};
    vgpu_unlock(&vgpu_process.lock);
    if (same) {
        vgpu_unimport(before->device, end, before->bytes, PART_IMPORTED, &share);
        set_size(handle, before->bytes, before->bytes ? &share : &before->share);
    }
    vgpu_unlock(&vgpu_process.import_lock);
}

static int map_wider(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle, uint64_t flags)
{
    struct vgpu_block block;
    uint64_t end = vgpu_add(offset, size);
    int result = widen(handle, end, &block);
    if (result == CUDA_OUT_OF_MEMORY && vgpu_pools_trim(block.amount.device))
        result = widen(handle, end, &block);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result != CUDA_OK && block.number)
        narrow(handle, end, &block);
    return result;
}

int cuMemMap(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle, uint64_t flags)
{
    struct vgpu_block block;
    bool wider = vgpu_is_open() && is_wider(handle, vgpu_add(offset, size), &block);
    int result = wider ? map_wider(address, size, offset, handle, flags)
                       : REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result == CUDA_OK && vgpu_is_open())
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
        change(gone.block, 0, -1, &freed);
        if (gone.address == at) {
            at += gone.bytes < left ? gone.bytes : left;
            left = address + size - at;
        }
    }
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}

/* An object takes no memory by itself. */
int cuMulticastCreate(void *handle, void *properties)
{
    int result = REAL(cuMulticastCreate)(handle, properties);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    vgpu_lock(&vgpu_process.lock);
    add(*(uint64_t *)handle, (struct vgpu_block){.amount = {.device = -1}, .is_multicast = true});
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* The object holds the block from now on. One that was imported is known as an object only now. Caller locks. */
static void bind(uint64_t handle, uint64_t offset, uint64_t number, struct vgpu_freed *freed)
{
    struct vgpu_block *object = block_of(handle), *block = vgpu_table_find(&vgpu_process.blocks, number);
    if (!object || !block)
        return;
    if (!object->is_multicast) {
        vgpu_free(freed, &object->amount);
        object->is_multicast = true;
    }
    block->mappings++;
    vgpu_table_put(&vgpu_process.bindings,
                   &(struct vgpu_binding){.number = ++last_number, .object = object->number, .block = number,
                                          .offset = offset, .device = block->amount.device});
}

/* What is bound is memory by its handle or, if that is 0, by an address where it is mapped. */
static int bound(int result, uint64_t object, uint64_t offset, uint64_t memory, uint64_t address)
{
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    struct vgpu_freed freed = {0};
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_block *block = memory ? block_of(memory) : NULL;
    bind(object, offset, block ? block->number : block_at(address), &freed);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}

int cuMulticastBindMem(uint64_t object, uint64_t offset, uint64_t memory, uint64_t from, uint64_t size, uint64_t flags)
{
    return bound(REAL(cuMulticastBindMem)(object, offset, memory, from, size, flags), object, offset, memory, 0);
}

int cuMulticastBindMem_v2(uint64_t object, uint32_t device, uint64_t offset, uint64_t memory, uint64_t from,
                          uint64_t size, uint64_t flags)
{
    return bound(REAL(cuMulticastBindMem_v2)(object, device, offset, memory, from, size, flags), object, offset, memory,
                 0);
}

int cuMulticastBindAddr(uint64_t object, uint64_t offset, uint64_t address, uint64_t size, uint64_t flags)
{
    return bound(REAL(cuMulticastBindAddr)(object, offset, address, size, flags), object, offset, 0, address);
}

int cuMulticastBindAddr_v2(uint64_t object, uint32_t device, uint64_t offset, uint64_t address, uint64_t size,
                           uint64_t flags)
{
    return bound(REAL(cuMulticastBindAddr_v2)(object, device, offset, address, size, flags), object, offset, 0, address);
}

int cuMulticastUnbind(uint64_t object, uint32_t device, uint64_t offset, uint64_t size)
{
    int result = REAL(cuMulticastUnbind)(object, device, offset, size);
    int d = result == CUDA_OK && vgpu_is_open() ? vgpu_index_of((int)device) : -1;
    if (d < 0)
        return result;
    struct vgpu_freed freed = {0};
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_block *known = block_of(object);
    if (known)
        unbind(known->number, d, offset, size, &freed);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}
