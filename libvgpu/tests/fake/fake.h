/* What the fake driver and the fake NVML share: one machine with GPUs, in a file that all processes map. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_DEVICES = 16, FAKE_PROCESSES = 4096, FAKE_SHARES = 1024, FAKE_HOLDERS = 16 };

struct fake_process {
    int32_t pid;
    uint32_t start;
    uint64_t space; /* inode of its PID namespace */
    int64_t used[FAKE_DEVICES];
    _Atomic uint64_t busy[FAKE_DEVICES];
};

/* Memory that several processes hold. It counts for the first of them, then for the next, and goes with the last. */
struct fake_share {
    int64_t size;
    int32_t card, holders;
    int32_t holder[FAKE_HOLDERS]; /* their places among the processes; one may hold it twice */
    int32_t pooled;               /* counted by a pool of the first holder, as long as that holds it */
    int32_t serial;               /* no other share ever has it */
    int32_t pool, ordinal;        /* number of the pool, and of the pointer in it */
};

struct fake_machine {
    _Atomic int ready;
    int32_t processes;
    int64_t used[FAKE_DEVICES];
    int64_t peak[FAKE_DEVICES];
    _Atomic uint64_t busy_until[FAKE_DEVICES];
    _Atomic uint64_t launches[FAKE_DEVICES];
    struct fake_process process[FAKE_PROCESSES];
    struct fake_share share[FAKE_SHARES];
    int32_t serials; /* of shares and pools */
    pthread_mutex_t lock; /* robust; its size is that of the architecture */
};

struct fake_row {
    const char *base;
    int version;
    int per_thread;
    const char *symbol;
    void *address, *thunk; /* the second jumps to the first */
};

extern const struct fake_row fake_rows[];
extern const int fake_row_count;

extern __thread bool fake_low; /* memory gets an address below 4 GiB */

long fake_number(const char *name, long otherwise);
struct fake_machine *fake_machine(void);
void fake_lock(void);
void fake_unlock(void);
void fake_prune(void);

/* Memory that a process, by its place, has is shared from now on: the number of the share. The caller locks. */
int fake_share(int card, int64_t size, int holder, bool pooled);
bool fake_hold(int share, int holder);
void fake_leave(int share, int holder);
uint64_t fake_space(void);
void fake_uuid(int device, char *text); /* 41 bytes */

#endif
