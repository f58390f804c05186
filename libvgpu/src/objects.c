#include "objects.h"

#include "account.h"
#include "blocks.h"
#include "process.h"

void vgpu_object_keep(const struct vgpu_object *object)
{
    if (!object->handle)
        return;
    vgpu_lock(&vgpu_process.lock);
    vgpu_table_put(&vgpu_process.objects, object);
    vgpu_unlock(&vgpu_process.lock);
}

void vgpu_object_put(void *handle, int index, uint64_t bytes, uint64_t context, enum vgpu_part part)
{
    vgpu_object_keep(&(struct vgpu_object){.handle = (uint64_t)(uintptr_t)handle, .context = context,
                                           .amount = {.bytes = bytes, .device = index, .part = (uint8_t)part}});
}

bool vgpu_object_take(void *handle, struct vgpu_object *object)
{
    if (!vgpu_is_open())
        return false;
    vgpu_lock(&vgpu_process.lock);
    bool known = vgpu_table_take(&vgpu_process.objects, (uint64_t)(uintptr_t)handle, object);
    vgpu_unlock(&vgpu_process.lock);
    return known;
}

/* Caller locks. */
static void let_go(const struct vgpu_object *object, struct vgpu_freed *freed)
{
    vgpu_free(freed, &object->amount);
    vgpu_block_leave(object->block, freed);
}

void vgpu_object_end(bool known, const struct vgpu_object *object, int result)
{
    if (!known)
        return;
    struct vgpu_freed freed = {0};
    vgpu_lock(&vgpu_process.lock);
    if (result == CUDA_OK)
        let_go(object, &freed);
    else
        vgpu_table_put(&vgpu_process.objects, object);
    vgpu_unlock(&vgpu_process.lock);
    vgpu_uncharge_all(&freed);
}

/* Take all that belongs to the context. Where one is taken, the next one may have moved to its place. */
static void take_memory(struct vgpu_table *table, uint64_t context, struct vgpu_freed *freed)
{
    struct vgpu_allocation gone;
    for (uint64_t i = 0; i < table->capacity;) {
        const struct vgpu_allocation *one = vgpu_table_at(table, i);
        if (!one || one->owner != context || one->kind == OF_POOL) {
            i++;
        } else if (vgpu_table_take(table, one->address, &gone)) {
            vgpu_free(freed, &gone.amount);
            vgpu_block_leave(gone.block, freed);
        }
    }
}

static void take_objects(struct vgpu_table *table, uint64_t context, struct vgpu_freed *freed)
{
    struct vgpu_object gone;
    for (uint64_t i = 0; i < table->capacity;) {
        const struct vgpu_object *one = vgpu_table_at(table, i);
        if (!one || one->context != context) {
            i++;
        } else if (vgpu_table_take(table, one->handle, &gone)) {
            let_go(&gone, freed);
        }
    }
}

void vgpu_context_take(uint64_t context, struct vgpu_freed *freed)
{
    take_memory(&vgpu_process.memory, context, freed);
    take_objects(&vgpu_process.objects, context, freed);
}

void vgpu_context_gone(uint64_t context)
{
    struct vgpu_process *process = &vgpu_process;
    struct vgpu_freed freed = {0};
    if (!context || !vgpu_is_open())
        return;
    vgpu_lock(&process->lock);
    vgpu_context_take(context, &freed);
    vgpu_unlock(&process->lock);
    vgpu_uncharge_all(&freed);
}
