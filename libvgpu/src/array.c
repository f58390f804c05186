/* Arrays: the driver lays them out, so what they take is measured, and never below their elements. */
#include "account.h"
#include "devices.h"
#include "measure.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"

struct flat { /* of cuArrayCreate_v2 */
    uint64_t width, height;
    uint32_t format, channels;
};

struct flat_v1 {
    uint32_t width, height, format, channels;
};

struct deep { /* of cuArray3DCreate_v2 and cuMipmappedArrayCreate */
    uint64_t width, height, depth;
    uint32_t format, channels, flags;
};

struct deep_v1 {
    uint32_t width, height, depth, format, channels, flags;
};

enum { FLAG_SPARSE = 0x40, FLAG_DEFERRED = 0x80 };

static uint64_t element(uint32_t format)
{
    switch (format) {
    case 0x01: case 0x08: return 1; /* 8 bits */
    case 0x02: case 0x09: case 0x10: return 2;
    default: return 4;
    }
}

static uint64_t least(uint64_t width, uint64_t height, uint64_t depth, uint32_t format, uint32_t channels)
{
    uint64_t cells = vgpu_multiply(vgpu_multiply(width, height ? height : 1), depth ? depth : 1);
    /* Formats of compressed blocks take less than their cells. */
    if (format >= 0x91 && format <= 0x9f)
        return cells / 2;
    return vgpu_multiply(cells, element(format) * (channels ? channels : 1));
}

struct creation {
    struct vgpu_measure measure;
    uint64_t charged;
};

static int begin(struct creation *creation, uint64_t bytes)
{
    creation->measure.index = -1;
    creation->charged = vgpu_round(bytes, 512);
    int d;
    if (!vgpu_current(&d, NULL))
        return CUDA_OK;
    int result = vgpu_reserve(d, creation->charged, PART_DATA);
    if (result != CUDA_OK)
        return result;
    vgpu_measure_begin(&creation->measure);
    if (creation->measure.index < 0)
        vgpu_uncharge(d, creation->charged, PART_DATA);
    return CUDA_OK;
}

/* The rest of what the array takes. If that does not fit the array goes again. */
static int end(struct creation *creation, int result, void **array, bool mipmapped)
{
    int d = creation->measure.index;
    if (d < 0)
        return result;
    uint64_t size = creation->charged;
    if (result != CUDA_OK) {
        vgpu_uncharge(d, size, PART_DATA);
        return result;
    }
    /* Free memory also changes by what others do: only what an array can take counts. */
    uint64_t taken = vgpu_measure_taken(&creation->measure, vgpu_add(vgpu_multiply(size, 2), 4 << 20));
    if (taken > size) {
        result = vgpu_charge(d, taken - size, PART_DATA);
        if (result != CUDA_OK) {
            if (mipmapped)
                REAL(cuMipmappedArrayDestroy)(*array);
            else
                REAL(cuArrayDestroy)(*array);
            vgpu_uncharge(d, size, PART_DATA);
            return result;
        }
        size = taken;
    }
    vgpu_object_put(*array, d, size, creation->measure.context, KIND_OBJECT, PART_DATA);
    return CUDA_OK;
}

#define CREATE(name, bytes, mipmapped, ...)                                    \
    struct creation creation;                                                  \
    if (!array || !description)                                                \
        return REAL(name)(__VA_ARGS__);                                        \
    int result = begin(&creation, bytes);                                      \
    if (result != CUDA_OK)                                                     \
        return result;                                                         \
    return end(&creation, REAL(name)(__VA_ARGS__), array, mipmapped)

/* Sparse arrays and those that are mapped later hold no memory of their own. */
static uint64_t deep_bytes(const struct deep *given)
{
    return given->flags & (FLAG_SPARSE | FLAG_DEFERRED) ? 0
        : least(given->width, given->height, given->depth, given->format, given->channels);
}

int cuArrayCreate_v2(void *array, void *description)
{
    const struct flat *given = description;
    CREATE(cuArrayCreate_v2, least(given->width, given->height, 1, given->format, given->channels), false, array,
           description);
}

int cuArrayCreate(void *array, void *description)
{
    const struct flat_v1 *given = description;
    CREATE(cuArrayCreate, least(given->width, given->height, 1, given->format, given->channels), false, array,
           description);
}

int cuArray3DCreate_v2(void *array, void *description)
{
    CREATE(cuArray3DCreate_v2, deep_bytes(description), false, array, description);
}

int cuArray3DCreate(void *array, void *description)
{
    const struct deep_v1 *given = description;
    CREATE(cuArray3DCreate, least(given->width, given->height, given->depth, given->format, given->channels), false,
           array, description);
}

int cuMipmappedArrayCreate(void *array, void *description, uint32_t levels)
{
    CREATE(cuMipmappedArrayCreate, deep_bytes(description), true, array, description, levels);
}

int cuArrayDestroy(void *array)
{
    struct vgpu_entry entry;
    bool known = vgpu_object_take(array, &entry);
    int result = REAL(cuArrayDestroy)(array);
    vgpu_object_end(known, &entry, result);
    return result;
}

int cuMipmappedArrayDestroy(void *array)
{
    struct vgpu_entry entry;
    bool known = vgpu_object_take(array, &entry);
    int result = REAL(cuMipmappedArrayDestroy)(array);
    vgpu_object_end(known, &entry, result);
    return result;
}
