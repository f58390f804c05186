/* Contexts take memory of the device by themselves, which is measured. With a context goes all that it held. */
#include "account.h"
#include "devices.h"
#include "launch.h"
#include "log.h"
#include "measure.h"
#include "nvml.h"
#include "process.h"
#include "resolve.h"

/* A context that seems to take more was made while another tenant took memory: not ours to pay. */
static const uint64_t MOST = (uint64_t)2 << 30;

struct making {
    int index; /* -1: not measured */
    bool by_nvml;
    uint64_t free, counted;
};

static bool free_bytes(int index, bool by_nvml, uint64_t *bytes)
{
    uint64_t total;
    return by_nvml ? vgpu_nvml_free(index, bytes) : REAL(cuMemGetInfo_v2)(bytes, &total) == 0;
}

/* NVML is asked where the thread has no context of the device yet, which is the rule for the first one. */
static void begin(struct making *making, int ordinal)
{
    uint32_t current;
    making->index = vgpu_attach() ? vgpu_index_of(ordinal) : -1;
    if (making->index < 0)
        return;
    making->by_nvml = REAL(cuCtxGetDevice)(&current) != 0 || (int)current != ordinal;
    making->counted = vgpu_usage(making->index);
    if (!free_bytes(making->index, making->by_nvml, &making->free))
        making->free = 0;
}

static uint64_t taken(const struct making *making)
{
    uint64_t now;
    if (!making->free || !free_bytes(making->index, making->by_nvml, &now))
        return 0;
    int64_t bytes = (int64_t)(making->free - now) - (int64_t)(vgpu_usage(making->index) - making->counted);
    return bytes > 0 && (uint64_t)bytes <= MOST ? (uint64_t)bytes : 0;
}

/* Charges the context. 0, or 2: the caller destroys it again. */
static int end(const struct making *making, void *context)
{
    if (making->index < 0)
        return CUDA_OK;
    uint64_t bytes = taken(making);
    int result = vgpu_charge(making->index, bytes, PART_CONTEXT);
    if (result == CUDA_OK)
        vgpu_object_put(context, making->index, bytes, (uint64_t)(uintptr_t)context, KIND_CONTEXT, PART_CONTEXT);
    else
        LOG_ONCE(LOG_WARNING, "a context takes %llu bytes, which do not fit in the memory limit",
                 (unsigned long long)bytes);
    return result;
}

static bool is_active(uint32_t device)
{
    uint32_t flags = 0, active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == 0 && active;
}

int cuDevicePrimaryCtxRetain(void *context, uint32_t device)
{
    if (!context || !vgpu_open())
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(cuDevicePrimaryCtxRetain)(context, device);
    vgpu_lock(&vgpu_process.context_lock);
    struct making making = {.index = -1};
    bool fresh = !is_active(device);
    if (fresh)
        begin(&making, (int)device);
    int result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result == CUDA_OK && fresh && (result = end(&making, *(void **)context)) != CUDA_OK)
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    vgpu_unlock(&vgpu_process.context_lock);
    return result;
}

/* The primary context of a device, as far as it has been charged; 0 if there is none. */
static uint64_t primary(uint32_t device)
{
    /* Only one context of a device is its own: it is found by asking for it once more. */
    void *context = NULL;
    if (!is_active(device) || REAL(cuDevicePrimaryCtxRetain)(&context, device) != 0)
        return 0;
    REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return (uint64_t)(uintptr_t)context;
}

enum ending { RELEASE, RELEASE_V1, RESET, RESET_V1 };

static int end_primary(enum ending ending, uint32_t device)
{
    switch (ending) {
    case RELEASE: return REAL(cuDevicePrimaryCtxRelease_v2)(device);
    case RELEASE_V1: return REAL(cuDevicePrimaryCtxRelease)(device);
    case RESET: return REAL(cuDevicePrimaryCtxReset_v2)(device);
    default: return REAL(cuDevicePrimaryCtxReset)(device);
    }
}

static int leave_primary(enum ending ending, uint32_t device)
{
    if (!vgpu_is_open())
        return end_primary(ending, device);
    vgpu_lock(&vgpu_process.context_lock);
    uint64_t context = primary(device);
    vgpu_launch_forget(context);
    int result = end_primary(ending, device);
    if (result == CUDA_OK && (ending == RESET || ending == RESET_V1 || !is_active(device)))
        vgpu_context_gone(context);
    vgpu_unlock(&vgpu_process.context_lock);
    return result;
}

int cuDevicePrimaryCtxRelease_v2(uint32_t device)
{
    return leave_primary(RELEASE, device);
}

int cuDevicePrimaryCtxRelease(uint32_t device)
{
    return leave_primary(RELEASE_V1, device);
}

int cuDevicePrimaryCtxReset_v2(uint32_t device)
{
    return leave_primary(RESET, device);
}

int cuDevicePrimaryCtxReset(uint32_t device)
{
    return leave_primary(RESET_V1, device);
}

#define CREATE(name, device, destroy, ...)                                     \
    if (!context || !vgpu_open())                                              \
        return vgpu_is_forbidden() ? CUDA_NOT_PERMITTED : REAL(name)(__VA_ARGS__); \
    vgpu_lock(&vgpu_process.context_lock);                            \
    struct making making;                                                      \
    begin(&making, (int)(device));                                             \
    int result = REAL(name)(__VA_ARGS__);                                      \
    if (result == CUDA_OK && (result = end(&making, *(void **)context)) != CUDA_OK) \
        REAL(destroy)(*(void **)context);                                      \
    vgpu_unlock(&vgpu_process.context_lock);                          \
    return result

int cuCtxCreate(void *context, uint32_t flags, uint32_t device)
{
    CREATE(cuCtxCreate, device, cuCtxDestroy_v2, context, flags, device);
}

int cuCtxCreate_v2(void *context, uint32_t flags, uint32_t device)
{
    CREATE(cuCtxCreate_v2, device, cuCtxDestroy_v2, context, flags, device);
}

int cuCtxCreate_v3(void *context, void *affinity, uint32_t count, uint32_t flags, uint32_t device)
{
    CREATE(cuCtxCreate_v3, device, cuCtxDestroy_v2, context, affinity, count, flags, device);
}

int cuCtxCreate_v4(void *context, void *parameters, uint32_t flags, uint32_t device)
{
    CREATE(cuCtxCreate_v4, device, cuCtxDestroy_v2, context, parameters, flags, device);
}

int cuGreenCtxCreate(void *context, void *resources, uint32_t device, uint32_t flags)
{
    CREATE(cuGreenCtxCreate, device, cuGreenCtxDestroy, context, resources, device, flags);
}

static void *going(void *context)
{
    if (vgpu_is_open())
        vgpu_launch_forget((uint64_t)(uintptr_t)context);
    return context;
}

static int gone(int result, void *context)
{
    if (result == CUDA_OK)
        vgpu_context_gone((uint64_t)(uintptr_t)context);
    return result;
}

int cuCtxDestroy_v2(void *context)
{
    return gone(REAL(cuCtxDestroy_v2)(going(context)), context);
}

int cuCtxDestroy(void *context)
{
    return gone(REAL(cuCtxDestroy)(going(context)), context);
}

int cuCtxDetach(void *context)
{
    return gone(REAL(cuCtxDetach)(going(context)), context);
}

int cuGreenCtxDestroy(void *context)
{
    return gone(REAL(cuGreenCtxDestroy)(going(context)), context);
}
