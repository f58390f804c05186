/* Functions of the fake driver that have successors, and variants of others: each does what fakecuda.c does.
 *
 * Without cuda.h, whose types of these functions are hidden: parameters are as abi/cuda.tsv has them. They replace the
 * stubs, which are weak.
 */
#include "fake.h"

#include <string.h>

enum { OUT_OF_MEMORY = 2, PER_THREAD = 2 };

int cuMemAlloc_v2(uint64_t *, uint64_t);
int cuMemAllocPitch_v2(uint64_t *, uint64_t *, uint64_t, uint64_t, uint32_t);
int cuMemFree_v2(uint64_t);
int cuMemGetInfo_v2(uint64_t *, uint64_t *);
int cuDeviceTotalMem_v2(uint64_t *, uint32_t);
int cuArray3DCreate_v2(void **, const void *);
int cuDevicePrimaryCtxReset_v2(uint32_t);
int cuCtxCreate_v2(void **, uint32_t, uint32_t);
int cuCtxDestroy_v2(void *);
int cuLibraryLoadData(void **, const void *, void *, void *, uint32_t, void *, void *, uint32_t);
int cuLaunchKernel(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *, void *, void *);
int cuGraphInstantiateWithFlags(void **, void *, uint64_t);
int cuGraphLaunch(void *, void *);

/* -- memory, with addresses and sizes of 32 bits */

static uint32_t narrow(uint64_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
}

static int at_low_address(int result, uint64_t wide, uint32_t *address)
{
    fake_low = false;
    if (result == 0 && wide > UINT32_MAX) {
        cuMemFree_v2(wide);
        return OUT_OF_MEMORY;
    }
    *address = (uint32_t)wide;
    return result;
}

int cuMemAlloc(uint32_t *address, uint32_t bytes);
int cuMemAlloc(uint32_t *address, uint32_t bytes)
{
    uint64_t wide = 0;
    fake_low = true;
    int result = cuMemAlloc_v2(&wide, bytes);
    return at_low_address(result, wide, address);
}

int cuMemAllocPitch(uint32_t *address, uint32_t *pitch, uint32_t width, uint32_t height, uint32_t element);
int cuMemAllocPitch(uint32_t *address, uint32_t *pitch, uint32_t width, uint32_t height, uint32_t element)
{
    uint64_t wide = 0, wide_pitch = 0;
    fake_low = true;
    int result = cuMemAllocPitch_v2(&wide, &wide_pitch, width, height, element);
    *pitch = (uint32_t)wide_pitch;
    return at_low_address(result, wide, address);
}

int cuMemFree(uint32_t address);
int cuMemFree(uint32_t address)
{
    return cuMemFree_v2(address);
}

int cuMemGetInfo(uint32_t *free, uint32_t *total);
int cuMemGetInfo(uint32_t *free, uint32_t *total)
{
    uint64_t wide_free, wide_total;
    int result = cuMemGetInfo_v2(&wide_free, &wide_total);
    *free = narrow(wide_free);
    *total = narrow(wide_total);
    return result;
}

int cuDeviceTotalMem(uint32_t *bytes, uint32_t device);
int cuDeviceTotalMem(uint32_t *bytes, uint32_t device)
{
    uint64_t wide;
    int result = cuDeviceTotalMem_v2(&wide, device);
    *bytes = narrow(wide);
    return result;
}

/* -- arrays */

struct deep {
    uint64_t width, height, depth;
    uint32_t format, channels, flags;
};

int cuArrayCreate(void **array, const uint32_t *given);
int cuArrayCreate(void **array, const uint32_t *given)
{
    return cuArray3DCreate_v2(array, &(struct deep){given[0], given[1], 0, given[2], given[3], 0});
}

int cuArray3DCreate(void **array, const uint32_t *given);
int cuArray3DCreate(void **array, const uint32_t *given)
{
    return cuArray3DCreate_v2(array, &(struct deep){given[0], given[1], given[2], given[3], given[4], given[5]});
}

/* -- contexts */

int cuDevicePrimaryCtxReset(uint32_t device);
int cuDevicePrimaryCtxReset(uint32_t device)
{
    return cuDevicePrimaryCtxReset_v2(device);
}

int cuCtxCreate(void **context, uint32_t flags, uint32_t device);
int cuCtxCreate(void **context, uint32_t flags, uint32_t device)
{
    return cuCtxCreate_v2(context, flags, device);
}

int cuCtxDestroy(void *context);
int cuCtxDestroy(void *context)
{
    return cuCtxDestroy_v2(context);
}

/* -- libraries */

int cuLibraryLoadFromFile(void **library, const char *path, void *options, void *values, uint32_t count, void *more,
                          void *more_values, uint32_t more_count);
int cuLibraryLoadFromFile(void **library, const char *path, void *options, void *values, uint32_t count, void *more,
                          void *more_values, uint32_t more_count)
{
    return cuLibraryLoadData(library, path, options, values, count, more, more_values, more_count);
}

/* -- launches */

int cuLaunch(void *function);
int cuLaunch(void *function)
{
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

int cuLaunchGrid(void *function, uint32_t width, uint32_t height);
int cuLaunchGrid(void *function, uint32_t width, uint32_t height)
{
    return cuLaunchKernel(function, width, height, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

int cuLaunchGridAsync(void *function, uint32_t width, uint32_t height, void *stream);
int cuLaunchGridAsync(void *function, uint32_t width, uint32_t height, void *stream)
{
    return cuLaunchKernel(function, width, height, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void *per_thread(void *stream)
{
    return stream ? stream : (void *)PER_THREAD;
}

int cuLaunchCooperativeKernel_ptsz(void *function, uint32_t x, uint32_t y, uint32_t z, uint32_t block_x,
                                   uint32_t block_y, uint32_t block_z, uint32_t shared, void *stream, void *parameters);
int cuLaunchCooperativeKernel_ptsz(void *function, uint32_t x, uint32_t y, uint32_t z, uint32_t block_x,
                                   uint32_t block_y, uint32_t block_z, uint32_t shared, void *stream, void *parameters)
{
    return cuLaunchKernel(function, x, y, z, block_x, block_y, block_z, shared, per_thread(stream), parameters, NULL);
}

int cuStreamBeginCapture_v2(void *, uint32_t);
int cuStreamBeginCapture(void *stream);
int cuStreamBeginCapture(void *stream)
{
    return cuStreamBeginCapture_v2(stream, 0);
}

int cuStreamBeginCapture_ptsz(void *stream);
int cuStreamBeginCapture_ptsz(void *stream)
{
    return cuStreamBeginCapture_v2(per_thread(stream), 0);
}

int cuStreamBeginCaptureToGraph(void *, void *, void *, void *, uint64_t, uint32_t);
int cuStreamBeginCaptureToGraph_ptsz(void *, void *, void *, void *, uint64_t, uint32_t);
int cuStreamBeginCaptureToGraph_ptsz(void *stream, void *graph, void *nodes, void *edges, uint64_t count, uint32_t mode)
{
    return cuStreamBeginCaptureToGraph(per_thread(stream), graph, nodes, edges, count, mode);
}

int cuEventDestroy_v2(void *);
int cuEventDestroy(void *event);
int cuEventDestroy(void *event)
{
    return cuEventDestroy_v2(event);
}

int cuStreamEndCapture(void *, void **);
int cuStreamBeginCaptureToCig(void *stream, void *given);
int cuStreamBeginCaptureToCig(void *stream, void *given)
{
    (void)given;
    return cuStreamBeginCapture_v2(stream, 0);
}

int cuStreamBeginCaptureToCig_ptsz(void *stream, void *given);
int cuStreamBeginCaptureToCig_ptsz(void *stream, void *given)
{
    return cuStreamBeginCaptureToCig(per_thread(stream), given);
}

int cuStreamEndCaptureToCig(void *stream);
int cuStreamEndCaptureToCig(void *stream)
{
    void *graph;
    return cuStreamEndCapture(stream, &graph);
}

int cuStreamEndCaptureToCig_ptsz(void *stream);
int cuStreamEndCaptureToCig_ptsz(void *stream)
{
    return cuStreamEndCaptureToCig(per_thread(stream));
}

int cuStreamBeginRecaptureToGraph(void *stream, uint32_t mode, void *graph, void *call, void *data);
int cuStreamBeginRecaptureToGraph(void *stream, uint32_t mode, void *graph, void *call, void *data)
{
    (void)call, (void)data;
    return cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, mode);
}

int cuStreamBeginRecaptureToGraph_ptsz(void *stream, uint32_t mode, void *graph, void *call, void *data);
int cuStreamBeginRecaptureToGraph_ptsz(void *stream, uint32_t mode, void *graph, void *call, void *data)
{
    return cuStreamBeginRecaptureToGraph(per_thread(stream), mode, graph, call, data);
}

struct multi_launch {
    void *function;
    uint32_t grid[3], block[3], shared;
    void *stream, *parameters;
};

int cuLaunchCooperativeKernelMultiDevice(const struct multi_launch *list, uint32_t count, uint32_t flags);
int cuLaunchCooperativeKernelMultiDevice(const struct multi_launch *list, uint32_t count, uint32_t flags)
{
    (void)flags;
    int result = 0;
    for (uint32_t i = 0; i < count && !result; i++)
        result = cuLaunchKernel(list[i].function, list[i].grid[0], 1, 1, 1, 1, 1, 0, list[i].stream, NULL, NULL);
    return result;
}

/* -- graphs */

int cuGraphInstantiate(void **exec, void *graph, void *node, char *text, uint64_t size);
int cuGraphInstantiate(void **exec, void *graph, void *node, char *text, uint64_t size)
{
    (void)node;
    if (size)
        *text = '\0';
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

int cuGraphInstantiate_v2(void **exec, void *graph, void *node, char *text, uint64_t size);
int cuGraphInstantiate_v2(void **exec, void *graph, void *node, char *text, uint64_t size)
{
    return cuGraphInstantiate(exec, graph, node, text, size);
}

int cuGraphInstantiateWithParams_ptsz(void **exec, void *graph, void *parameters);
int cuGraphInstantiateWithParams_ptsz(void **exec, void *graph, void *parameters)
{
    (void)parameters;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

int cuGraphLaunch_ptsz(void *exec, void *stream);
int cuGraphLaunch_ptsz(void *exec, void *stream)
{
    return cuGraphLaunch(exec, per_thread(stream));
}
