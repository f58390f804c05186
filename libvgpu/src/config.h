/* Where limits come from: a read-only file beside the library, else the environment. */
#ifndef VGPU_CONFIG_H
#define VGPU_CONFIG_H

#include "types.h"

enum { UUID_TEXT = 48, PATH_TEXT = 4096 };

enum vgpu_policy { POLICY_DEFAULT, POLICY_FORCE, POLICY_DISABLE };

/* By what launches are charged: events around some of them, the monitor's samples of NVML, or nothing at all. */
enum vgpu_compute_by { BY_EVENTS, BY_NVML, BY_NOTHING };

/* What is charged: launches, or copies, fills, decompression and moving pages, too. */
enum vgpu_compute_of { OF_LAUNCHES, OF_ALL };

struct vgpu_device {
    char uuid[UUID_TEXT]; /* empty: known by its place only */
    uint64_t memory;      /* bytes, 0: no limit */
    uint64_t context;     /* bytes that a context takes; 0: not known */
    int cores;            /* percent, 100: no limit */
    int cores_most;       /* percent while the container is alone on the device; 0: as the policy says */
};

struct vgpu_config {
    bool valid;    /* false: limits are there but cannot be read; nothing may be used then */
    bool trusted;  /* limits come from the file */
    bool present;  /* there are limits or a region at all */
    int count;     /* devices in the file; 0 for the environment, which does not say */
    int priority;
    int log_level;
    enum vgpu_policy policy;
    enum vgpu_compute_by compute_by;
    enum vgpu_compute_of compute_of;
    char region[PATH_TEXT];
    char compute[PATH_TEXT];
    struct vgpu_device device[VGPU_DEVICES];
};

/* Reads the text of a limits file. Returns false, and leaves valid false, if any line cannot be used. */
bool vgpu_config_parse(struct vgpu_config *config, const char *text, size_t length);

/* The file at `limits` if there is one, else the environment. */
void vgpu_config_read(struct vgpu_config *config, const char *limits);

/* A file that has changed, into memory of the caller. False: it cannot be used, as while it is being written. */
bool vgpu_config_read_again(struct vgpu_config *config, const char *limits);

/* Bytes in a text such as "3000m". Returns false for anything but digits and one optional unit k, m or g. */
bool vgpu_parse_bytes(const char *text, uint64_t *bytes);

/* The path of the limits file: `limits` in the directory of this library. Returns false if it is not known. */
bool vgpu_limits_path(char *path, size_t size);

#endif
