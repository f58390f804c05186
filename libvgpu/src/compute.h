/* The file of a container's compute limit: 4 KiB beside the region. The node monitor reads throttled time from it. */
#ifndef VGPU_COMPUTE_H
#define VGPU_COMPUTE_H

#include "control.h"

struct vgpu_compute {
    _Atomic uint32_t magic; /* "HSM1" */
    uint32_t version;
    _Atomic uint64_t reaped;    /* monotonic nanoseconds of the last look for dead processes */
    _Atomic uint64_t heartbeat; /* by our monitor: monotonic nanoseconds; 0: a monitor that does not say */
    uint64_t unused[29];
    struct vgpu_bucket bucket[VGPU_DEVICES];
};

_Static_assert(sizeof(struct vgpu_bucket) == 128, "layout of the compute file");
_Static_assert(offsetof(struct vgpu_compute, bucket) == 256, "layout of the compute file");

enum { COMPUTE_FILE = 4096 };

/* The file at path, made if it is not there; memory of this process only if that fails. */
struct vgpu_compute *vgpu_compute_open(const char *path);
void vgpu_compute_close(struct vgpu_compute *compute);

/* True for one caller in a tenth of a second, of all processes of the container. */
bool vgpu_compute_is_due(struct vgpu_compute *compute, uint64_t now);

#endif
