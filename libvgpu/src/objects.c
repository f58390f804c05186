#include "objects.h"

#include "account.h"
#include "process.h"

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

static bool goes_with(const struct vgpu_entry *entry, uint64_t context)
{
    return entry->owner == context && entry->kind != KIND_POOLED;
}

/* Takes all that belongs to the context. Where one is taken, the next one may have moved to its place. */
static void take_owned(struct vgpu_table *table, uint64_t context, struct vgpu_freed *freed)
{
    struct vgpu_entry gone;
    for (uint64_t i = 0; i < table->capacity;)
        if (table->entry[i].key && goes_with(&table->entry[i], context)
            && vgpu_table_take(table, table->entry[i].key, &gone))
            vgpu_free_entry(freed, &gone);
        else
            i++;
}

void vgpu_context_gone(uint64_t context)
{
    struct vgpu_process *process = &vgpu_process;
    struct vgpu_freed freed = {0};
    if (!context || !vgpu_is_open())
        return;
    vgpu_lock(&process->lock);
    take_owned(&process->memory, context, &freed);
    take_owned(&process->objects, context, &freed);
    vgpu_unlock(&process->lock);
    vgpu_uncharge_all(&freed);
}
