/* Names by which processes recognize memory that they share. */
#ifndef VGPU_TAG_H
#define VGPU_TAG_H

#include "types.h"

/* The name of what is known by its bytes; never 0. `more` tells equal bytes of different origin apart. */
uint64_t vgpu_name_of(const void *bytes, size_t size, uint64_t more);

/* A new name, never 0. */
uint64_t vgpu_new_name(void);

/* A file says nothing about the memory that it stands for. So the process that makes it gives it a name: a lock on one
 * byte far beyond its end, which belongs to the open file itself and goes wherever that is passed. It excludes nobody.
 *
 * vgpu_tag returns the name that the file has, or gives it that one. vgpu_tag_of returns the name of a file that was
 * passed to this process, and gives it one if it has none. 0: it cannot be done. */
uint64_t vgpu_tag(int file, uint64_t name);
uint64_t vgpu_tag_of(int file);

#endif
