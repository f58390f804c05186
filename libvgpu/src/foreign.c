/* Memory that somebody else has allocated: another process, by handles of CUDA, or another interface, such as Vulkan. */
#include "account.h"
#include "devices.h"
#include "objects.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"
#include "tag.h"

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
    vgpu_export(vgpu_table_find(&vgpu_process.memory, base), name);
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* Whether the memory at an address was opened before, and is counted: so many times more. */
static bool is_opened(uint64_t address, uint64_t more)
{
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_entry *known = vgpu_table_find(&vgpu_process.memory, address);
    bool opened = known && known->kind == KIND_OPENED;
    if (opened)
        known->second += more;
    vgpu_unlock(&vgpu_process.lock);
    return opened;
}

/* Counts what was opened once more, or charges it: of two threads that open the same, one does. */
static int charge(const struct vgpu_entry *memory)
{
    struct vgpu_entry entry = *memory;
    int result = CUDA_OK;
    vgpu_lock(&vgpu_process.import_lock);
    if (!is_opened(entry.key, entry.second)) {
        VGPU_POINT(77);
        result = vgpu_import(entry.device, 0, entry.size, PART_IMPORTED, &entry.share);
        vgpu_lock(&vgpu_process.lock);
        if (result == CUDA_OK)
            vgpu_table_put(&vgpu_process.memory, &entry);
        vgpu_unlock(&vgpu_process.lock);
    }
    vgpu_unlock(&vgpu_process.import_lock);
    return result;
}

/* Charges what was opened by a handle with that name. 0, or 2: the caller closes it again. */
static int opened(uint64_t address, bool pooled, uint64_t name)
{
    struct vgpu_entry entry = {.key = address, .second = 1, .kind = KIND_OPENED, .part = PART_IMPORTED,
                               .share = {.name = name}};
    uint32_t ordinal = 0;
    int current;
    if (is_opened(address, 1))
        return CUDA_OK;
    if (REAL(cuMemGetAddressRange_v2)(NULL, &entry.size, address) != CUDA_OK
        || REAL(cuPointerGetAttribute)(&ordinal, POINTER_DEVICE_ORDINAL, address) != CUDA_OK
        || (entry.device = vgpu_index_of((int)ordinal)) < 0)
        return CUDA_OK;
    entry.size = vgpu_round(entry.size, VGPU_GRANULE);
    if (!pooled)
        vgpu_current(&current, &entry.owner);
    int result = charge(&entry);
    if (UNLIKELY(result == CUDA_OUT_OF_MEMORY) && vgpu_pools_trim(entry.device))
        result = charge(&entry);
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
    struct vgpu_entry entry, earlier;
    if (!vgpu_table_take(table, from, &entry))
        return;
    if (vgpu_table_take(table, to, &earlier)) {
        entry.second += earlier.second;
        entry.closing += earlier.closing;
        vgpu_free_entry(freed, &earlier);
    }
    entry.key = to;
    vgpu_table_put(table, &entry);
}

static struct vgpu_entry *opened_at(uint64_t key)
{
    struct vgpu_entry *known = vgpu_table_find(&vgpu_process.memory, key);
    return known && known->kind == KIND_OPENED ? known : NULL;
}

static bool begin_closing(uint64_t address, struct vgpu_freed *freed)
{
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_entry *known = opened_at(address);
    if (known && ++known->closing == known->second)
        move(address, closing_key(address), freed);
    vgpu_unlock(&vgpu_process.lock);
    return known != NULL;
}

static void end_closing(uint64_t address, bool closed, struct vgpu_freed *freed)
{
    struct vgpu_entry gone;
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_entry *known = opened_at(closing_key(address));
    known = known ? known : opened_at(address);
    if (known) {
        known->closing--;
        known->second -= closed;
        if (!known->second && vgpu_table_take(&vgpu_process.memory, known->key, &gone))
            vgpu_free_entry(freed, &gone);
        else if (!closed && known->key != address)
            move(known->key, address, freed);
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
    struct vgpu_entry *known = vgpu_table_find(&vgpu_process.memory, address);
    uint64_t pool = known && known->kind == KIND_POOLED ? known->owner : 0;
    vgpu_unlock(&vgpu_process.lock);
    uint64_t name = pointer_name(exported, vgpu_pool_name(pool, true));
    vgpu_lock(&vgpu_process.lock);
    vgpu_export(vgpu_table_find(&vgpu_process.memory, address), name);
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
    vgpu_object_keep(&(struct vgpu_entry){.key = *(uint64_t *)memory, .size = size, .owner = context, .device = d,
                                          .kind = KIND_OBJECT, .part = PART_DATA, .share = share});
    return result;
}
