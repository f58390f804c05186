#include "liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct process_stat {
    char state;
    long threads;
    unsigned long long start;
};

/* Fields 3, 20 and 22 of /proc/PID/stat. The name before them may hold any byte, so they are found from its end. */
static bool read_stat(const char *path, struct process_stat *found)
{
    char text[1024];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = '\0';
    char *at = strrchr(text, ')');
    if (!at || !at[1])
        return false;
    found->state = at[2];
    for (int field = 3; field <= 22; field++) {
        at = strchr(at + 1, ' ');
        if (!at)
            return false;
        if (field == 20)
            found->threads = strtol(at, NULL, 10);
        if (field == 22)
            found->start = strtoull(at, NULL, 10);
    }
    return true;
}

static uint64_t namespace_number(void)
{
    struct stat about;
    return stat("/proc/self/ns/pid", &about) == 0 ? (uint32_t)about.st_ino : 0;
}

uint64_t vgpu_identity(void)
{
    struct process_stat found;
    if (!read_stat("/proc/self/stat", &found))
        return 0;
    return namespace_number() << 32 | (uint32_t)found.start;
}

bool vgpu_is_elsewhere(uint64_t identity)
{
    return identity && identity >> 32 != namespace_number();
}

bool vgpu_is_dead(int32_t pid, uint64_t identity)
{
    if (pid <= 0)
        return true;
    if (vgpu_is_elsewhere(identity))
        return false;
    if (kill(pid, 0) != 0 && errno == ESRCH)
        return true;
    char path[32];
    struct process_stat found;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!read_stat(path, &found))
        return false;
    /* A zombie has given up its memory, but its first thread may have ended while others go on. */
    if ((found.state == 'Z' || found.state == 'X') && found.threads <= 1)
        return true;
    return identity && (uint32_t)identity != (uint32_t)found.start;
}
