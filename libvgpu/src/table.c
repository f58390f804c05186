#include "table.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_CAPACITY = 256 };

static uint64_t home_of(const struct vgpu_table *table, uint64_t key)
{
    return (key * 0x9e3779b97f4a7c15u >> 20) & (table->capacity - 1);
}

static void *entry_at(const struct vgpu_table *table, uint64_t place)
{
    return table->entries + place * table->bytes;
}

static uint64_t *key_at(const struct vgpu_table *table, uint64_t place)
{
    return entry_at(table, place);
}

static void insert(struct vgpu_table *table, const void *entry)
{
    uint64_t key = *(const uint64_t *)entry, at = home_of(table, key);
    while (*key_at(table, at) && *key_at(table, at) != key)
        at = (at + 1) & (table->capacity - 1);
    table->count += !*key_at(table, at);
    memcpy(entry_at(table, at), entry, table->bytes);
}

/* Memory comes from the kernel: the program's own allocator may be what called us. */
static bool grow(struct vgpu_table *table, size_t bytes)
{
    struct vgpu_table larger = {.capacity = table->capacity ? table->capacity * 2 : FIRST_CAPACITY, .bytes = bytes};
    void *entries = mmap(NULL, larger.capacity * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (entries == MAP_FAILED)
        return false;
    larger.entries = entries;
    for (uint64_t i = 0; i < table->capacity; i++)
        if (*key_at(table, i))
            insert(&larger, entry_at(table, i));
    vgpu_table_clear(table);
    *table = larger;
    return true;
}

bool vgpu_table_put_bytes(struct vgpu_table *table, const void *entry, size_t bytes)
{
    if (table->count * 2 >= table->capacity && !grow(table, bytes))
        return false;
    insert(table, entry);
    return true;
}

void *vgpu_table_find(const struct vgpu_table *table, uint64_t key)
{
    if (!key || !table->capacity)
        return NULL;
    for (uint64_t at = home_of(table, key); *key_at(table, at); at = (at + 1) & (table->capacity - 1))
        if (*key_at(table, at) == key)
            return entry_at(table, at);
    return NULL;
}

bool vgpu_table_take(struct vgpu_table *table, uint64_t key, void *taken)
{
    const char *found = vgpu_table_find(table, key);
    if (!found)
        return false;
    memcpy(taken, found, table->bytes);
    /* Entries behind the gap move up, so that none is cut off from its place. */
    uint64_t mask = table->capacity - 1, gap = (uint64_t)(found - table->entries) / table->bytes;
    for (uint64_t at = (gap + 1) & mask; *key_at(table, at); at = (at + 1) & mask) {
        uint64_t home = home_of(table, *key_at(table, at));
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            memcpy(entry_at(table, gap), entry_at(table, at), table->bytes);
            gap = at;
        }
    }
    *key_at(table, gap) = 0;
    table->count--;
    return true;
}

void *vgpu_table_at(const struct vgpu_table *table, uint64_t place)
{
    return *key_at(table, place) ? entry_at(table, place) : NULL;
}

void vgpu_table_clear(struct vgpu_table *table)
{
    if (table->entries)
        munmap(table->entries, table->capacity * table->bytes);
    *table = (struct vgpu_table){0};
}
