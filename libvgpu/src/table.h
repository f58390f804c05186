/* What has been charged, by address or handle. The caller locks. */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include "types.h"

/* What a process counts. The last two take no memory: what of its data others may have opened, and what it has opened of
 * others. */
enum vgpu_part { PART_DATA, PART_CONTEXT, PART_MODULE, PART_EXPORTED, PART_IMPORTED, PART_COUNT };

enum vgpu_kind {
    KIND_MEMORY,   /* key: address; owner: context */
    KIND_POOLED,   /* key: address; owner: pool */
    KIND_OPENED,   /* key: address of another process's memory; owner: context, 0 for that of a pool; second: how often it
                    * was opened */
    KIND_BLOCK,    /* key: handle of physical memory; owner: 0; second: number of the block */
    KIND_MULTICAST, /* a block that is an object, to which others are bound */
    KIND_BINDING,  /* key: number; owner: number of the object; second: that of the block; size: offset in the object */
    KIND_MAPPING,  /* key: address; owner: 0; second: number of the block; size: of the mapping */
    KIND_OBJECT,   /* key: array, module, library, graph; owner: context */
    KIND_CONTEXT,  /* key: context; owner: itself */
};

/* Memory that other processes hold, too. */
struct vgpu_share {
    uint64_t name;   /* of a handle of it; 0: none that others would recognize */
    uint64_t block;  /* the same for all its handles */
    uint32_t record; /* in the region, of what was imported; 0: none */
};

struct vgpu_entry {
    uint64_t key; /* 0: free */
    uint64_t size;
    uint64_t owner;
    uint64_t second;
    int32_t device;
    uint8_t kind;
    uint8_t part;
    bool exported; /* another process may have opened it */
    uint32_t closing; /* of what was opened: how often it is being closed */
    struct vgpu_share share;
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
