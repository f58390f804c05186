/* Entries by key. An entry is any structure that begins with its key, 64 bits that are not 0. The caller locks. */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include "types.h"

/* All zero is an empty one. */
struct vgpu_table {
    char *entries;
    uint64_t capacity; /* power of two */
    uint64_t count;
    size_t bytes; /* of an entry; all of a table are of one type */
};

/* Adds or replaces the entry to which the pointer leads. False if there is no memory for it. */
#define vgpu_table_put(table, ...) vgpu_table_put_bytes((table), (__VA_ARGS__), sizeof *(__VA_ARGS__))
bool vgpu_table_put_bytes(struct vgpu_table *table, const void *entry, size_t bytes);

/* The entry with that key, where it lies until the table changes; NULL: there is none. */
void *vgpu_table_find(const struct vgpu_table *table, uint64_t key);

/* Removes it. Others may move to its place. */
bool vgpu_table_take(struct vgpu_table *table, uint64_t key, void *taken);

/* What lies at a place below the capacity, NULL for nothing. */
void *vgpu_table_at(const struct vgpu_table *table, uint64_t place);

void vgpu_table_clear(struct vgpu_table *table);

#endif
