/* Captures of streams into graphs: what the limiter calls must neither break one nor become part of it. */
#ifndef VGPU_CAPTURE_H
#define VGPU_CAPTURE_H

#include "types.h"

enum vgpu_capturing { NOT_CAPTURING, CAPTURING, CAPTURE_UNKNOWN };

/* A capture has begun, or ended, with that result of the driver's. */
int vgpu_capture_begun(int result);
int vgpu_capture_ended(int result);

/* Whether what is done in the stream is recorded. Unknown: the driver does not say. */
enum vgpu_capturing vgpu_capturing(void *stream, bool per_thread);

/* Between the two, this thread may make calls that would otherwise break captures, its own or those of others. */
uint32_t vgpu_relax(void);
void vgpu_restore(uint32_t mode);

#endif
