/* The driver's own functions, and which of them a program is to get from us instead. */
#ifndef VGPU_RESOLVE_H
#define VGPU_RESOLVE_H

#include "hooks.h"
#include "types.h"

struct vgpu_known {
    void *wrapper;       /* NULL: the limiter calls it but does not hook it */
    uint16_t name, base; /* places in vgpu_names: a pointer to each would be a relocation of 24 bytes */
    uint32_t version;    /* from which on cuGetProcAddress knows it by `base` */
    bool per_thread, nvml;
    bool copy; /* a program gets the wrapper only where copies are charged */
};

extern const char vgpu_names[];

extern const struct vgpu_known vgpu_known[SYMBOL_COUNT];
extern _Atomic(void *) vgpu_real[SYMBOL_COUNT];

/* Resolves everything. Loads the driver only if `load`; false if it is not there. */
bool vgpu_resolve_driver(bool load);
bool vgpu_resolve_nvml(bool load);

/* The function of the driver, or one with any parameters that returns an error. */
void *vgpu_resolve(enum vgpu_symbol symbol);

/* What a program gets that has asked cuGetProcAddress: our wrapper, or the driver's answer if we hook no such function. */
void *vgpu_wrapper_of(void *address, const char *name, uint32_t version, uint64_t flags);

static inline void *vgpu_real_of(enum vgpu_symbol symbol)
{
    VGPU_CALLS_DRIVER();
    void *address = atomic_load_explicit(&vgpu_real[symbol], memory_order_acquire);
    return LIKELY(address != NULL) ? address : vgpu_resolve(symbol);
}

#define REAL(name) ((type_##name)vgpu_real_of(SYMBOL_##name))
#define HAS(name) (vgpu_resolve_driver(false) && atomic_load(&vgpu_real[SYMBOL_##name]) != NULL)

#endif
