/* A library that is linked with the driver, as cuBLAS and cuDNN are. Loaded with RTLD_DEEPBIND, it finds the driver first. */
#include <cuda.h>

int deep_alloc(size_t size);

int deep_alloc(size_t size)
{
    CUcontext context;
    CUdeviceptr address;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return -1;
    return (int)cuMemAlloc(&address, size);
}
