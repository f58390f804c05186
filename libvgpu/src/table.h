/* What has been charged, by address or handle. The caller locks. */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include "types.h"

enum vgpu_part { PART_DATA, PART_CONTEXT, PART_MODULE, PART_COUNT };

enum vgpu_kind {
    KIND_MEMORY,   /* key: address; owner: context */
    KIND_POOLED,   /* key: address; owner: pool */
    KIND_BLOCK,    /* key: handle of physical memory; owner: 0; second: number of the block */
    KIND_MAPPING,  /* key: address; owner: 0; second: number of the block; size: of the mapping */
    KIND_OBJECT,   /* key: array, module, library, graph; owner: context */
    KIND_CONTEXT,  /* key: context; owner: itself */
};

struct vgpu_entry {
    uint64_t key; /* 0: free */
    uint64_t size;
    uint64_t owner;
    uint64_t second;
    int32_t device;
    uint16_t kind;
    uint16_t part;
};

struct vgpu_table {
    struct vgpu_entry *entry;
    uint64_t capacity; /* power of two */
    uint64_t count;
};

/* Adds or replaces. Returns false if there is no memory for it. */
bool vgpu_table_put(struct vgpu_table *table, const struct vgpu_entry *entry);
struct vgpu_entry *vgpu_table_find(struct vgpu_table *table, uint64_t key);
bool vgpu_table_take(struct vgpu_table *table, uint64_t key, struct vgpu_entry *taken);
void vgpu_table_clear(struct vgpu_table *table);

#endif
