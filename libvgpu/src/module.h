/* Modules and libraries. Where the driver loads code when it is first launched, as it does by default since CUDA 12.2, they
 * take nothing; where it loads them whole, what that takes is measured, and limited by the size of the image. */
#ifndef VGPU_MODULE_H
#define VGPU_MODULE_H

#include "measure.h"

struct vgpu_loading {
    struct vgpu_measure measure;
    uint64_t most; /* bytes that it can take */
};

/* Before a module is loaded from an image in memory, or from a file. */
void vgpu_module_begin(struct vgpu_loading *loading, const void *image);
void vgpu_module_begin_file(struct vgpu_loading *loading, const void *path);

/* Charges it. The result; *undo: it does not fit, and must be unloaded. */
int vgpu_module_end(struct vgpu_loading *loading, void *place, int result, bool *undo);

#endif
