/* NVML: what it tells programs about memory, and what the limiter asks it where CUDA cannot answer. */
#ifndef VGPU_NVML_H
#define VGPU_NVML_H

#include "types.h"

int vgpu_nvml_count(void); /* 0 if NVML is not there */
bool vgpu_nvml_uuid(int number, char *text, uint32_t size);

/* Free bytes of the whole device at a place of the limits. */
bool vgpu_nvml_free(int index, uint64_t *bytes);

#endif
