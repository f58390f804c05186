#include "capture.h"

#include "resolve.h"

enum vgpu_capturing vgpu_capturing(void *stream, bool per_thread)
{
    uint32_t status = 0;
    int result = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);
    return result != CUDA_OK ? CAPTURE_UNKNOWN : status ? CAPTURING : NOT_CAPTURING;
}

uint32_t vgpu_relax(void)
{
    uint32_t mode = CAPTURE_MODE_RELAXED;
    if (HAS(cuThreadExchangeStreamCaptureMode))
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

void vgpu_restore(uint32_t mode)
{
    if (HAS(cuThreadExchangeStreamCaptureMode))
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}
