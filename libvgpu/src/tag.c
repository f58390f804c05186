#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tag.h"

#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

enum { TAGS_TEXT = 8192, LOCK_MS = 20 };

/* Names of files: 61 random bits above this one, so that the byte they lock is a valid place in a file. */
static const uint64_t FIRST_TAG = (uint64_t)1 << 61;

uint64_t vgpu_name_of(const void *bytes, size_t size, uint64_t more)
{
    uint64_t hash = 0xcbf29ce484222325u ^ more;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
    return hash ? hash : 1;
}

uint64_t vgpu_new_name(void)
{
    static _Atomic uint64_t last;
    uint64_t number[3] = {vgpu_now(), (uint64_t)getpid(), atomic_fetch_add(&last, 1)};
    uint64_t random = 0;
#ifdef SYS_getrandom
    if (syscall(SYS_getrandom, &random, sizeof random, 1 /* do not wait */) != sizeof random)
        random = 0;
#endif
    return FIRST_TAG | (vgpu_name_of(number, sizeof number, random) & (FIRST_TAG - 1));
}

/* The lowest name among the locks of the open file, as the kernel lists them:
 *
 *     lock:	1: OFDLCK ADVISORY  READ  -1 00:05:123 2305843009213693952 2305843009213693952
 */
static uint64_t read_tag(int file)
{
    char path[48], text[TAGS_TEXT];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", file);
    int about = open(path, O_RDONLY | O_CLOEXEC);
    if (about < 0)
        return 0;
    ssize_t length = 0, more;
    while (length < (ssize_t)sizeof text - 1 && (more = read(about, text + length, sizeof text - 1 - (size_t)length)) > 0)
        length += more;
    close(about);
    text[length] = '\0';
    uint64_t found = 0;
    for (const char *line = strstr(text, "lock:"); line; line = strstr(line + 1, "lock:")) {
        unsigned long long from = 0, to = 0;
        int fields = sscanf(line, "lock: %*d: OFDLCK %*s READ %*d %*x:%*x:%*u %llu %llu", &from, &to);
        if (fields == 2 && from == to && from >= FIRST_TAG && from < FIRST_TAG * 2 && (!found || from < found))
            found = from;
    }
    return found;
}

uint64_t vgpu_tag(int file, uint64_t name)
{
    int saved = errno;
    uint64_t found = read_tag(file);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)name, .l_len = 1};
    if (!found && name && fcntl(file, F_OFD_SETLK, &lock) == 0)
        found = read_tag(file); /* not where the kernel does not show it */
    errno = saved;
    return found;
}

/* Processes that get the same file at the same time must find the same name: one after the other. */
uint64_t vgpu_tag_of(int file)
{
    struct vgpu_process *process = &vgpu_process;
    uint64_t found = vgpu_tag(file, 0);
    if (found)
        return found;
    int lock = process->shares ? vgpu_file_lock(process->config.region, LOCK_MS) : -1;
    if (process->shares && lock < 0)
        return 0;
    found = vgpu_tag(file, vgpu_new_name());
    if (process->shares)
        vgpu_file_unlock(lock);
    return found;
}
