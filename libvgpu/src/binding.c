/* What physical memory is bound to: multicast objects, logical endpoints and sparse arrays. They take no memory by themselves,
 * and hold what is bound to them. */
#include "account.h"
#include "blocks.h"
#include "devices.h"
#include "physical.h"
#include "process.h"
#include "resolve.h"

/* Bytes of an object. */
static struct vgpu_box range(uint64_t from, uint64_t size)
{
    return (struct vgpu_box){.from = {from}, .to = {vgpu_add(from, size), UINT64_MAX, UINT64_MAX}};
}

/* Memory is bound by its handle or, if that is 0, by an address where it is. */
struct request {
    enum { MULTICAST_MEM, MULTICAST_MEM_V2, MULTICAST_ADDR, MULTICAST_ADDR_V2, ENDPOINT_MEM, ENDPOINT_ADDR } function;
    uint64_t object;
    uint32_t device;
    uint64_t offset; /* in the object */
    uint64_t memory, from, address, size, flags;
};

static int call(const struct request *asked)
{
    uint32_t endpoint = (uint32_t)asked->object;
    void *address = (void *)(uintptr_t)asked->address;
    switch (asked->function) {
    case MULTICAST_MEM:
        return REAL(cuMulticastBindMem)(asked->object, asked->offset, asked->memory, asked->from, asked->size,
                                        asked->flags);
    case MULTICAST_MEM_V2:
        return REAL(cuMulticastBindMem_v2)(asked->object, asked->device, asked->offset, asked->memory, asked->from,
                                           asked->size, asked->flags);
    case MULTICAST_ADDR:
        return REAL(cuMulticastBindAddr)(asked->object, asked->offset, asked->address, asked->size, asked->flags);
    case MULTICAST_ADDR_V2:
        return REAL(cuMulticastBindAddr_v2)(asked->object, asked->device, asked->offset, asked->address, asked->size,
                                            asked->flags);
    case ENDPOINT_MEM:
        return REAL(cuLogicalEndpointBindMem)(endpoint, asked->device, asked->offset, asked->memory, asked->from,
                                              asked->size, asked->flags);
    default:
        return REAL(cuLogicalEndpointBindAddr)(endpoint, asked->device, asked->offset, address, asked->size,
                                               asked->flags);
    }
}

/* Memory of a pool: a block that the pool counts as long as the allocation is there. Caller locks. */
static uint64_t block_in_pool(uint64_t address)
{
    struct vgpu_table *table = &vgpu_process.memory;
    for (uint64_t i = 0; i < table->capacity; i++) {
        struct vgpu_allocation *one = vgpu_table_at(table, i);
        if (!one || one->kind != OF_POOL || address < one->address || address - one->address >= one->amount.bytes)
            continue;
        if (!one->block)
            one->block = vgpu_block_add((struct vgpu_block){.amount = {.device = one->amount.device,
                                                                       .part = PART_DATA}});
        return one->block;
    }
    return 0;
}

/* The number of the block that is bound, 0 if it is not known. Caller locks. */
static uint64_t block_of(const struct request *asked)
{
    const struct vgpu_block *block = asked->memory ? vgpu_block_of(asked->memory) : NULL;
    if (asked->memory)
        return block ? block->number : 0;
    uint64_t mapped = vgpu_block_at(asked->address);
    return mapped ? mapped : block_in_pool(asked->address);
}

/* -- logical endpoints, whose numbers count from 0: each is known here from its first binding on */

static uint64_t key_of(uint32_t endpoint)
{
    return (uint64_t)endpoint + 1;
}

/* Caller locks. */
static uint64_t object_of_endpoint(uint32_t endpoint)
{
    const struct vgpu_handle *known = vgpu_table_find(&vgpu_process.endpoints, key_of(endpoint));
    if (known)
        return known->block;
    uint64_t block = vgpu_block_add((struct vgpu_block){.amount = {.device = -1}, .is_object = true});
    vgpu_table_put(&vgpu_process.endpoints,
                   &(struct vgpu_handle){.handle = key_of(endpoint), .block = block, .references = 1});
    return block;
}

/* A multicast object that was imported is known as one only when something is bound to it. Caller locks. */
static uint64_t object_of_multicast(uint64_t handle, struct vgpu_freed *freed)
{
    struct vgpu_block *object = vgpu_block_of(handle);
    if (!object)
        return 0;
    if (!object->is_object) {
        vgpu_free(freed, &object->amount);
        object->is_object = true;
    }
    return object->number;
}

static void remember(const struct request *asked)
{
    struct vgpu_freed freed = {0};
    struct vgpu_box box = range(asked->offset, asked->size);
    bool is_endpoint = asked->function == ENDPOINT_MEM || asked->function == ENDPOINT_ADDR;
    vgpu_lock(&vgpu_process.lock);
    uint64_t object = is_endpoint ? object_of_endpoint((uint32_t)asked->object)
                                  : object_of_multicast(asked->object, &freed);
    if (object)
        vgpu_block_bind(object, block_of(asked), 0, &box);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
}

static int bind(const struct request *asked)
{
    struct vgpu_block before;
    uint64_t end = vgpu_add(asked->from, asked->size);
    int result = vgpu_physical_widen(asked->memory, end, &before);
    if (result != CUDA_OK)
        return result;
    result = call(asked);
    if (result != CUDA_OK)
        vgpu_physical_narrow(asked->memory, end, &before);
    else if (vgpu_is_open())
        remember(asked);
    return result;
}

int cuMulticastBindMem(uint64_t object, uint64_t offset, uint64_t memory, uint64_t from, uint64_t size, uint64_t flags)
{
    return bind(&(struct request){.function = MULTICAST_MEM, .object = object, .offset = offset, .memory = memory,
                                  .from = from, .size = size, .flags = flags});
}

int cuMulticastBindMem_v2(uint64_t object, uint32_t device, uint64_t offset, uint64_t memory, uint64_t from,
                          uint64_t size, uint64_t flags)
{
    return bind(&(struct request){.function = MULTICAST_MEM_V2, .object = object, .device = device, .offset = offset,
                                  .memory = memory, .from = from, .size = size, .flags = flags});
}

int cuMulticastBindAddr(uint64_t object, uint64_t offset, uint64_t address, uint64_t size, uint64_t flags)
{
    return bind(&(struct request){.function = MULTICAST_ADDR, .object = object, .offset = offset, .address = address,
                                  .size = size, .flags = flags});
}

int cuMulticastBindAddr_v2(uint64_t object, uint32_t device, uint64_t offset, uint64_t address, uint64_t size,
                           uint64_t flags)
{
    return bind(&(struct request){.function = MULTICAST_ADDR_V2, .object = object, .device = device, .offset = offset,
                                  .address = address, .size = size, .flags = flags});
}

int cuLogicalEndpointBindMem(uint32_t endpoint, uint32_t device, uint64_t offset, uint64_t memory, uint64_t from,
                             uint64_t size, uint64_t flags)
{
    return bind(&(struct request){.function = ENDPOINT_MEM, .object = endpoint, .device = device, .offset = offset,
                                  .memory = memory, .from = from, .size = size, .flags = flags});
}

int cuLogicalEndpointBindAddr(uint32_t endpoint, uint32_t device, uint64_t offset, void *address, uint64_t size,
                              uint64_t flags)
{
    return bind(&(struct request){.function = ENDPOINT_ADDR, .object = endpoint, .device = device, .offset = offset,
                                  .address = (uint64_t)(uintptr_t)address, .size = size, .flags = flags});
}

/* -- and no longer */

int cuMulticastCreate(void *handle, void *properties)
{
    int result = REAL(cuMulticastCreate)(handle, properties);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    vgpu_lock(&vgpu_process.lock);
    vgpu_handle_add(*(uint64_t *)handle, (struct vgpu_block){.amount = {.device = -1}, .is_object = true});
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* Returns the driver's result. */
static int unbound(int result, uint64_t object, bool is_endpoint, uint32_t device, uint64_t offset, uint64_t size)
{
    int d = result == CUDA_OK && vgpu_is_open() ? vgpu_index_of((int)device) : -1;
    if (d < 0)
        return result;
    struct vgpu_freed freed = {0};
    const struct vgpu_table *known_by = is_endpoint ? &vgpu_process.endpoints : &vgpu_process.handles;
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_handle *known = vgpu_table_find(known_by, is_endpoint ? key_of((uint32_t)object) : object);
    if (known)
        vgpu_block_unbind(known->block, d, offset, size, &freed);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}

int cuMulticastUnbind(uint64_t object, uint32_t device, uint64_t offset, uint64_t size)
{
    return unbound(REAL(cuMulticastUnbind)(object, device, offset, size), object, false, device, offset, size);
}

int cuLogicalEndpointUnbind(uint32_t endpoint, uint32_t device, uint64_t offset, uint64_t size)
{
    return unbound(REAL(cuLogicalEndpointUnbind)(endpoint, device, offset, size), endpoint, true, device, offset, size);
}

/* Taken from the table before the driver is asked: another thread may be given the number as soon as it answers. */
int cuLogicalEndpointDestroy(uint32_t endpoint)
{
    struct vgpu_freed freed = {0};
    struct vgpu_handle gone = {0};
    if (vgpu_is_open()) {
        vgpu_lock(&vgpu_process.lock);
        vgpu_table_take(&vgpu_process.endpoints, key_of(endpoint), &gone);
        vgpu_unlock(&vgpu_process.lock);
    }
    int result = REAL(cuLogicalEndpointDestroy)(endpoint);
    if (!gone.block)
        return result;
    vgpu_lock(&vgpu_process.lock);
    if (result == CUDA_OK)
        vgpu_block_leave(gone.block, &freed);
    else
        vgpu_table_put(&vgpu_process.endpoints, &gone);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}

/* -- sparse arrays */

struct array_mapping { /* CUarrayMapInfo */
    uint32_t resource;
    uint64_t array;
    uint32_t part;
    union {
        struct {
            uint32_t level, layer, offset[3], extent[3];
        } level;
        struct {
            uint32_t layer;
            uint64_t offset, size;
        } tail;
    };
    uint32_t operation, handle_type;
    uint64_t memory, offset;
    uint32_t devices, flags, reserved[2];
};

_Static_assert(offsetof(struct array_mapping, operation) == 56 && sizeof(struct array_mapping) == 96, "CUarrayMapInfo");

enum { PART_TAIL = 1, OPERATION_MAP = 1 };

/* The array, by the number of its block, which it gets with its first mapping. Caller locks. */
static uint64_t object_of_array(uint64_t handle, bool *whole)
{
    uint64_t key = handle ? handle : 1; /* no table has an entry with key 0 */
    struct vgpu_object fresh = {.handle = key, .amount = {.device = -1}};
    const struct vgpu_object *known = vgpu_table_find(&vgpu_process.objects, key);
    struct vgpu_object array = known ? *known : fresh;
    if (!array.block) {
        array.block = vgpu_block_add((struct vgpu_block){.amount = {.device = -1}, .is_object = true});
        vgpu_table_put(&vgpu_process.objects, &array);
    }
    *whole = array.is_whole;
    return array.block;
}

/* Where a mapping is. Levels that are too small for a tile share a tail, which is a plane of its own. */
static uint64_t plane_of(const struct array_mapping *mapping, bool whole, struct vgpu_box *box)
{
    *box = range(0, UINT64_MAX);
    if (whole)
        return 0;
    if (mapping->part == PART_TAIL) {
        *box = range(mapping->tail.offset, mapping->tail.size);
        return (uint64_t)UINT32_MAX << 32 | mapping->tail.layer;
    }
    for (int axis = 0; axis < 3; axis++) {
        box->from[axis] = mapping->level.offset[axis];
        box->to[axis] = (uint64_t)mapping->level.offset[axis] + mapping->level.extent[axis];
    }
    return (uint64_t)mapping->level.level << 32 | mapping->level.layer;
}

/* The card does it in the order of the stream. cuda.h does not say that a mapping ends an earlier one of the same part: that is
 * held until it is unmapped. Caller locks. */
static void apply(const struct array_mapping *mapping, struct vgpu_freed *freed)
{
    bool whole;
    struct vgpu_box box;
    uint64_t array = object_of_array(mapping->array, &whole), plane = plane_of(mapping, whole, &box);
    const struct vgpu_block *block = vgpu_block_of(mapping->memory);
    if (mapping->operation != OPERATION_MAP)
        vgpu_block_cut(array, plane, &box, freed);
    else if (block)
        vgpu_block_bind(array, block->number, plane, &box);
}

static int mapped(int result, const struct array_mapping *list, uint32_t count)
{
    if (result != CUDA_OK || !list || !vgpu_is_open())
        return result;
    struct vgpu_freed freed = {0};
    vgpu_lock(&vgpu_process.lock);
    for (uint32_t i = 0; i < count; i++)
        apply(&list[i], &freed);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}

int cuMemMapArrayAsync(void *list, uint32_t count, void *stream)
{
    return mapped(REAL(cuMemMapArrayAsync)(list, count, stream), list, count);
}

int cuMemMapArrayAsync_ptsz(void *list, uint32_t count, void *stream)
{
    return mapped(REAL(cuMemMapArrayAsync_ptsz)(list, count, stream), list, count);
}
