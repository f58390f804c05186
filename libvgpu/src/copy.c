#include "copy.h"

#include "process.h"

/* A call that takes longer copies by itself, from or to memory that the card cannot reach. */
static const uint64_t MOST_HOST = 100000;

struct plane {
    uint64_t unused[14], width, height;
};

struct volume {
    uint64_t unused[22], width, height, depth;
};

_Static_assert(offsetof(struct plane, width) == 112, "CUDA_MEMCPY2D");
_Static_assert(offsetof(struct volume, width) == 176, "CUDA_MEMCPY3D");

uint64_t vgpu_copy_plane(const void *given)
{
    const struct plane *plane = given;
    return plane ? vgpu_multiply(plane->width, plane->height) : 0;
}

uint64_t vgpu_copy_volume(const void *given)
{
    const struct volume *volume = given;
    return volume ? vgpu_multiply(vgpu_multiply(volume->width, volume->height), volume->depth) : 0;
}

void vgpu_copy_begin(struct vgpu_launch *launch, enum vgpu_symbol function, uint64_t bytes, void *stream, bool per_thread)
{
    bool waits = stream == VGPU_WAITS;
    void *key = (void *)((uintptr_t)function + 1); /* no function of a program lies there */
    vgpu_launch_begin(launch, key, bytes, waits ? NULL : stream, per_thread);
    launch->most_host = waits ? 0 : MOST_HOST;
}
