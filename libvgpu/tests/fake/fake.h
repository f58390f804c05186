/* What the fake driver and the fake NVML share: one machine with GPUs, in a file that all processes map. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_DEVICES = 16, FAKE_PROCESSES = 4096, FAKE_SHARES = 1024, FAKE_HOLDERS = 16 };
enum { FAKE_GROUPS = 64, FAKE_PATH = 256 };
enum { FAKE_RUNNERS = 128, FAKE_QUEUE = 2048, FAKE_SLICES = 4096 };

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

/* A kernel, or a graph: nanoseconds. */
struct fake_kernel {
    uint64_t release; /* it begins no earlier */
    uint64_t left;
    uint64_t done; /* when it was done */
};

/* A process on a card. Its kernels run one after the other, in the order of their launches. */
struct fake_runner {
    int32_t pid, place; /* among the processes */
    uint32_t start;
    bool asks; /* for a time slice, though it may have no kernel */
    uint64_t space;
    uint64_t queued, finished; /* kernels, ever; number n is in kernel[n % FAKE_QUEUE], and the first one is 1 */
    uint64_t slices;           /* time slices, ever; when number n began is in began[n % FAKE_SLICES] */
    struct fake_kernel kernel[FAKE_QUEUE];
    uint64_t began[FAKE_SLICES];
};

/* A card that gives time slices to the processes that have work, in turn. It is brought up to the present by whoever looks. */
struct fake_card {
    uint64_t now, slice_end;
    int32_t runs, last; /* places of runners; runs is 0 for none, else the place + 1 */
    int32_t runners;
    struct fake_runner runner[FAKE_RUNNERS];
};

/* Limits of a control group. */
struct fake_group {
    char path[FAKE_PATH]; /* its directory; empty for none */
    uint64_t inode;
    uint64_t soft[FAKE_DEVICES], hard[FAKE_DEVICES];
};

/* Of a process: its state, as cuda.h numbers them, its threads that are in the driver, and what it had on the cards. */
struct fake_suspension {
    _Atomic int state, inside;
    int64_t away[FAKE_DEVICES];
};

struct fake_machine {
    _Atomic int ready;
    int32_t processes;
    int64_t used[FAKE_DEVICES];
    int64_t peak[FAKE_DEVICES];
    _Atomic uint64_t slices[FAKE_DEVICES]; /* how often a card has changed to another process */
    _Atomic uint64_t launches[FAKE_DEVICES];
    struct fake_process process[FAKE_PROCESSES];
    struct fake_share share[FAKE_SHARES];
    int32_t serials; /* of shares and pools */
    struct fake_card card[FAKE_DEVICES];
    pthread_mutex_t lock, clock; /* robust; their size is that of the architecture */
    struct fake_group group[FAKE_GROUPS];
    char cgroup[FAKE_PROCESSES][FAKE_PATH]; /* of each process, its control group */
    struct fake_suspension suspension[FAKE_PROCESSES];
    int32_t contexts[FAKE_PROCESSES][FAKE_DEVICES]; /* of each process; changed under the lock */
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

uint64_t fake_now(void); /* monotonic nanoseconds */
void fake_sleep_until(uint64_t when);

/* Kernels of the process at that place. Numbers count from 1; number 0 is done at once. */
uint64_t fake_launch(int card, int place, uint64_t latency, uint64_t after, uint64_t duration);
bool fake_is_done(int card, int place, uint64_t kernel, uint64_t *when);
void fake_wait(int card, int place, uint64_t kernel);
uint64_t fake_backlog(int card, int place); /* nanoseconds */

/* A command that has nothing to wait for is carried out when its process has the card: at once, or when that time slice begins.
 * Returns the number of that slice, or 0 with the time. */
uint64_t fake_command(int card, int place, uint64_t *when);
bool fake_has_begun(int card, int place, uint64_t slice, uint64_t *when);

/* Memory that a process, by its place, has is shared from now on: the number of the share. The caller locks. */
int fake_share(int card, int64_t size, int holder, bool pooled);
bool fake_hold(int share, int holder);
void fake_leave(int share, int holder);
uint64_t fake_space(void);

/* Around a call of the driver by the process at that place, -1 for none: a process that is locked waits. */
int fake_enter(int place);
void fake_left(int *place);

void fake_uuid(int device, char *text); /* 41 bytes */

/* Control groups; the caller locks. */
bool fake_wall_is(const char *name);
bool fake_group_has_files(const char *path);
struct fake_group *fake_find_group(const char *path); /* NULL for one without limits */
struct fake_group *fake_make_group(const char *path); /* NULL for one that does not exist */
uint64_t fake_group_used(const char *path, int card);
uint64_t fake_group_left(int place, int card, uint64_t *total);
void fake_join_group(int place);

#endif
