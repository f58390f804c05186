#include "table.h"

#include <sys/mman.h>

enum { FIRST_CAPACITY = 256 };

static uint64_t place(const struct vgpu_table *table, uint64_t key)
{
    return (key * 0x9e3779b97f4a7c15u >> 20) & (table->capacity - 1);
}

static void insert(struct vgpu_table *table, const struct vgpu_entry *entry)
{
    uint64_t at = place(table, entry->key);
    while (table->entry[at].key && table->entry[at].key != entry->key)
        at = (at + 1) & (table->capacity - 1);
    table->count += !table->entry[at].key;
    table->entry[at] = *entry;
}

/* Memory comes from the kernel: the program's own allocator may be what called us. */
static bool grow(struct vgpu_table *table)
{
    struct vgpu_table larger = {.capacity = table->capacity ? table->capacity * 2 : FIRST_CAPACITY};
    larger.entry = mmap(NULL, larger.capacity * sizeof *larger.entry, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (larger.entry == MAP_FAILED)
        return false;
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->entry[i].key)
            insert(&larger, &table->entry[i]);
    vgpu_table_clear(table);
    *table = larger;
    return true;
}

bool vgpu_table_put(struct vgpu_table *table, const struct vgpu_entry *entry)
{
    if (table->count * 2 >= table->capacity && !grow(table))
        return false;
    insert(table, entry);
    return true;
}

struct vgpu_entry *vgpu_table_find(struct vgpu_table *table, uint64_t key)
{
    if (!key || !table->capacity)
        return NULL;
    for (uint64_t at = place(table, key); table->entry[at].key; at = (at + 1) & (table->capacity - 1))
        if (table->entry[at].key == key)
            return &table->entry[at];
    return NULL;
}

bool vgpu_table_take(struct vgpu_table *table, uint64_t key, struct vgpu_entry *taken)
{
    struct vgpu_entry *found = vgpu_table_find(table, key);
    if (!found)
        return false;
    *taken = *found;
    /* Entries behind the gap move up, so that none is cut off from its place. */
    uint64_t mask = table->capacity - 1, gap = (uint64_t)(found - table->entry);
    for (uint64_t at = (gap + 1) & mask; table->entry[at].key; at = (at + 1) & mask) {
        uint64_t home = place(table, table->entry[at].key);
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            table->entry[gap] = table->entry[at];
            gap = at;
        }
    }
    table->entry[gap].key = 0;
    table->count--;
    return true;
}

void vgpu_table_clear(struct vgpu_table *table)
{
    if (table->entry)
        munmap(table->entry, table->capacity * sizeof *table->entry);
    *table = (struct vgpu_table){0};
}
