/* Memory that somebody else has allocated: another process, by handles of CUDA, or another interface, such as Vulkan. */
#include "account.h"
#include "devices.h"
#include "measure.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"

enum { GRANULE = 512 };

int cuIpcGetMemHandle(void *handle, uint64_t address)
{
    int result = REAL(cuIpcGetMemHandle)(handle, address);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    uint64_t base = address;
    if (REAL(cuMemGetAddressRange_v2)(&base, NULL, address) != CUDA_OK)
        base = address;
    vgpu_lock(&vgpu_process.lock);
    vgpu_export(vgpu_table_find(&vgpu_process.memory, base));
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* Whether the memory at an address was opened before; that is counted. */
static bool is_opened(uint64_t address)
{
    vgpu_lock(&vgpu_process.lock);
    struct vgpu_entry *known = vgpu_table_find(&vgpu_process.memory, address);
    bool opened = known && known->kind == KIND_OPENED;
    if (opened)
        known->second++;
    vgpu_unlock(&vgpu_process.lock);
    return opened;
}

/* Charges what was opened. 0, or 2: the caller closes it again. */
static int opened(uint64_t address, bool pooled)
{
    uint64_t size = 0, context = 0;
    uint32_t ordinal = 0;
    int current;
    if (is_opened(address) || REAL(cuMemGetAddressRange_v2)(NULL, &size, address) != CUDA_OK
        || REAL(cuPointerGetAttribute)(&ordinal, POINTER_DEVICE_ORDINAL, address) != CUDA_OK)
        return CUDA_OK;
    int d = vgpu_index_of((int)ordinal);
    if (d < 0)
        return CUDA_OK;
    size = vgpu_round(size, GRANULE);
    int result = vgpu_reserve(d, size, PART_IMPORTED);
    if (result != CUDA_OK)
        return result;
    if (!pooled)
        vgpu_current(&current, &context);
    vgpu_lock(&vgpu_process.lock);
    vgpu_table_put(&vgpu_process.memory, &(struct vgpu_entry){.key = address, .size = size, .owner = context, .second = 1,
                                                              .device = d, .kind = KIND_OPENED, .part = PART_IMPORTED});
    vgpu_unlock(&vgpu_process.lock);
    return CUDA_OK;
}

#define OPEN(name)                                                             \
    if (!vgpu_open())                                                          \
        return CUDA_NOT_PERMITTED;                                             \
    int result = REAL(name)(address, handle, flags);                           \
    if (result == CUDA_OK && (result = opened(*(uint64_t *)address, false)) != CUDA_OK) \
        REAL(cuIpcCloseMemHandle)(*(uint64_t *)address);                       \
    return result

int cuIpcOpenMemHandle(void *address, struct vgpu_structure handle, uint32_t flags)
{
    OPEN(cuIpcOpenMemHandle);
}

int cuIpcOpenMemHandle_v2(void *address, struct vgpu_structure handle, uint32_t flags)
{
    OPEN(cuIpcOpenMemHandle_v2);
}

int cuIpcCloseMemHandle(uint64_t address)
{
    struct vgpu_freed freed = {0};
    struct vgpu_entry entry = {0};
    if (vgpu_is_open()) {
        vgpu_lock(&vgpu_process.lock);
        struct vgpu_entry *known = vgpu_table_find(&vgpu_process.memory, address);
        if (known && known->kind == KIND_OPENED)
            vgpu_table_take(&vgpu_process.memory, address, &entry);
        vgpu_unlock(&vgpu_process.lock);
    }
    int result = REAL(cuIpcCloseMemHandle)(address);
    if (!entry.key)
        return result;
    if (result == CUDA_OK && --entry.second == 0)
        vgpu_free_entry(&freed, &entry);
    vgpu_lock(&vgpu_process.lock);
    if (entry.second)
        vgpu_table_put(&vgpu_process.memory, &entry);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
    return result;
}

int cuMemPoolExportPointer(void *exported, uint64_t address)
{
    int result = REAL(cuMemPoolExportPointer)(exported, address);
    if (result != CUDA_OK || !vgpu_is_open())
        return result;
    vgpu_lock(&vgpu_process.lock);
    vgpu_export(vgpu_table_find(&vgpu_process.memory, address));
    vgpu_unlock(&vgpu_process.lock);
    return result;
}

/* It is closed as memory is freed. */
int cuMemPoolImportPointer(void *address, void *pool, void *exported)
{
    if (!vgpu_open())
        return CUDA_NOT_PERMITTED;
    int result = REAL(cuMemPoolImportPointer)(address, pool, exported);
    if (result == CUDA_OK && (result = opened(*(uint64_t *)address, true)) != CUDA_OK)
        REAL(cuMemFree_v2)(*(uint64_t *)address);
    return result;
}

struct external {
    uint32_t type;
    uint64_t handle[2], size;
    uint32_t flags;
};

/* Nobody else is charged for memory of another interface: who imports it is. */
int cuImportExternalMemory(void *memory, void *description)
{
    const struct external *given = description;
    int d;
    uint64_t context;
    if (!memory || !given || !vgpu_current(&d, &context))
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuImportExternalMemory)(memory, description);
    uint64_t size = vgpu_round(given->size, GRANULE);
    int result = vgpu_reserve(d, size, PART_DATA);
    if (result != CUDA_OK)
        return result;
    result = REAL(cuImportExternalMemory)(memory, description);
    if (result == CUDA_OK)
        vgpu_object_put(*(void **)memory, d, size, context, KIND_OBJECT, PART_DATA);
    else
        vgpu_uncharge(d, size, PART_DATA);
    return result;
}
