/* NVML: what programs are told about memory and processes. */
#ifndef VGPU_NVML_H
#define VGPU_NVML_H

#include "driver_nvml.h"

/* One of NVML's lists of processes, which `real` gives, without those of other containers. An entry has `size` bytes. */
int vgpu_nvml_processes(vgpu_list real, void *device, void *count, void *entries, uint32_t size);

#endif
