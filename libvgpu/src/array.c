#include "array.h"

#include "account.h"
#include "devices.h"
#include "objects.h"
#include "pool.h"
#include "process.h"
#include "resolve.h"

struct flat {
    uint64_t width, height;
    uint32_t format, channels;
};

struct flat_v1 {
    uint32_t width, height, format, channels;
};

struct deep_v1 {
    uint32_t width, height, depth, format, channels, flags;
};

struct requirements {
    uint64_t bytes, alignment;
    uint32_t reserved[4];
};

enum { FLAG_SPARSE = 0x40, FLAG_DEFERRED = 0x80 };

struct vgpu_array vgpu_array_flat(const void *description)
{
    const struct flat *given = description;
    return given ? (struct vgpu_array){given->width, given->height, 0, given->format, given->channels, 0}
                 : (struct vgpu_array){0};
}

struct vgpu_array vgpu_array_flat_v1(const void *description)
{
    const struct flat_v1 *given = description;
    return given ? (struct vgpu_array){given->width, given->height, 0, given->format, given->channels, 0}
                 : (struct vgpu_array){0};
}

struct vgpu_array vgpu_array_deep(const void *description)
{
    return description ? *(const struct vgpu_array *)description : (struct vgpu_array){0};
}

struct vgpu_array vgpu_array_deep_v1(const void *description)
{
    const struct deep_v1 *given = description;
    return given ? (struct vgpu_array){given->width, given->height, given->depth, given->format, given->channels,
                                       given->flags}
                 : (struct vgpu_array){0};
}

/* Bits of an element with all its channels; the least that is certain for formats that are not known. */
static uint64_t element_bits(const struct vgpu_array *array)
{
    uint64_t channels = array->channels ? array->channels : 1;
    switch (array->format) {
    case 0x01: case 0x08: return 8 * channels;
    case 0x02: case 0x09: case 0x10: return 16 * channels;
    case 0x03: case 0x0a: case 0x20: return 32 * channels;
    default: return 4; /* compressed blocks */
    }
}

static uint64_t least(const struct vgpu_array *array)
{
    uint64_t cells = vgpu_multiply(array->width, array->height ? array->height : 1);
    cells = vgpu_multiply(cells, array->depth ? array->depth : 1);
    return vgpu_round(vgpu_multiply(cells, element_bits(array)) / 8, VGPU_GRANULE);
}

/* Asks the driver about such an array without memory; 0 if it does not say (before CUDA 11.6). */
static uint64_t required(struct vgpu_array array, uint32_t levels, uint32_t ordinal)
{
    void *made = NULL;
    struct requirements needed = {0};
    array.flags |= FLAG_DEFERRED;
    if (!HAS(cuArrayGetMemoryRequirements))
        return 0;
    if (levels) {
        if (REAL(cuMipmappedArrayCreate)(&made, &array, levels) != CUDA_OK)
            return 0;
        REAL(cuMipmappedArrayGetMemoryRequirements)(&needed, made, ordinal);
        REAL(cuMipmappedArrayDestroy)(made);
        return needed.bytes;
    }
    if (REAL(cuArray3DCreate_v2)(&made, &array) != CUDA_OK)
        return 0;
    REAL(cuArrayGetMemoryRequirements)(&needed, made, ordinal);
    REAL(cuArrayDestroy)(made);
    return needed.bytes;
}

int vgpu_array_begin(struct vgpu_creation *creation, void *place, struct vgpu_array array, uint32_t levels)
{
    uint32_t ordinal;
    *creation = (struct vgpu_creation){.index = -1};
    int d;
    if (!place || !array.width || !vgpu_current(&d, &creation->context) || REAL(cuCtxGetDevice)(&ordinal) != CUDA_OK)
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : CUDA_OK;
    creation->is_whole = array.flags & FLAG_DEFERRED;
    creation->is_later = creation->is_whole || array.flags & FLAG_SPARSE;
    if (creation->is_later)
        return CUDA_OK;
    uint64_t bytes = required(array, levels, ordinal);
    creation->charged = bytes ? bytes : least(&array);
    int result = vgpu_reserve(d, creation->charged, PART_DATA);
    creation->index = result == CUDA_OK ? d : -1;
    return result;
}

int vgpu_array_end(const struct vgpu_creation *creation, void *place, int result)
{
    if (creation->index >= 0 && result == CUDA_OK)
        vgpu_object_put(*(void **)place, creation->index, creation->charged, creation->context, PART_DATA);
    else if (creation->index >= 0)
        vgpu_uncharge(creation->index, creation->charged, PART_DATA);
    else if (creation->is_later && result == CUDA_OK)
        vgpu_object_keep(&(struct vgpu_object){.handle = (uint64_t)*(uintptr_t *)place, .context = creation->context,
                                               .amount = {.device = -1}, .is_whole = creation->is_whole});
    return result;
}
