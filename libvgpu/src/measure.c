#include "measure.h"

#include "account.h"
#include "capture.h"
#include "devices.h"
#include "process.h"
#include "resolve.h"

static bool free_bytes(const struct vgpu_measure *measure, uint64_t *bytes)
{
    uint64_t total;
    if (measure->by_nvml)
        return vgpu_nvml_free(vgpu_uuid_at(measure->index), bytes);
    uint32_t mode = vgpu_relax();
    int result = REAL(cuMemGetInfo_v2)(bytes, &total);
    vgpu_restore(mode);
    return result == CUDA_OK;
}

void vgpu_measure_begin(struct vgpu_measure *measure, int ordinal, bool has_context)
{
    measure->index = vgpu_attach() ? vgpu_index_of(ordinal) : -1;
    if (measure->index < 0)
        return;
    measure->by_nvml = !has_context;
    measure->counted = vgpu_usage(measure->index);
    if (!free_bytes(measure, &measure->free))
        measure->index = -1;
}

uint64_t vgpu_measure_taken(const struct vgpu_measure *measure, uint64_t most)
{
    uint64_t now;
    if (measure->index < 0 || !free_bytes(measure, &now))
        return 0;
    int64_t charged = (int64_t)(vgpu_usage(measure->index) - measure->counted);
    int64_t taken = (int64_t)(measure->free - now) - charged;
    return taken <= 0 ? 0 : (uint64_t)taken > most ? most : (uint64_t)taken;
}

/* In a container, some drivers list the processes of the host: one of them may have the number of this one, which has nothing. */
bool vgpu_own_begin(struct vgpu_own *own, int index, bool has_context)
{
    own->index = index;
    own->counted = vgpu_counted(index);
    bool listed = vgpu_nvml_used(vgpu_uuid_at(index), &own->used, has_context ? NULL : &own->before);
    own->told = has_context ? listed && own->counted : !listed || own->counted;
    return own->told;
}

bool vgpu_own_change(const struct vgpu_own *own, int64_t *bytes)
{
    uint64_t used;
    if (!own->told || !vgpu_nvml_used(vgpu_uuid_at(own->index), &used, NULL))
        return false;
    *bytes = (int64_t)(used - own->used) - (int64_t)(vgpu_counted(own->index) - own->counted);
    return true;
}

bool vgpu_own_first(const struct vgpu_own *own, uint64_t *bytes)
{
    return vgpu_nvml_least_new(vgpu_uuid_at(own->index), &own->before, bytes);
}
