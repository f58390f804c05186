/* What the limiter itself asks NVML, where CUDA cannot answer. */
#ifndef VGPU_DRIVER_NVML_H
#define VGPU_DRIVER_NVML_H

#include "types.h"

int vgpu_nvml_count(void); /* 0 if NVML is not there */
bool vgpu_nvml_uuid(int number, char *text, uint32_t size);

/* Bytes of this process on a device. False, and 0 bytes, if NVML does not list it. */
bool vgpu_nvml_used(const char *uuid, uint64_t *bytes);

/* Free bytes of a whole device. */
bool vgpu_nvml_free(const char *uuid, uint64_t *bytes);

#endif
