#include "measure.h"

#include "account.h"
#include "devices.h"
#include "process.h"
#include "resolve.h"

enum { MODULE_MOST_MIB = 1024 };

static bool device_free(uint64_t *bytes)
{
    uint64_t total;
    return REAL(cuMemGetInfo_v2)(bytes, &total) == 0;
}

void vgpu_measure_begin(struct vgpu_measure *measure)
{
    measure->index = -1;
    int index;
    if (!vgpu_current(&index, &measure->context) || !vgpu_attach() || !device_free(&measure->free))
        return;
    measure->counted = vgpu_usage(index);
    measure->index = index;
}

uint64_t vgpu_measure_taken(const struct vgpu_measure *measure, uint64_t most)
{
    uint64_t now;
    if (measure->index < 0 || !device_free(&now))
        return 0;
    int64_t charged = (int64_t)(vgpu_usage(measure->index) - measure->counted);
    int64_t taken = (int64_t)(measure->free - now) - charged;
    return taken <= 0 ? 0 : (uint64_t)taken > most ? most : (uint64_t)taken;
}

void vgpu_object_keep(const struct vgpu_entry *entry)
{
    if (!entry->key)
        return;
    vgpu_lock(&vgpu_process.lock);
    vgpu_table_put(&vgpu_process.objects, entry);
    vgpu_unlock(&vgpu_process.lock);
}

void vgpu_object_put(void *handle, int index, uint64_t bytes, uint64_t owner, enum vgpu_kind kind, enum vgpu_part part)
{
    vgpu_object_keep(&(struct vgpu_entry){.key = (uint64_t)(uintptr_t)handle, .size = bytes, .owner = owner,
                                          .device = index, .kind = (uint8_t)kind, .part = (uint8_t)part});
}

int vgpu_measure_module(const struct vgpu_measure *measure, void *handle)
{
    uint64_t bytes = vgpu_measure_taken(measure, (uint64_t)MODULE_MOST_MIB << 20);
    if (!bytes)
        return CUDA_OK;
    int result = vgpu_charge(measure->index, bytes, PART_MODULE);
    if (result == CUDA_OK)
        vgpu_object_put(handle, measure->index, bytes, measure->context, KIND_OBJECT, PART_MODULE);
    return result;
}

bool vgpu_object_take(void *handle, struct vgpu_entry *entry)
{
    if (!vgpu_is_open())
        return false;
    vgpu_lock(&vgpu_process.lock);
    bool known = vgpu_table_take(&vgpu_process.objects, (uint64_t)(uintptr_t)handle, entry);
    vgpu_unlock(&vgpu_process.lock);
    return known;
}

void vgpu_object_end(bool known, const struct vgpu_entry *entry, int result)
{
    if (!known)
        return;
    struct vgpu_freed freed = {0};
    vgpu_lock(&vgpu_process.lock);
    if (result == CUDA_OK)
        vgpu_free_entry(&freed, entry);
    else
        vgpu_table_put(&vgpu_process.objects, entry);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
}

/* Takes one entry that belongs to the context. Entries are few when a context goes, or the process ends with it. */
static bool take_owned(struct vgpu_table *table, uint64_t context, struct vgpu_entry *taken)
{
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->entry[i].key && table->entry[i].owner == context && table->entry[i].kind != KIND_POOLED)
            return vgpu_table_take(table, table->entry[i].key, taken);
    return false;
}

void vgpu_context_gone(uint64_t context)
{
    struct vgpu_process *process = &vgpu_process;
    struct vgpu_freed freed = {0};
    struct vgpu_entry entry;
    if (!context || !vgpu_is_open())
        return;
    vgpu_lock(&process->lock);
    while (take_owned(&process->memory, context, &entry) || take_owned(&process->objects, context, &entry))
        vgpu_free_entry(&freed, &entry);
    vgpu_unlock(&process->lock);
    vgpu_uncharge_all(&freed);
}
