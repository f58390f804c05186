/* What the limiter itself asks NVML, where CUDA cannot answer. */
#ifndef VGPU_DRIVER_NVML_H
#define VGPU_DRIVER_NVML_H

#include "types.h"

int vgpu_nvml_count(void); /* 0 if NVML is not there */
bool vgpu_nvml_uuid(int number, char *text, uint32_t size);

/* An entry of one of NVML's lists of processes: bytes, and where the process number is. */
struct vgpu_entry {
    uint32_t size, number;
};

/* Such a list, in memory of the kernel's that the caller unmaps. */
typedef int (*vgpu_list)(void *device, void *count, void *entries);
struct vgpu_listing {
    struct vgpu_entry entry;
    char *entries;
    uint64_t bytes;
    uint32_t count;
};

/* The whole list; 0, or the error of NVML. */
int vgpu_nvml_list(vgpu_list real, void *device, struct vgpu_entry entry, struct vgpu_listing *all);
uint32_t vgpu_process_at(const struct vgpu_listing *all, uint32_t i);

/* The numbers, in this container or on the host, of the processes on a device. */
struct vgpu_pids {
    bool told; /* NVML lists processes, and not more than there is room for */
    uint32_t count, pid[128];
};

/* Bytes of this process on a device. False, and 0 bytes, if NVML does not list it. `all`: those that it lists, or NULL. */
bool vgpu_nvml_used(const char *uuid, uint64_t *bytes, struct vgpu_pids *all);

/* The least that a process has which was not there before. False if there is none, or NVML does not tell. */
bool vgpu_nvml_least_new(const char *uuid, const struct vgpu_pids *before, uint64_t *bytes);

/* Free bytes of a whole device. */
bool vgpu_nvml_free(const char *uuid, uint64_t *bytes);

#endif
