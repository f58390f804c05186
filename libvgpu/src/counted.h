/* What a process counts, in the tables of process.h. */
#ifndef VGPU_COUNTED_H
#define VGPU_COUNTED_H

#include "types.h"

/* The last two take no memory: what of its data others may have opened, and what it has opened of others. */
enum vgpu_part { PART_DATA, PART_CONTEXT, PART_MODULE, PART_EXPORTED, PART_IMPORTED, PART_COUNT };

/* Memory that other processes hold, too. */
struct vgpu_share {
    uint64_t name;   /* of a handle of it; 0: none that others would recognize */
    uint64_t block;  /* the same for all its handles */
    uint32_t record; /* in the region, of what was imported; 0: none */
};

struct vgpu_amount {
    uint64_t bytes;
    int32_t device; /* -1: of none that is limited */
    uint8_t part;
    bool exported; /* another process may have opened it */
    struct vgpu_share share;
};

/* Memory that is freed by its address. */
struct vgpu_allocation {
    uint64_t address;
    struct vgpu_amount amount;
    uint64_t owner; /* context, or pool if it is of one; 0: neither, as what was opened in a pool */
    enum { OF_CONTEXT, OF_POOL, OF_PROCESS } kind; /* the last: of another one */
    uint32_t opened, closing; /* of another process: how often, and how often it is being closed */
    uint64_t block;           /* that it holds: external memory, or its own once it is bound to something; 0: none */
};

/* Context, array, module, external memory, graph. */
struct vgpu_object {
    uint64_t handle;
    struct vgpu_amount amount;
    uint64_t context; /* with which it goes, 0 for none */
    uint64_t usual;   /* of a heap: what belongs to the context */
    uint64_t block;   /* that it holds: external memory, or that to which memory is bound; 0: none */
    uint64_t other;   /* of a green context: the handle of it as a context */
    bool is_context, is_green;
    bool is_whole; /* of an array: what is mapped to it is mapped to all of it */
    uint32_t attached; /* how often a context must be detached from before it goes */
    uint32_t going; /* threads that ask the driver to end this context: one that it makes under this handle is another */
};

/* Physical memory, or an object that has none and to which it is bound: a multicast object, a logical endpoint, a sparse array.
 * It is held until references and mappings are gone. */
struct vgpu_block {
    uint64_t number;
    struct vgpu_amount amount;
    int64_t references, mappings; /* the second also counts bindings */
    bool is_object;
};

struct vgpu_handle {
    uint64_t handle, block, references;
};

struct vgpu_mapping {
    uint64_t address, bytes, block;
};

/* A part of an object. Where it has bytes, these are the first axis. */
struct vgpu_box {
    uint64_t from[3], to[3];
};

struct vgpu_binding {
    uint64_t number, object, block; /* numbers of blocks */
    uint64_t plane;                 /* of a sparse array: level and layer */
    struct vgpu_box box;
    int32_t device;
};

/* An event of the program, that measures time. */
struct vgpu_event {
    uint64_t handle;
};

#endif
