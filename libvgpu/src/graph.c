/* Graphs: their launches count as one kernel each, their memory is charged when they are instantiated. */
#include "devices.h"
#include "launch.h"
#include "measure.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"

#include <sys/mman.h>

struct allocation_node {
    uint32_t type, handles, location, id;
    uint64_t unused[9];
    void *access;
    uint64_t access_count, bytes, address;
};

_Static_assert(offsetof(struct allocation_node, bytes) == 104, "CUDA_MEM_ALLOC_NODE_PARAMS");

/* Bytes that the allocation nodes of a graph take on each device. */
static void needed(void *graph, uint64_t bytes[VGPU_DEVICES])
{
    uint64_t count = 0;
    if (!HAS(cuGraphMemAllocNodeGetParams) || REAL(cuGraphGetNodes)(graph, NULL, &count) != 0 || count == 0)
        return;
    size_t size = count * sizeof(void *);
    void **nodes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED)
        return;
    uint64_t known = count;
    int result = REAL(cuGraphGetNodes)(graph, nodes, &known);
    for (uint64_t i = 0; result == 0 && i < known && i < count; i++) {
        uint32_t type = 0;
        struct {
            struct allocation_node node;
            uint64_t spare[16];
        } given = {0};
        if (REAL(cuGraphNodeGetType)(nodes[i], &type) != 0 || type != GRAPH_NODE_MEM_ALLOC
            || REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &given) != 0)
            continue;
        int index = given.node.location == LOCATION_DEVICE ? vgpu_index_of((int)given.node.id) : -1;
        if (index >= 0)
            bytes[index] = vgpu_add(bytes[index], vgpu_round(given.node.bytes, 512));
    }
    munmap(nodes, size);
}

/* The key under which device d of an executable graph is remembered; its address is aligned. */
static void *key_of(void *graph, int d)
{
    return (void *)((uintptr_t)graph * 2 * VGPU_DEVICES + (uintptr_t)d * 2 + 1);
}

static int ordinal_of(int d)
{
    for (int i = 0; i < VGPU_ORDINALS; i++)
        if (atomic_load(&vgpu_process.index[i]) == d + 1)
            return i;
    return 0;
}

static int begin(void *graph, uint64_t bytes[VGPU_DEVICES])
{
    if (!graph || !vgpu_open())
        return CUDA_OK;
    needed(graph, bytes);
    for (int d = 0; d < VGPU_DEVICES; d++) {
        if (!bytes[d] || vgpu_graph_memory(d, (int64_t)bytes[d]) == CUDA_OK)
            continue;
        while (d-- > 0)
            if (bytes[d]) {
                vgpu_graph_memory(d, -(int64_t)bytes[d]);
                vgpu_graph_memory_look(d, ordinal_of(d));
            }
        return CUDA_OUT_OF_MEMORY;
    }
    return CUDA_OK;
}

static int end(void *place, uint64_t bytes[VGPU_DEVICES], int result)
{
    for (int d = 0; d < VGPU_DEVICES; d++) {
        if (!bytes[d])
            continue;
        if (result == CUDA_OK) {
            vgpu_object_put(key_of(*(void **)place, d), d, bytes[d], 0, KIND_OBJECT, PART_DATA);
        } else {
            vgpu_graph_memory(d, -(int64_t)bytes[d]);
            vgpu_graph_memory_look(d, ordinal_of(d));
        }
    }
    return result;
}

#define INSTANTIATE(name, ...)                                                 \
    uint64_t bytes[VGPU_DEVICES] = {0};                                        \
    int result = begin(graph, bytes);                                          \
    if (result != CUDA_OK)                                                     \
        return result;                                                         \
    return end(place, bytes, REAL(name)(__VA_ARGS__))

int cuGraphInstantiate(void *place, void *graph, void *node, void *log, uint64_t size)
{
    INSTANTIATE(cuGraphInstantiate, place, graph, node, log, size);
}

int cuGraphInstantiate_v2(void *place, void *graph, void *node, void *log, uint64_t size)
{
    INSTANTIATE(cuGraphInstantiate_v2, place, graph, node, log, size);
}

int cuGraphInstantiateWithFlags(void *place, void *graph, uint64_t flags)
{
    INSTANTIATE(cuGraphInstantiateWithFlags, place, graph, flags);
}

int cuGraphInstantiateWithParams(void *place, void *graph, void *parameters)
{
    INSTANTIATE(cuGraphInstantiateWithParams, place, graph, parameters);
}

int cuGraphInstantiateWithParams_ptsz(void *place, void *graph, void *parameters)
{
    INSTANTIATE(cuGraphInstantiateWithParams_ptsz, place, graph, parameters);
}

int cuGraphExecDestroy(void *graph)
{
    struct vgpu_entry entry[VGPU_DEVICES];
    bool known[VGPU_DEVICES] = {false};
    for (int d = 0; vgpu_is_open() && d < VGPU_DEVICES; d++)
        known[d] = vgpu_process.objects.count && vgpu_object_take(key_of(graph, d), &entry[d]);
    int result = REAL(cuGraphExecDestroy)(graph);
    for (int d = 0; d < VGPU_DEVICES; d++) {
        if (!known[d])
            continue;
        if (result == CUDA_OK) {
            vgpu_graph_memory(d, -(int64_t)entry[d].size);
            vgpu_graph_memory_look(d, ordinal_of(d));
        } else {
            vgpu_object_put((void *)(uintptr_t)entry[d].key, d, entry[d].size, 0, KIND_OBJECT, PART_DATA);
        }
    }
    return result;
}

int cuDeviceGraphMemTrim(uint32_t device)
{
    int result = REAL(cuDeviceGraphMemTrim)(device);
    int index = vgpu_is_open() ? vgpu_index_of((int)device) : -1;
    if (index >= 0)
        vgpu_graph_memory_look(index, (int)device);
    return result;
}

int cuGraphLaunch(void *graph, void *stream)
{
    if (vgpu_launch_is_free())
        return REAL(cuGraphLaunch)(graph, stream);
    struct vgpu_launch launch;
    vgpu_launch_begin(&launch, graph, 0, stream, false);
    int result = REAL(cuGraphLaunch)(graph, stream);
    vgpu_launch_end(&launch, result);
    return result;
}

int cuGraphLaunch_ptsz(void *graph, void *stream)
{
    if (vgpu_launch_is_free())
        return REAL(cuGraphLaunch_ptsz)(graph, stream);
    struct vgpu_launch launch;
    vgpu_launch_begin(&launch, graph, 0, stream, true);
    int result = REAL(cuGraphLaunch_ptsz)(graph, stream);
    vgpu_launch_end(&launch, result);
    return result;
}
