/* Copies, fills, decompression and moving of pages, which wait for GPU time and are charged as launches are where the limits say
 * so. Without, they cost nothing: programs find the driver's own functions. */
#ifndef VGPU_COPY_H
#define VGPU_COPY_H

#include "hooks.h"
#include "launch.h"

/* In place of a stream: the call ends when the copy does, in the stream of the device or of the thread. */
#define VGPU_WAITS ((void *)UINTPTR_MAX)

/* Copies by the same function of about as many `bytes` are taken to take as long. vgpu_launch_end ends it. */
void vgpu_copy_begin(struct vgpu_launch *launch, enum vgpu_symbol function, uint64_t bytes, void *stream, bool per_thread);

/* Bytes of a CUDA_MEMCPY2D, and of a CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER. 0 for none. */
uint64_t vgpu_copy_plane(const void *given);
uint64_t vgpu_copy_volume(const void *given);

#endif
