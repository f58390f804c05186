#include "graph.h"

#include "account.h"
#include "capture.h"
#include "devices.h"
#include "log.h"
#include "objects.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"

#include <string.h>
#include <sys/mman.h>

struct allocation_node {
    uint32_t type, handles, location, id;
    uint64_t unused[9];
    void *access;
    uint64_t access_count, bytes, address;
};

_Static_assert(offsetof(struct allocation_node, bytes) == 104, "CUDA_MEM_ALLOC_NODE_PARAMS");

enum { MOST_DEPTH = 64 };

static uint64_t instantiated_bytes[VGPU_DEVICES], charged[VGPU_DEVICES];
static uint64_t looks[VGPU_DEVICES]; /* how often the driver has been asked */
static int32_t owner; /* process that these belong to; a forked child has none */

/* Caller locks. */
static void forget_of_parent(void)
{
    if (!vgpu_is_inherited(&owner))
        return;
    memset(instantiated_bytes, 0, sizeof instantiated_bytes);
    memset(charged, 0, sizeof charged);
}

/* Charges for graphs: `instantiated` more bytes than before, negative for less. 0 or 2. */
static int charge(int d, int64_t instantiated)
{
    struct vgpu_process *process = &vgpu_process;
    uint64_t more = instantiated > 0 ? (uint64_t)instantiated : 0;
    int result = vgpu_reserve(d, more, PART_DATA);
    if (result != CUDA_OK)
        return result;
    vgpu_lock(&process->lock);
    forget_of_parent();
    charged[d] += more;
    instantiated_bytes[d] = instantiated > 0 ? instantiated_bytes[d] + more
        : vgpu_less(instantiated_bytes[d], (uint64_t)-instantiated);
    vgpu_unlock(&process->lock);
    return result;
}

static uint64_t reserved_now(int d)
{
    uint64_t reserved = 0;
    uint32_t mode = vgpu_relax();
    bool told = HAS(cuDeviceGetGraphMemAttribute)
        && REAL(cuDeviceGetGraphMemAttribute)((uint32_t)vgpu_ordinal_of(d), GRAPH_RESERVED_CURRENT, &reserved) == 0;
    vgpu_restore(mode);
    return told ? reserved : 0;
}

/* What the driver holds for the graphs of device d may have changed. Answers are counted as in pool.c. */
static void look(int d)
{
    struct vgpu_process *process = &vgpu_process;
    uint64_t reserved, begun;
    if (!vgpu_attach())
        return;
    vgpu_lock(&process->lock);
    int tries = 0;
    do {
        begun = looks[d];
        vgpu_unlock(&process->lock);
        reserved = reserved_now(d);
        VGPU_POINT(79);
        vgpu_lock(&process->lock);
    } while (looks[d] != begun && ++tries < VGPU_LOOK_TRIES);
    forget_of_parent();
    uint64_t before = charged[d];
    if (looks[d] != begun)
        reserved = before;
    else
        looks[d]++;
    charged[d] = instantiated_bytes[d] > reserved ? instantiated_bytes[d] : reserved;
    if (before != charged[d])
        vgpu_correct(d, before, charged[d], PART_DATA);
    vgpu_unlock(&process->lock);
}

static bool needed(void *graph, uint64_t bytes[VGPU_DEVICES], int depth);

/* Adds the bytes that one node takes: of an allocation, or of the graph in it. */
static bool needed_by(void *node, uint64_t bytes[VGPU_DEVICES], int depth)
{
    uint32_t type = 0;
    void *child = NULL;
    struct {
        struct allocation_node node;
        uint64_t spare[16];
    } given = {0};
    if (REAL(cuGraphNodeGetType)(node, &type) != 0)
        return true;
    if (type == GRAPH_NODE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == 0)
        return needed(child, bytes, depth + 1);
    if (type != GRAPH_NODE_MEM_ALLOC || REAL(cuGraphMemAllocNodeGetParams)(node, &given) != 0)
        return true;
    int index = vgpu_index_at(given.node.location, given.node.id);
    if (index >= 0)
        bytes[index] = vgpu_add(bytes[index], vgpu_round(given.node.bytes, VGPU_GRANULE));
    return true;
}

/* Adds the bytes that the allocation nodes of a graph, and of graphs in it, take on each device. False: that cannot be told. */
static bool needed(void *graph, uint64_t bytes[VGPU_DEVICES], int depth)
{
    uint64_t count = 0;
    if (!HAS(cuGraphMemAllocNodeGetParams) || REAL(cuGraphGetNodes)(graph, NULL, &count) != 0 || count == 0)
        return true;
    size_t size = count * sizeof(void *);
    void **nodes = depth > MOST_DEPTH ? MAP_FAILED
        : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED)
        return false;
    uint64_t known = count;
    bool told = true;
    int result = REAL(cuGraphGetNodes)(graph, nodes, &known);
    for (uint64_t i = 0; told && result == 0 && i < known && i < count; i++)
        told = needed_by(nodes[i], bytes, depth);
    munmap(nodes, size);
    return told;
}

/* The key under which device d of an executable graph is remembered; its address is aligned. */
static void *key_of(void *graph, int d)
{
    return (void *)((uintptr_t)graph * 2 * VGPU_DEVICES + (uintptr_t)d * 2 + 1);
}

int vgpu_graph_begin(void *graph, uint64_t bytes[VGPU_DEVICES])
{
    if (!graph || !vgpu_open())
        return CUDA_OK;
    if (!needed(graph, bytes, 0)) {
        LOG_ONCE(LOG_WARNING, "a graph in graphs, more than %d deep, cannot be counted and is refused", MOST_DEPTH);
        return CUDA_OUT_OF_MEMORY;
    }
    for (int d = 0; d < VGPU_DEVICES; d++) {
        if (!bytes[d] || charge(d, (int64_t)bytes[d]) == CUDA_OK)
            continue;
        while (d-- > 0)
            if (bytes[d]) {
                charge(d, -(int64_t)bytes[d]);
                look(d);
            }
        return CUDA_OUT_OF_MEMORY;
    }
    return CUDA_OK;
}

int vgpu_graph_end(void *place, const uint64_t bytes[VGPU_DEVICES], int result)
{
    for (int d = 0; d < VGPU_DEVICES; d++) {
        if (!bytes[d])
            continue;
        if (result == CUDA_OK) {
            vgpu_object_put(key_of(*(void **)place, d), d, bytes[d], 0, PART_DATA);
        } else {
            charge(d, -(int64_t)bytes[d]);
            look(d);
        }
    }
    return result;
}

int cuGraphExecDestroy(void *graph)
{
    struct vgpu_object part[VGPU_DEVICES];
    bool known[VGPU_DEVICES] = {false};
    for (int d = 0; vgpu_is_open() && d < VGPU_DEVICES; d++)
        known[d] = vgpu_process.objects.count && vgpu_object_take(key_of(graph, d), &part[d]);
    int result = REAL(cuGraphExecDestroy)(graph);
    for (int d = 0; d < VGPU_DEVICES; d++) {
        if (!known[d])
            continue;
        if (result == CUDA_OK) {
            charge(d, -(int64_t)part[d].amount.bytes);
            look(d);
        } else {
            vgpu_object_keep(&part[d]);
        }
    }
    return result;
}

int cuDeviceGraphMemTrim(uint32_t device)
{
    int result = REAL(cuDeviceGraphMemTrim)(device);
    int index = vgpu_is_open() ? vgpu_index_of((int)device) : -1;
    if (index >= 0)
        look(index);
    return result;
}
