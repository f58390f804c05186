#include "blocks.h"

#include "account.h"
#include "process.h"

enum { AXES = 3 };

static uint64_t last_number; /* of blocks and bindings */

static struct vgpu_block *block_by(uint64_t number)
{
    return vgpu_table_find(&vgpu_process.blocks, number);
}

uint64_t vgpu_block_add(struct vgpu_block block)
{
    block.number = ++last_number;
    block.references = 1;
    vgpu_table_put(&vgpu_process.blocks, &block);
    return block.number;
}

void vgpu_block_change(uint64_t number, int references, int mappings, struct vgpu_freed *freed)
{
    struct vgpu_block *block = block_by(number), gone;
    if (!block)
        return;
    block->references += references;
    block->mappings += mappings;
    if (block->references || block->mappings)
        return;
    vgpu_table_take(&vgpu_process.blocks, number, &gone);
    if (gone.is_object)
        vgpu_block_unbind(number, -1, 0, UINT64_MAX, freed);
    else
        vgpu_free(freed, &gone.amount);
}

void vgpu_block_leave(uint64_t number, struct vgpu_freed *freed)
{
    if (number)
        vgpu_block_change(number, -1, 0, freed);
}

void vgpu_handle_refer(uint64_t handle, uint64_t block)
{
    struct vgpu_handle *known = vgpu_table_find(&vgpu_process.handles, handle);
    if (known && known->block == block)
        known->references++;
    else
        vgpu_table_put(&vgpu_process.handles, &(struct vgpu_handle){.handle = handle, .block = block, .references = 1});
}

uint64_t vgpu_handle_unrefer(uint64_t handle)
{
    struct vgpu_handle *known = vgpu_table_find(&vgpu_process.handles, handle), gone;
    if (!known)
        return 0;
    uint64_t block = known->block;
    if (--known->references == 0)
        vgpu_table_take(&vgpu_process.handles, handle, &gone);
    return block;
}

void vgpu_handle_add(uint64_t handle, struct vgpu_block block)
{
    vgpu_handle_refer(handle, vgpu_block_add(block));
}

struct vgpu_block *vgpu_block_of(uint64_t handle)
{
    const struct vgpu_handle *known = vgpu_table_find(&vgpu_process.handles, handle);
    return known ? block_by(known->block) : NULL;
}

uint64_t vgpu_block_at(uint64_t address)
{
    const struct vgpu_table *table = &vgpu_process.mappings;
    for (uint64_t i = 0; i < table->capacity; i++) {
        const struct vgpu_mapping *one = vgpu_table_at(table, i);
        if (one && address >= one->address && address - one->address < one->bytes)
            return one->block;
    }
    return 0;
}

/* -- what objects hold */

static void put(struct vgpu_binding binding)
{
    binding.number = ++last_number;
    vgpu_table_put(&vgpu_process.bindings, &binding);
}

void vgpu_block_bind(uint64_t object, uint64_t number, uint64_t plane, const struct vgpu_box *box)
{
    struct vgpu_block *block = block_by(number);
    if (!block)
        return;
    block->mappings++;
    put((struct vgpu_binding){.object = object, .block = number, .device = block->amount.device, .plane = plane,
                              .box = *box});
}

void vgpu_block_unbind(uint64_t object, int device, uint64_t from, uint64_t size, struct vgpu_freed *freed)
{
    struct vgpu_table *table = &vgpu_process.bindings;
    struct vgpu_binding gone;
    for (uint64_t i = 0; i < table->capacity;) {
        const struct vgpu_binding *one = vgpu_table_at(table, i);
        bool meant = one && one->object == object && (device < 0 || one->device == device);
        if (!meant || one->box.from[0] < from || one->box.from[0] - from >= size) {
            i++;
            continue;
        }
        vgpu_table_take(table, one->number, &gone); /* the next one may have moved to this place */
        vgpu_block_change(gone.block, 0, -1, freed);
    }
}

static bool overlaps(const struct vgpu_box *one, const struct vgpu_box *other)
{
    bool both = true;
    for (int axis = 0; axis < AXES; axis++)
        both = both && one->from[axis] < other->to[axis] && other->from[axis] < one->to[axis];
    return both;
}

/* A binding that overlaps the box; it is taken from the table. */
static bool take_overlapping(uint64_t object, uint64_t plane, const struct vgpu_box *box, struct vgpu_binding *taken)
{
    struct vgpu_table *table = &vgpu_process.bindings;
    for (uint64_t i = 0; i < table->capacity; i++) {
        const struct vgpu_binding *one = vgpu_table_at(table, i);
        if (one && one->object == object && one->plane == plane && overlaps(&one->box, box))
            return vgpu_table_take(table, one->number, taken);
    }
    return false;
}

/* Binds what is left of a binding below or above the box on one axis. */
static void keep_beside(const struct vgpu_binding *cut, int axis, uint64_t from, uint64_t to)
{
    struct vgpu_binding rest = *cut;
    rest.box.from[axis] = from;
    rest.box.to[axis] = to;
    if (from >= to)
        return;
    block_by(cut->block)->mappings++;
    put(rest);
}

void vgpu_block_cut(uint64_t object, uint64_t plane, const struct vgpu_box *box, struct vgpu_freed *freed)
{
    struct vgpu_binding cut;
    while (take_overlapping(object, plane, box, &cut)) {
        uint64_t block = cut.block;
        for (int axis = 0; axis < AXES; axis++) {
            keep_beside(&cut, axis, cut.box.from[axis], box->from[axis]);
            keep_beside(&cut, axis, box->to[axis], cut.box.to[axis]);
            if (cut.box.from[axis] < box->from[axis])
                cut.box.from[axis] = box->from[axis];
            if (cut.box.to[axis] > box->to[axis])
                cut.box.to[axis] = box->to[axis];
        }
        vgpu_block_change(block, 0, -1, freed);
    }
}
