#include "module.h"

#include "account.h"
#include "devices.h"
#include "objects.h"
#include "process.h"
#include "resolve.h"

#include <string.h>
#include <sys/stat.h>

enum { LOADS_LAZILY = 2, TIMES_IMAGE = 2 };

static const uint32_t WRAPPER = 0x466243b1, FAT_BINARY = 0xba55ed50, ELF = 0x464c457f;

struct wrapper { /* as nvcc puts it around a fat binary */
    uint32_t magic, version;
    const void *image;
};

struct fat_binary {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

struct elf { /* 64 bits */
    unsigned char unused[40];
    uint64_t sections;
    unsigned char unused_too[10];
    uint16_t section_bytes, section_count;
};

/* Bytes of an image: code for one or several architectures, or text, which ends with a zero. */
static uint64_t image_bytes(const void *image)
{
    uint32_t magic = 0;
    if (image && !*(const char *)image)
        return 0;
    for (int i = 0; image && i < 4 && ((const char *)image)[i]; i++)
        magic |= (uint32_t)((const unsigned char *)image)[i] << (8 * i);
    if (magic == WRAPPER)
        return image_bytes(((const struct wrapper *)image)->image);
    if (magic == FAT_BINARY)
        return vgpu_add(((const struct fat_binary *)image)->bytes, ((const struct fat_binary *)image)->header_bytes);
    if (magic == ELF) {
        const struct elf *elf = image;
        return vgpu_add(elf->sections, (uint64_t)elf->section_bytes * elf->section_count);
    }
    return image ? strlen(image) : 0;
}

_Static_assert(offsetof(struct elf, sections) == 40 && offsetof(struct elf, section_bytes) == 58, "Elf64_Ehdr");

static bool loads_whole(void)
{
    uint32_t mode = 0;
    return !HAS(cuModuleGetLoadingMode) || REAL(cuModuleGetLoadingMode)(&mode) != 0 || mode != LOADS_LAZILY;
}

static bool prepare(struct vgpu_loading *loading)
{
    loading->measure.index = -1;
    return vgpu_attach() && loads_whole();
}

static void begin(struct vgpu_loading *loading, uint64_t bytes)
{
    uint32_t ordinal;
    loading->most = vgpu_multiply(bytes, TIMES_IMAGE);
    if (bytes && REAL(cuCtxGetDevice)(&ordinal) == CUDA_OK)
        vgpu_measure_begin(&loading->measure, (int)ordinal, true);
}

void vgpu_module_begin(struct vgpu_loading *loading, const void *image)
{
    if (prepare(loading))
        begin(loading, image_bytes(image));
}

void vgpu_module_begin_file(struct vgpu_loading *loading, const void *path)
{
    struct stat about;
    if (prepare(loading) && path && stat(path, &about) == 0)
        begin(loading, (uint64_t)about.st_size);
}

int vgpu_module_end(struct vgpu_loading *loading, void *place, int result, bool *undo)
{
    *undo = false;
    int d;
    uint64_t context, bytes = result == CUDA_OK ? vgpu_measure_taken(&loading->measure, loading->most) : 0;
    if (!bytes || !vgpu_current(&d, &context))
        return result;
    result = vgpu_charge(loading->measure.index, bytes, PART_MODULE);
    *undo = result != CUDA_OK;
    if (!*undo)
        vgpu_object_put(*(void **)place, loading->measure.index, bytes, context, PART_MODULE);
    return result;
}
