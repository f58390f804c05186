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
        pthread_mutex_init(&machine->clock, &kind);
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

int fake_share(int card, int64_t size, int holder, bool pooled)
{
    struct fake_machine *machine = fake_machine();
    for (int i = 0; i < FAKE_SHARES; i++)
        if (!machine->share[i].holders) {
            machine->share[i] = (struct fake_share){.size = size, .card = card, .holders = 1, .holder = {holder},
                                                      .pooled = pooled, .serial = ++machine->serials};
            return i + 1;
        }
    abort();
}

bool fake_hold(int number, int holder)
{
    struct fake_share *share = &fake_machine()->share[number - 1];
    if (!share->holders || share->holders == FAKE_HOLDERS)
        return false;
    share->holder[share->holders++] = holder;
    return true;
}

static void count(const struct fake_share *share, int sign)
{
    struct fake_machine *machine = fake_machine();
    if (share->pooled)
        return;
    machine->process[share->holder[0]].used[share->card] += sign * share->size;
    machine->used[share->card] += sign * share->size;
}

void fake_leave(int number, int holder)
{
    struct fake_share *share = &fake_machine()->share[number - 1];
    int at = 0;
    while (at < share->holders && share->holder[at] != holder)
        at++;
    if (at == share->holders)
        return;
    count(share, -1);
    share->holders--;
    share->pooled = share->pooled && at > 0;
    memmove(&share->holder[at], &share->holder[at + 1], (size_t)(share->holders - at) * sizeof *share->holder);
    if (share->holders)
        count(share, 1);
}

static void leave_all(int holder)
{
    for (int i = 0; i < FAKE_SHARES; i++)
        for (int left = fake_machine()->share[i].holders; left; left--)
            fake_leave(i + 1, holder);
}

/* Memory of processes that are gone is free, unless others hold it. The caller locks. */
void fake_prune(void)
{
    struct fake_machine *machine = fake_machine();
    for (int i = 0; i < machine->processes; i++) {
        struct fake_process *process = &machine->process[i];
        if (process->pid && is_gone(process)) {
            leave_all(i);
            memset(process, 0, sizeof *process);
            memset(&machine->suspension[i], 0, sizeof machine->suspension[i]);
            memset(machine->contexts[i], 0, sizeof machine->contexts[i]);
        }
    }
    memset(machine->used, 0, sizeof machine->used);
    for (int i = 0; i < machine->processes; i++) {
        const struct fake_process *process = &machine->process[i];
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
