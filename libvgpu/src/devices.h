/* CUDA device numbers and places in the limits, matched by UUID. */
#ifndef VGPU_DEVICES_H
#define VGPU_DEVICES_H

#include "types.h"

/* Place of a CUDA device in the limits. -1 if the driver does not know the device. */
int vgpu_index_of(int ordinal);

/* Place of the device on which memory with that location (CUmemLocation) is. -1 if it is not on a device, as above. */
int vgpu_index_at(uint32_t location, uint32_t id);

/* The same for a UUID in text form; -1 if it is not there. */
int vgpu_index_of_uuid(const char *uuid);

/* The UUID at a place; empty if it is not known yet. */
const char *vgpu_uuid_at(int index);

/* The CUDA device number of a place that has been asked for; 0 if none has. */
int vgpu_ordinal_of(int index);

/* The CUDA device number of a stream, -1 if it is not known. The driver is asked only if the process uses several. */
int vgpu_stream_ordinal(void *stream);

/* Device and context of the calling thread; of a green context, the primary one. False if it has none: the driver then says what
 * is wrong. */
bool vgpu_current(int *index, uint64_t *context);

#endif
