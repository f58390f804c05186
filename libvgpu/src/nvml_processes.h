/* NVML's lists of processes, and of what they do: without processes of other containers. */
#ifndef VGPU_NVML_PROCESSES_H
#define VGPU_NVML_PROCESSES_H

#include "driver_nvml.h"

/* What NVML answers who has no room at all, and asks how many entries there are. */
enum vgpu_without_room { VGPU_NO_ROOM_IS_ERROR, VGPU_NO_ROOM_ASKS };

/* One of these lists, which `real` gives. */
int vgpu_nvml_processes(vgpu_list real, void *device, void *count, void *entries, struct vgpu_entry entry,
                        enum vgpu_without_room without_room);

#endif
