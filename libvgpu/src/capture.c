#include "capture.h"

#include "resolve.h"

enum { CAPTURE_ERRORS = 900, CAPTURE_ERRORS_END = 910 };

/* Captures that go on in this process, or more: a stream may go while it is captured. */
static _Atomic int count;

int vgpu_capture_begun(int result)
{
    if (result == CUDA_OK)
        atomic_fetch_add(&count, 1);
    return result;
}

/* It ends also if it is found to be broken then. */
int vgpu_capture_ended(int result)
{
    int before = atomic_load(&count);
    bool ended = result == CUDA_OK || (result >= CAPTURE_ERRORS && result < CAPTURE_ERRORS_END);
    while (ended && before > 0 && !atomic_compare_exchange_weak(&count, &before, before - 1))
        continue;
    return result;
}

enum vgpu_capturing vgpu_capturing(void *stream, bool per_thread)
{
    uint32_t status = 0;
    if (LIKELY(atomic_load_explicit(&count, memory_order_relaxed) == 0))
        return NOT_CAPTURING;
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
