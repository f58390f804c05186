/* Graphs: a launch counts as one kernel, their memory is charged when they are instantiated. */
#ifndef VGPU_GRAPH_H
#define VGPU_GRAPH_H

#include "types.h"

/* Before a graph is instantiated: charges what it will take on each device. 0, or why it must not be. */
int vgpu_graph_begin(void *graph, uint64_t bytes[VGPU_DEVICES]);
int vgpu_graph_end(void *place, const uint64_t bytes[VGPU_DEVICES], int result);

#endif
