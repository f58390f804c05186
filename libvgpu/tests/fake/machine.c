#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

long fake_number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

static struct fake_machine *make(int file)
{
    struct fake_machine *machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE,
                                        file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    int none = 0;
    if (atomic_compare_exchange_strong(&machine->ready, &none, 1)) {
        pthread_mutexattr_t kind;
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&machine->lock, &kind);
        atomic_store(&machine->ready, 2);
    }
    while (atomic_load(&machine->ready) != 2)
        usleep(100);
    return machine;
}

struct fake_machine *fake_machine(void)
{
    static _Atomic(struct fake_machine *) known;
    struct fake_machine *machine = atomic_load(&known);
    if (machine)
        return machine;
    const char *path = getenv("FAKE_CUDA_STATE");
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0 && ftruncate(file, sizeof *machine) != 0)
        abort();
    struct fake_machine *made = make(file);
    if (file >= 0)
        close(file);
    if (!atomic_compare_exchange_strong(&known, &machine, made)) {
        munmap(made, sizeof *made);
        return machine;
    }
    return made;
}

uint64_t fake_space(void)
{
    struct stat about;
    return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

/* True for one that has ended; a zombie has given up its memory. Those of other containers cannot be seen. */
static bool is_gone(const struct fake_process *process)
{
    if (process->space != fake_space())
        return false;
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return true;
    text[length] = '\0';
    char *at = strrchr(text, ')');
    char state = at[2];
    long threads = 0;
    for (int field = 3; field < 22; field++) {
        at = strchr(at + 1, ' ');
        if (field == 20)
            threads = atol(at);
    }
    at = strchr(at + 1, ' ');
    return ((state == 'Z' || state == 'X') && threads <= 1)
        || (process->start && process->start != (uint32_t)strtoull(at, NULL, 10));
}

/* Memory of processes that are gone is free. The caller locks. */
void fake_prune(void)
{
    struct fake_machine *machine = fake_machine();
    memset(machine->used, 0, sizeof machine->used);
    for (int i = 0; i < machine->processes; i++) {
        struct fake_process *process = &machine->process[i];
        if (process->pid && is_gone(process))
            memset(process, 0, sizeof *process);
        for (int d = 0; d < FAKE_DEVICES; d++)
            machine->used[d] += process->used[d];
    }
}

void fake_lock(void)
{
    if (pthread_mutex_lock(&fake_machine()->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&fake_machine()->lock);
        fake_prune();
    }
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&fake_machine()->lock);
}

void fake_uuid(int device, char *text)
{
    int c = 0x11 * (device + 1);
    snprintf(text, 41, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             c, c, c, c, c, c, c, c, c, c, c, c, c, c, c, c);
}
