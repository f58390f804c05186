/* NVML: what it tells programs about memory and processes, and what the limiter asks it where CUDA cannot answer. */
#ifndef VGPU_NVML_H
#define VGPU_NVML_H

#include "types.h"

int vgpu_nvml_count(void); /* 0 if NVML is not there */
bool vgpu_nvml_uuid(int number, char *text, uint32_t size);

/* Free bytes of the whole device at a place of the limits. */
bool vgpu_nvml_free(int index, uint64_t *bytes);

/* One of NVML's lists of processes, which `real` gives, without those of other containers. An entry has `size` bytes. */
typedef int (*vgpu_list)(void *device, void *count, void *entries);
int vgpu_nvml_processes(vgpu_list real, void *device, void *count, void *entries, uint32_t size);

#endif
