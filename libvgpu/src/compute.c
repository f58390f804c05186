#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "compute.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint32_t MAGIC = 0x314d5348;
static const uint64_t REAP_INTERVAL = 100000000;

static int open_file(const char *path)
{
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    struct stat about;
    int file = open(path, flags);
    if (file < 0 && errno == ENOENT) {
        file = open(path, flags | O_CREAT | O_EXCL, 0666);
        if (file >= 0)
            fchmod(file, 0666);
        else
            file = open(path, flags);
    }
    if (file < 0)
        return -1;
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode)
        && (about.st_size == COMPUTE_FILE || (about.st_size == 0 && posix_fallocate(file, 0, COMPUTE_FILE) == 0)))
        return file;
    close(file);
    return -1;
}

struct vgpu_compute *vgpu_compute_open(const char *path)
{
    int file = *path ? open_file(path) : -1;
    void *at = mmap(NULL, COMPUTE_FILE, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
                    file, 0);
    if (file >= 0)
        close(file);
    if (at == MAP_FAILED)
        return NULL;
    struct vgpu_compute *compute = at;
    compute->version = 1;
    atomic_store(&compute->magic, MAGIC);
    return compute;
}

void vgpu_compute_close(struct vgpu_compute *compute)
{
    if (compute)
        munmap(compute, COMPUTE_FILE);
}

bool vgpu_compute_is_due(struct vgpu_compute *compute, uint64_t now)
{
    if (!compute)
        return false;
    uint64_t last = atomic_load(&compute->reaped);
    return (now - last > REAP_INTERVAL || last > now) && atomic_compare_exchange_strong(&compute->reaped, &last, now);
}
