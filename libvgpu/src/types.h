/* Numbers of the CUDA driver interface that the limiter needs, and small helpers. No CUDA header is used. */
#ifndef VGPU_TYPES_H
#define VGPU_TYPES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_NOT_PERMITTED = 800,
};

enum {
    LOCATION_DEVICE = 1,
    LOCATION_HOST = 2,
    LOCATION_HOST_NUMA_CURRENT = 4,
    LOCATION_LOCALITY_DOMAIN = 6, /* a part of the memory of a device */
    POOL_RESERVED_CURRENT = 5,
    POOL_USED_CURRENT = 7,
    POOL_ALLOCATION_TYPE = 9,
    POOL_LOCATION_ID = 11,
    POOL_LOCATION_TYPE = 12,
    POINTER_DEVICE_ORDINAL = 9,
    GRAPH_RESERVED_CURRENT = 2,
    GRAPH_NODE_GRAPH = 4,
    GRAPH_NODE_MEM_ALLOC = 10,
    CAPTURE_MODE_RELAXED = 2,
    HANDLE_FILE = 1,
    HANDLE_FABRIC = 8,
    EXTERNAL_FILE = 1,
    STREAM_PER_THREAD = 2, /* streams with smaller numbers are those of the current device, too */
};

/* Devices of the shared region, and CUDA device numbers that are told apart. */
enum { VGPU_DEVICES = 16, VGPU_ORDINALS = 64 };

/* Bytes of which the driver hands out whole numbers. Plain memory of more than 1 MiB comes in whole pages. */
enum { VGPU_GRANULE = 512, VGPU_PAGE = 2 << 20, VGPU_MOST_WITHIN_PAGE = 1 << 20 };

/* CUipcMemHandle, as it is passed by value. Pointers into pools and fabric handles have that size, too. */
struct vgpu_structure {
    char bytes[64];
};

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline uint64_t vgpu_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static inline uint64_t vgpu_multiply(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static inline uint64_t vgpu_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* n rounded up to a multiple of unit, a power of two; the largest number if that does not fit. */
static inline uint64_t vgpu_round(uint64_t n, uint64_t unit)
{
    return n > UINT64_MAX - unit ? UINT64_MAX : (n + unit - 1) & ~(unit - 1);
}

/* What plain memory takes. */
static inline uint64_t vgpu_pages(uint64_t bytes)
{
    return vgpu_round(bytes, bytes > VGPU_MOST_WITHIN_PAGE ? VGPU_PAGE : VGPU_GRANULE);
}

/* Test builds kill the process at a numbered point, and when it calls the driver while it holds a lock; release builds hold
 * nothing of it. */
#ifdef VGPU_TEST_POINTS
void vgpu_point(int number);
void vgpu_locked(int more);
void vgpu_calls_driver(void);
#define VGPU_POINT(n) vgpu_point(n)
#define VGPU_LOCKED(more) vgpu_locked(more)
#define VGPU_CALLS_DRIVER() vgpu_calls_driver()
#else
#define VGPU_POINT(n) ((void)0)
#define VGPU_LOCKED(more) ((void)0)
#define VGPU_CALLS_DRIVER() ((void)0)
#endif

#endif
