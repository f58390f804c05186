/* The driver's own functions, and which of them a program is to get from us instead. */
#ifndef VGPU_RESOLVE_H
#define VGPU_RESOLVE_H

#include "hooks.h"
#include "types.h"

struct vgpu_known {
    const char *name;
    void *wrapper; /* NULL: the limiter calls it but does not hook it */
    bool nvml;
};

extern const struct vgpu_known vgpu_known[SYMBOL_COUNT];
extern _Atomic(void *) vgpu_real[SYMBOL_COUNT];

/* Resolves everything. Loads the driver only if `load`; false if it is not there. */
bool vgpu_resolve_driver(bool load);
bool vgpu_resolve_nvml(bool load);

/* The function of the driver, or one with any parameters that returns an error. */
void *vgpu_resolve(enum vgpu_symbol symbol);

/* Our wrapper for an address of the driver's; the address itself if there is none. */
void *vgpu_wrapper_of(void *address);

static inline void *vgpu_real_of(enum vgpu_symbol symbol)
{
    void *address = atomic_load_explicit(&vgpu_real[symbol], memory_order_acquire);
    return LIKELY(address != NULL) ? address : vgpu_resolve(symbol);
}

#define REAL(name) ((type_##name)vgpu_real_of(SYMBOL_##name))
#define HAS(name) (vgpu_resolve_driver(false) && atomic_load(&vgpu_real[SYMBOL_##name]) != NULL)

#endif
