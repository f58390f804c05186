/* Memory that somebody else has allocated: another process, by handles of CUDA, or another interface, such as Vulkan. */
#include "account.h"
#include "blocks.h"
#include "devices.h"
#include "objects.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"
#include "tag.h"

/* Memory of this process at that address, if there is any. Caller locks. */
static void export(uint64_t address, uint64_t name)
{
    struct vgpu_allocation *known = vgpu_table_find(&vgpu_process.memory, address);
    if (known && known->kind != OF_PROCESS)
        vgpu_export(&known->amount, name);
}

int cuIpcGetMemHandle(void *handle, uint64_t address)
{
    int result = REAL(cuIpcGetMemHandle)(handle, address);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    uint64_t base = address;
    if (REAL(cuMemGetAddressRange_v2)(&base, NULL, address) != CUDA_OK)
        base = address;
    uint64_t name = vgpu_name_of(handle, sizeof(struct vgpu_structure), 0);
    vgpu_lock(&vgpu_process.lock);
    export(base, name);
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* Memory of another process that is kept under that key, NULL if there is none. Caller locks. */
static struct vgpu_allocation *opened_at(uint64_t key)
{
    struct vgpu_allocation *known = vgpu_table_find(&vgpu_process.memory, key);
    return known && known->kind == OF_PROCESS ? known : NULL;
}

/* Whether the memory at an address was opened before, and is counted: once more. */
static bool is_opened(uint64_t address)
{
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_allocation *known = opened_at(address);
    if (known)
        known->opened++;
    vgpu_unlock(&vgpu_process.lock);
    return known != NULL;
}

/* Counts what was opened once more, or charges it: of two threads that open the same, one does. */
static int charge(struct vgpu_allocation memory)
{
    struct vgpu_amount *amount = &memory.amount;
    int result = CUDA_OK;
    vgpu_lock(&vgpu_process.import_lock);
    if (!is_opened(memory.address)) {
        VGPU_POINT(77);
        result = vgpu_import(amount->device, 0, amount->bytes, PART_IMPORTED, &amount->share);
        vgpu_lock(&vgpu_process.lock);
        if (result == CUDA_OK)
            vgpu_table_put(&vgpu_process.memory, &memory);
        vgpu_unlock(&vgpu_process.lock);
    }
    vgpu_unlock(&vgpu_process.import_lock);
    return result;
}

/* Charges what was opened by a handle with that name. 0, or 2: the caller closes it again. */
static int opened(uint64_t address, bool pooled, uint64_t name)
{
    uint64_t bytes = 0;
    uint32_t ordinal = 0;
    int current, d;
    if (is_opened(address))
        return CUDA_OK;
    if (REAL(cuMemGetAddressRange_v2)(NULL, &bytes, address) != CUDA_OK
        || REAL(cuPointerGetAttribute)(&ordinal, POINTER_DEVICE_ORDINAL, address) != CUDA_OK
        || (d = vgpu_index_of((int)ordinal)) < 0)
        return CUDA_OK;
    struct vgpu_allocation memory = {.address = address, .kind = OF_PROCESS, .opened = 1,
                                     .amount = {.bytes = vgpu_round(bytes, VGPU_GRANULE), .device = d,
                                                .part = PART_IMPORTED, .share = {.name = name}}};
    if (!pooled)
        vgpu_current(&current, &memory.owner);
    int result = charge(memory);
    if (UNLIKELY(result == CUDA_OUT_OF_MEMORY) && vgpu_pools_trim(d))
        result = charge(memory);
    return result;
}

static int opened_by_handle(int result, const uint64_t *address, const struct vgpu_structure *handle)
{
    if (result != CUDA_OK)
        return result;
    result = opened(*address, false, vgpu_name_of(handle, sizeof *handle, 0));
    if (result != CUDA_OK)
        REAL(cuIpcCloseMemHandle)(*address);
    return result;
}

int cuIpcOpenMemHandle(void *address, struct vgpu_structure handle, uint32_t flags)
{
    if (!vgpu_open())
        return CUDA_NOT_PERMITTED;
    return opened_by_handle(REAL(cuIpcOpenMemHandle)(address, handle, flags), address, &handle);
}

int cuIpcOpenMemHandle_v2(void *address, struct vgpu_structure handle, uint32_t flags)
{
    if (!vgpu_open())
        return CUDA_NOT_PERMITTED;
    return opened_by_handle(REAL(cuIpcOpenMemHandle_v2)(address, handle, flags), address, &handle);
}

/* Opened memory of which every opening is being closed is kept under a key that is no address: as soon as the driver has
 * closed it, another thread may be given the address. What is there already is the same memory, or has been closed.
 * Caller locks. */
static uint64_t closing_key(uint64_t address)
{
    return address + 1;
}

static void move(uint64_t from, uint64_t to, struct vgpu_freed *freed)
{
    struct vgpu_table *table = &vgpu_process.memory;
    struct vgpu_allocation moved, earlier;
    if (!vgpu_table_take(table, from, &moved))
        return;
    if (vgpu_table_take(table, to, &earlier)) {
        moved.opened += earlier.opened;
        moved.closing += earlier.closing;
        vgpu_free(freed, &earlier.amount);
    }
    moved.address = to;
    vgpu_table_put(table, &moved);
}

static bool begin_closing(uint64_t address, struct vgpu_freed *freed)
{
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_allocation *known = opened_at(address);
    if (known && ++known->closing == known->opened)
        move(address, closing_key(address), freed);
    vgpu_unlock(&vgpu_process.lock);
    return known != NULL;
}

static void end_closing(uint64_t address, bool closed, struct vgpu_freed *freed)
{
    struct vgpu_allocation gone;
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_allocation *known = opened_at(closing_key(address));
    known = known ? known : opened_at(address);
    if (known) {
        known->closing--;
        known->opened -= closed;
        if (!known->opened && vgpu_table_take(&vgpu_process.memory, known->address, &gone))
            vgpu_free(freed, &gone.amount);
        else if (!closed && known->address != address)
            move(known->address, address, freed);
    }
    vgpu_unlock(&vgpu_process.lock);
}

int cuIpcCloseMemHandle(uint64_t address)
{
    struct vgpu_freed freed = {0};
    bool counted = vgpu_is_open() && begin_closing(address, &freed);
    int result = REAL(cuIpcCloseMemHandle)(address);
    if (counted)
        end_closing(address, result == CUDA_OK, &freed);
    vgpu_uncharge_all(&freed);
    return result;
}

/* The driver tells pointers of one pool apart; other pools may have the same. */
static uint64_t pointer_name(const void *exported, uint64_t pool)
{
    return pool ? vgpu_name_of(exported, sizeof(struct vgpu_structure), pool) : 0;
}

int cuMemPoolExportPointer(void *exported, uint64_t address)
{
    int result = REAL(cuMemPoolExportPointer)(exported, address);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    vgpu_lock(&vgpu_process.lock);
    const struct vgpu_allocation *known = vgpu_table_find(&vgpu_process.memory, address);
    uint64_t pool = known && known->kind == OF_POOL ? known->owner : 0;
    vgpu_unlock(&vgpu_process.lock);
    uint64_t name = pointer_name(exported, vgpu_pool_name(pool, true));
    vgpu_lock(&vgpu_process.lock);
    export(address, name);
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* It is closed as memory is freed. */
int cuMemPoolImportPointer(void *address, void *pool, void *exported)
{
    if (!vgpu_open())
        return CUDA_NOT_PERMITTED;
    int result = REAL(cuMemPoolImportPointer)(address, pool, exported);
    if (result != CUDA_OK)
        return result;
    uint64_t name = pointer_name(exported, vgpu_pool_name((uint64_t)(uintptr_t)pool, false));
    result = opened(*(uint64_t *)address, true, name);
    if (result != CUDA_OK)
        REAL(cuMemFree_v2)(*(uint64_t *)address);
    return result;
}

struct external {
    uint32_t type;
    uint64_t handle[2], size;
    uint32_t flags;
};

/* What was imported is held by its handle and by what is mapped from it. */
static void remember_external(uint64_t handle, uint64_t context, const struct vgpu_amount *amount)
{
    struct vgpu_object memory = {.handle = handle, .context = context, .amount = {.device = -1}};
    vgpu_lock(&vgpu_process.lock);
    memory.block = vgpu_block_add((struct vgpu_block){.amount = *amount});
    vgpu_table_put(&vgpu_process.objects, &memory);
    vgpu_unlock(&vgpu_process.lock);
}

/* Memory of another interface counts for who imports it: once for all that were passed the same file. The driver keeps the
 * file. */
int cuImportExternalMemory(void *memory, void *description)
{
    const struct external *given = description;
    int d;
    uint64_t context;
    if (!memory || !given || !vgpu_current(&d, &context))
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuImportExternalMemory)(memory, description);
    uint64_t size = vgpu_round(given->size, VGPU_GRANULE);
    struct vgpu_share share = {.name = given->type == EXTERNAL_FILE ? vgpu_tag_of((int)given->handle[0]) : 0};
    int result = vgpu_reserve_import(d, 0, size, PART_DATA, &share);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuImportExternalMemory)(memory, description);
    if (result != CUDA_OK) {
        vgpu_unimport(d, size, 0, PART_DATA, &share);
        return result;
    }
    remember_external(*(uint64_t *)memory, context,
                      &(struct vgpu_amount){.bytes = size, .device = d, .part = PART_DATA, .share = share});
    return result;
}

/* The block of imported memory, with one more reference; 0 if it is not known. Caller locks. */
static uint64_t hold_external(uint64_t memory)
{
    struct vgpu_freed none = {0};
    const struct vgpu_object *known = vgpu_table_find(&vgpu_process.objects, memory);
    uint64_t block = known ? known->block : 0;
    if (block)
        vgpu_block_change(block, 1, 0, &none);
    return block;
}

/* Buffers that overlap may have the same address. It is freed as often as it was given. Caller locks. */
static void remember_buffer(uint64_t address, uint64_t memory, int d, uint64_t context)
{
    struct vgpu_allocation *known = vgpu_table_find(&vgpu_process.memory, address);
    if (known && known->block && known->kind == OF_CONTEXT) {
        known->opened++;
        return;
    }
    struct vgpu_allocation buffer = {.address = address, .owner = context, .kind = OF_CONTEXT, .opened = 1,
                                     .amount = {.device = d, .part = PART_IMPORTED},
                                     .block = hold_external(memory)};
    if (buffer.block)
        vgpu_table_put(&vgpu_process.memory, &buffer);
}

int cuExternalMemoryGetMappedBuffer(void *address, void *memory, void *description)
{
    int d;
    uint64_t context;
    int result = REAL(cuExternalMemoryGetMappedBuffer)(address, memory, description);
    if (result != CUDA_OK || !vgpu_current(&d, &context))
        return result;
    vgpu_lock(&vgpu_process.lock);
    remember_buffer(*(uint64_t *)address, (uint64_t)(uintptr_t)memory, d, context);
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

int cuExternalMemoryGetMappedMipmappedArray(void *place, void *memory, void *description)
{
    int d;
    struct vgpu_object array = {.amount = {.device = -1}};
    int result = REAL(cuExternalMemoryGetMappedMipmappedArray)(place, memory, description);
    if (result != CUDA_OK || !vgpu_current(&d, &array.context))
        return result;
    array.handle = *(uint64_t *)place;
    vgpu_lock(&vgpu_process.lock);
    array.block = hold_external((uint64_t)(uintptr_t)memory);
    vgpu_table_put(&vgpu_process.objects, &array);
    vgpu_unlock(&vgpu_process.lock);
    return result;
}
