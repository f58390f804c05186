/* A libcuda.so.1 that counts instead of computing.
 *
 * Device memory is host memory that is mapped when it is touched, so copies are real. Kernels compute nothing: one
 * named busy_N keeps the device busy for N microseconds on a clock that all processes share (card.c); one
 * named cycle_A_B_C takes A, then B, then C, then A again, period_N_A_B once A in N launches and else B. What a driver
 * refuses during a capture is refused here.
 * It must be linked with -Bsymbolic: its own calls must not pass through a preloaded library.
 *
 * What drivers do, and a test can ask for:
 *
 *   FAKE_CUDA_LAZY_US, FAKE_CUDA_LAZY_KIB  the first launch of a function loads code: takes that long, and that much memory
 *   FAKE_CUDA_SLICE_US     the time slice of a process, 2 ms if it is not set
 *   FAKE_CUDA_LATENCY_US   a kernel begins so long after its launch if its stream has nothing else to do
 *   FAKE_CUDA_COPY_US      copies and fills keep the device busy, for so many microseconds each MiB
 *   FAKE_CUDA_QUEUE        commands that a stream takes; a further one waits until the first of them is done
 *   FAKE_CUDA_CTX_US, FAKE_CUDA_MODULE_US  how long it takes to make a context, to load a module
 *   FAKE_CUDA_GREEN_MIB    what a green context takes beside the primary context, which it retains
 *   FAKE_CUDA_PAGE_MIB     plain memory of more than 1 MiB comes in pages of that size, 2 MiB if it is not set; 0: none
 *   FAKE_CUDA_MEET         a call of that name waits until another thread makes one, for 5 seconds at most, then fails
 *   FAKE_CUDA_TABLE        `thunk`: cuGetProcAddress answers with addresses that no symbol has; `alias`: one function has
 *                          the address of another one
 */
#define __CUDA_API_VERSION_INTERNAL
#include "fake.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB(n) ((int64_t)(n) << 20)
#define UNUSED __attribute__((unused))

enum { DEVICE_MEMORY, HOST_MEMORY, MANAGED_MEMORY, POOL_MEMORY, OPENED_MEMORY, OPENED_POOL_MEMORY,
       EXTERNAL_MEMORY };

/* What every context has: values of its limits. */
enum { STACK_BYTES = 1024, FIFO_MIB = 1, HEAP_MIB = 8, SYNC_LEVELS = 2, PENDING = 2048 };

/* Threads that the device runs at once; bytes of a level of synchronization, and of a launch that is pending. */
enum { THREADS = 132 * 2048, LEVEL_MIB = 150, PENDING_BYTES = 4096 };
enum { LIMITS = CU_LIMIT_MAX };

struct CUctx_st {
    int device;
    bool primary;
    int references;
    unsigned flags;
    int64_t limit[LIMITS], reserve[LIMITS]; /* values that were set, 0 for the usual one; bytes beyond what every context has */
    CUcontext primary_of_green;
};

enum { QUEUE_MOST = 4096 };

struct CUstream_st {
    uint64_t last; /* its last kernel */
    CUcontext context; /* NULL: of the current one */
    struct CUgraph_st *capture;
    CUstreamCaptureMode mode; /* of the capture, which this thread has begun */
    pthread_t thread;
    bool broken;
    uint64_t done[QUEUE_MOST]; /* the kernels before each of its last commands */
    unsigned commands;
};

/* What it waits for: a kernel, or a time slice; 0: nothing. */
struct CUevent_st {
    int device;
    uint64_t kernel, slice, time;
    bool open; /* among the open events */
};

struct CUmemPoolHandle_st {
    int device;
    int64_t used, reserved;
    cuuint64_t threshold;
    bool destroyed;
    struct CUmemPoolHandle_st *next; /* of those that can be made anew */
    int32_t number, pointers; /* by which other processes know it; how many pointers were exported */
    bool imported;
    CUmemAllocationType type;
    CUmemLocation location;
};

struct block {
    CUdeviceptr address;
    size_t size;
    int device, kind;
    void *owner; /* context or pool */
    struct block *next;
    int share, opened;
    int64_t taken; /* bytes of the card */
    struct physical *physical; /* of memory of a pool that was bound; of a buffer in external memory */
};

struct physical {
    int device;
    size_t size;
    int references, mappings, share;
    bool multicast;
    bool pooled;              /* a pool has the memory */
    struct binding *bindings; /* of a multicast object or logical endpoint, which takes no memory itself */
};

struct binding {
    size_t offset;
    struct physical *physical;
    struct binding *next;
};

struct mapping {
    CUdeviceptr address;
    size_t size;
    struct physical *physical;
    struct mapping *next;
};

struct CUgraphNode_st {
    CUgraphNodeType type;
    uint64_t duration;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUgraph child;
};

struct CUgraph_st {
    int count;
    struct CUgraphNode_st node[64];
};

struct CUgraphExec_st {
    uint64_t duration;
    int64_t bytes;
    bool launched;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before that one: primary contexts, limits, graphs */
static struct CUctx_st primaries[FAKE_DEVICES];
static struct CUmemPoolHandle_st default_pools[FAKE_DEVICES];
static CUmemoryPool current_pools[FAKE_DEVICES], managed_pools[FAKE_DEVICES];
static CUmemoryPool spare_pools;
static CUcontext spare_context;
static int64_t graph_reserved[FAKE_DEVICES], graph_needed[FAKE_DEVICES];
static __thread CUcontext stack[32];
static __thread int depth;
static __thread CUstreamCaptureMode capture_mode;
enum { CAPTURES = 16 };
static CUstream captures[CAPTURES];
static _Atomic int capture_count;
enum { BUCKETS = 4096 };
static struct block *blocks[BUCKETS];
static struct mapping *mappings;
static struct fake_process *self;
static int32_t initialized_by;
static struct CUstream_st legacy[FAKE_DEVICES], per_thread[FAKE_DEVICES];
__thread bool fake_low;

/* FAKE_CUDA_LOG names a file. */
static void say(const char *format, ...)
{
    static _Atomic int opened = -2;
    int file = opened;
    if (file == -2) {
        const char *path = getenv("FAKE_CUDA_LOG");
        opened = file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    }
    if (file < 0)
        return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length] = '\n';
    if (write(file, line, (size_t)length + 1) < 0)
        abort();
}

int cuda_fake_stub(const char *name);
int cuda_fake_stub(const char *name)
{
    static const char *const copies[] = {"cuMemcpy", "cuMemset", "cuMemPrefetch", "cuMemDiscardAndPrefetch",
                                         "cuMemBatchDecompress", "cuFabricCpy"};
    say("stub %s", name);
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (!strncmp(name, copies[i], strlen(copies[i])))
            return CUDA_SUCCESS; /* nobody looks at what was copied */
    return CUDA_ERROR_NOT_SUPPORTED;
}

static int place(void);

static CUcontext current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

/* The context with which goes what is made now. */
static CUcontext lasting(void)
{
    CUcontext context = current();
    return context && context->primary_of_green ? context->primary_of_green : context;
}

/* Whether this thread may not do now what could disturb a capture. If so, the captures are lost. */
static bool disturbs_capture(void)
{
    bool disturbed = false;
    if (!atomic_load(&capture_count) || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CAPTURES; i++) {
        CUstream stream = captures[i];
        if (!stream || stream->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            continue;
        bool own = pthread_equal(stream->thread, pthread_self());
        if (own || (stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL))
            stream->broken = disturbed = true;
    }
    pthread_mutex_unlock(&lock);
    return disturbed;
}

/* Waits for a second thread in the function that FAKE_CUDA_MEET names. */
static bool meets(const char *name)
{
    static _Atomic int there;
    const char *wanted = getenv("FAKE_CUDA_MEET");
    if (!wanted || strcmp(wanted, name))
        return true;
    int number = atomic_fetch_add(&there, 1), needed = number - number % 2 + 2;
    for (int i = 0; i < 5000 && atomic_load(&there) < needed; i++)
        usleep(1000);
    return atomic_load(&there) >= needed;
}

#define NEED_MEETING if (!meets(__func__)) return CUDA_ERROR_LAUNCH_TIMEOUT
#define CALLED say("call %s", __func__)
#define JOIN(one, other) one##other
#define NAME(one, other) JOIN(one, other)
#define ENTERED int NAME(entered, __LINE__) __attribute__((cleanup(fake_left), unused)) = fake_enter(initialized_by ? place() : -1)
#define NEED_CONTEXT ENTERED; if (!current()) return CUDA_ERROR_INVALID_CONTEXT
#define NEED_NO_CAPTURE if (disturbs_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
#define NEED_INIT if (!initialized_by) return CUDA_ERROR_NOT_INITIALIZED

/* -- devices */

static int visible(int list[FAKE_DEVICES])
{
    int count = (int)fake_number("FAKE_CUDA_DEVICES", 1), found = 0;
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (int i = 0; i < count; i++)
            list[i] = i;
        return count;
    }
    char copy[1024], *rest, known[48];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        int chosen = strncmp(word, "GPU-", 4) ? atoi(word) : -1;
        for (int i = 0; chosen < 0 && i < count; i++) {
            fake_uuid(i, known);
            if (!strncasecmp(known, word, strlen(word)))
                list[found++] = i;
        }
        if (chosen >= 0 && chosen < count)
            list[found++] = chosen;
    }
    return found;
}

/* The environment as it is at the first call: launches must not read it each time. */
static struct {
    int list[FAKE_DEVICES], count;
    int64_t total, chunk;
    int64_t judge; /* a new peak above it counts only without the memory of dead processes */
    bool fast; /* for measurements: memory is only a number */
    uint64_t latency; /* nanoseconds */
    unsigned queue;
    int64_t page, lazy_bytes;
    long lazy_us;
    uint64_t copy; /* nanoseconds for a MiB */
} settings;

static void in_child(void)
{
    lock = context_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

__attribute__((constructor)) static void read_settings(void)
{
    pthread_atfork(NULL, NULL, in_child);
    for (int device = 0; device < FAKE_DEVICES; device++) {
        default_pools[device].device = primaries[device].device = device;
        default_pools[device].type = CU_MEM_ALLOCATION_TYPE_PINNED;
        default_pools[device].location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, {device}};
        primaries[device].primary = true;
    }
    settings.count = visible(settings.list);
    settings.total = MIB(fake_number("FAKE_CUDA_TOTAL_MIB", 16384));
    settings.chunk = MIB(fake_number("FAKE_CUDA_POOL_CHUNK_MIB", 2));
    settings.judge = fake_number("FAKE_CUDA_JUDGE", 0);
    settings.fast = fake_number("FAKE_CUDA_FAST", 0) != 0;
    settings.latency = (uint64_t)fake_number("FAKE_CUDA_LATENCY_US", 0) * 1000;
    settings.queue = (unsigned)fake_number("FAKE_CUDA_QUEUE", 0);
    settings.queue = settings.queue > QUEUE_MOST ? QUEUE_MOST : settings.queue;
    settings.page = MIB(fake_number("FAKE_CUDA_PAGE_MIB", 2));
    settings.copy = (uint64_t)fake_number("FAKE_CUDA_COPY_US", 0) * 1000;
    settings.lazy_us = fake_number("FAKE_CUDA_LAZY_US", 0);
    settings.lazy_bytes = fake_number("FAKE_CUDA_LAZY_KIB", 0) << 10;
}

/* The card behind a device number; -1 if there is none. */
static int card(int device)
{
    return device >= 0 && device < settings.count ? settings.list[device] : -1;
}

static int64_t total(void)
{
    return settings.total;
}

CUresult cuInit(UNUSED unsigned flags)
{
    pthread_mutex_lock(&lock);
    if (initialized_by != getpid()) {
        self = NULL;
        initialized_by = getpid();
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = (int)fake_number("FAKE_CUDA_VERSION", CUDA_VERSION);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    NEED_INIT;
    *count = settings.count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    NEED_INIT;
    if (card(ordinal) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, UNUSED CUdevice device)
{
    snprintf(name, (size_t)length, "NVIDIA Fake H100");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 0x11 * (card(device) + 1), 16);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid(uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, UNUSED CUdevice device)
{
    *bytes = (size_t)total();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    snprintf(text, (size_t)length, "0000:%02X:00.0", card(device) + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, UNUSED CUdevice device)
{
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, UNUSED CUdevice one, UNUSED CUdevice other)
{
    *can = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    static const short yes[] = {15, 19, 31, 32, 41, 78, 79, 80, 83, 89, 90, 91, 95, 99, 102, 103, 115, 120, 122, 123,
                                125};
    static const struct { int attribute, value; } known[] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
        {10, 32}, {11, 2147483647}, {12, 65536}, {13, 1980000}, {14, 512}, {16, 132}, {36, 1980000}, {37, 5120},
        {38, 52428800}, {39, 2048}, {40, 3}, {51, 32}, {75, 9}, {81, 233472}, {82, 65536}, {87, 2}, {97, 232448},
        {106, 32}, {111, 1024}, {119, 9}, {126, 4}};
    *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? card(device) + 1 : 0;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (yes[i] == (int)attribute)
            *value = 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == (int)attribute)
            *value = known[i].value;
    return CUDA_SUCCESS;
}

/* The device of a location, which may be a part of its memory; -1 for memory of the host. */
static int device_at(CUmemLocation location)
{
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
        return location.localized.deviceId;
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
}

/* -- physical memory of the machine */

static uint32_t start_time(void)
{
    char text[512];
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    char *at = strrchr(text, ')');
    for (int field = 3; field <= 22; field++)
        at = strchr(at + 1, ' ');
    return (uint32_t)strtoull(at, NULL, 10);
}

/* The caller locks the machine. */
static struct fake_process *process(void)
{
    struct fake_machine *machine = fake_machine();
    if (self && self->pid == initialized_by)
        return self;
    for (int i = 0; i < FAKE_PROCESSES; i++) {
        self = &machine->process[i];
        if (i >= machine->processes)
            machine->processes = i + 1;
        if (self->pid && (self->pid != initialized_by || self->space != fake_space()))
            continue;
        memset(self, 0, sizeof *self);
        memset(&machine->suspension[i], 0, sizeof machine->suspension[i]);
        memset(machine->contexts[i], 0, sizeof machine->contexts[i]);
        self->start = start_time();
        self->space = fake_space();
        self->pid = initialized_by;
        fake_join_group(i);
        return self;
    }
    abort();
}

/* Takes or, negative, gives back bytes of a device. */
static bool occupy(int device, int64_t bytes)
{
    static long delay = -1;
    if (delay < 0)
        delay = fake_number("FAKE_CUDA_ALLOC_US", 0);
    if (delay && bytes > 0)
        usleep((useconds_t)delay);
    struct fake_machine *machine = fake_machine();
    int at = card(device);
    bool good = true;
    fake_lock();
    struct fake_process *own = process();
    if (bytes > 0 && machine->used[at] + bytes > machine->peak[at] && machine->used[at] + bytes > settings.judge)
        fake_prune();
    uint64_t most;
    uint64_t left = bytes > 0 ? fake_group_left((int)(own - machine->process), at, &most) : UINT64_MAX;
    if (left < (uint64_t)bytes && bytes > 0) {
        fake_prune();
        left = fake_group_left((int)(own - machine->process), at, &most);
    }
    if (bytes > 0 && (machine->used[at] + bytes > total() || left < (uint64_t)bytes)) {
        good = false;
    } else {
        own->used[at] += bytes;
        machine->used[at] += bytes;
        if (machine->used[at] > machine->peak[at])
            machine->peak[at] = machine->used[at];
    }
    fake_unlock();
    return good;
}

static struct block *find(CUdeviceptr address);

static struct block **bucket(CUdeviceptr address)
{
    return &blocks[(address >> 9) % BUCKETS];
}

static CUresult add_block(CUdeviceptr *address, size_t size, int device, int kind, void *owner)
{
    /* An address of its own; the pages come when they are touched. */
    static _Atomic uint64_t next = 0x700000000000, next_low = 0x20000000;
    void *wanted = fake_low ? (void *)atomic_fetch_add(&next_low, (size + 4095) & ~(size_t)4095) : NULL;
    void *at = settings.fast ? (void *)atomic_fetch_add(&next, size)
        : mmap(wanted, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct block *block = malloc(sizeof *block);
    *block = (struct block){.address = (CUdeviceptr)at, .size = size, .device = device, .kind = kind, .owner = owner,
                            .taken = (int64_t)size};
    pthread_mutex_lock(&lock);
    struct block **first = bucket(block->address);
    block->next = *first;
    *first = block;
    pthread_mutex_unlock(&lock);
    *address = block->address;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, int kind)
{
    if (!bytes || !address)
        return CUDA_ERROR_INVALID_VALUE;
    size_t size = (bytes + 511) & ~(size_t)511;
    int64_t taken = (int64_t)size, page = settings.page;
    int device = current()->device;
    if (page && taken > MIB(1))
        taken = (taken + page - 1) / page * page;
    if (size < bytes || (kind != HOST_MEMORY && !occupy(device, taken)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = add_block(address, size, device, kind, lasting());
    if (result == CUDA_SUCCESS)
        find(*address)->taken = taken;
    else if (kind != HOST_MEMORY)
        occupy(device, -taken);
    return result;
}

static struct block *find(CUdeviceptr address)
{
    struct block *found = NULL;
    pthread_mutex_lock(&lock);
    for (found = *bucket(address); found && found->address != address; found = found->next)
        ;
    for (int i = 0; !found && i < BUCKETS; i++)
        for (found = blocks[i]; found && !(address >= found->address && address - found->address < found->size);
             found = found->next)
            ;
    pthread_mutex_unlock(&lock);
    return found;
}

/* -- memory that several processes hold */

static int own_place(void)
{
    return (int)(process() - fake_machine()->process);
}

static void share_memory(int *share, int device, size_t size, bool pooled)
{
    fake_lock();
    if (!*share)
        *share = fake_share(card(device), (int64_t)size, own_place(), pooled);
    fake_unlock();
}

static bool hold(int share)
{
    fake_lock();
    bool held = share > 0 && share <= FAKE_SHARES && fake_hold(share, own_place());
    fake_unlock();
    return held;
}

static void leave_share(int share)
{
    fake_lock();
    fake_leave(share, own_place());
    fake_unlock();
}

static int device_of(int share)
{
    for (int device = 0; device < settings.count; device++)
        if (card(device) == fake_machine()->share[share - 1].card)
            return device;
    return 0;
}

/* Takes or gives back memory of a pool, which may be memory of the host. */
static bool occupy_for(CUmemoryPool pool, int64_t bytes)
{
    bool on_host = pool->type == CU_MEM_ALLOCATION_TYPE_PINNED && device_at(pool->location) < 0;
    return on_host || occupy(pool->device, bytes);
}

static void release_pool(CUmemoryPool pool, cuuint64_t keep)
{
    int64_t chunk = settings.chunk;
    int64_t least = (pool->used + chunk - 1) / chunk * chunk;
    int64_t wanted = (int64_t)keep > least ? (int64_t)keep : least;
    if (pool->reserved > wanted && !pool->imported) {
        occupy_for(pool, wanted - pool->reserved);
        pool->reserved = wanted;
    }
}

/* A handle is used again as soon as nothing is left of the pool: the last one to go is the first. Caller locks. */
static void reuse_pool(CUmemoryPool pool)
{
    if (!pool->destroyed || pool->used || pool->number || pool->imported)
        return;
    release_pool(pool, 0);
    pool->next = spare_pools;
    spare_pools = pool;
}

static void drop(struct physical *physical);

/* Memory of a pool stays where something is bound to it, though the pool has it no longer. */
static void leave_physical(struct block *block)
{
    struct physical *physical = block->physical;
    if (physical->pooled && physical->mappings) {
        occupy(physical->device, (int64_t)physical->size);
        physical->pooled = false;
    }
    physical->references--;
    drop(physical);
}

static CUresult release(CUdeviceptr address)
{
    if (!address)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct block **place = bucket(address);
    while (*place && (*place)->address != address)
        place = &(*place)->next;
    struct block *block = *place;
    if (block)
        *place = block->next;
    if (block && block->kind == POOL_MEMORY) {
        ((CUmemoryPool)block->owner)->used -= (int64_t)block->size;
        reuse_pool(block->owner);
    }
    pthread_mutex_unlock(&lock);
    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    if (!settings.fast)
        munmap((void *)block->address, block->size);
    if (block->physical)
        leave_physical(block);
    if (block->share)
        leave_share(block->share);
    else if (block->kind != HOST_MEMORY && block->kind != POOL_MEMORY && block->kind != EXTERNAL_MEMORY)
        occupy(block->device, -block->taken);
    free(block);
    return CUDA_SUCCESS;
}

static void release_of(void *owner)
{
    for (int i = 0; i < BUCKETS; i++)
        for (CUdeviceptr address = 1; address;) {
            address = 0;
            pthread_mutex_lock(&lock);
            for (struct block *block = blocks[i]; block && !address; block = block->next)
                address = block->owner == owner ? block->address : 0;
            pthread_mutex_unlock(&lock);
            release(address);
        }
}

/* -- contexts */

/* One more of this process, or, negative, one less. */
static bool occupy_context(int device, int contexts)
{
    if (!occupy(device, contexts * MIB(fake_number("FAKE_CUDA_CTX_MIB", 300))))
        return false;
    fake_lock();
    fake_machine()->contexts[process() - fake_machine()->process][card(device)] += contexts;
    fake_unlock();
    return true;
}

static void take_time(const char *setting)
{
    long time = fake_number(setting, 0);
    if (time)
        usleep((useconds_t)time);
}

/* What a context has set aside for the programs on the device, beyond the usual. */
static void release_limits(CUcontext context)
{
    for (int limit = 0; limit < LIMITS; limit++)
        if (context->reserve[limit])
            occupy(context->device, -context->reserve[limit]);
    memset(context->limit, 0, sizeof context->limit);
    memset(context->reserve, 0, sizeof context->reserve);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    NEED_MEETING;
    NEED_INIT;
    if (card(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&context_lock);
    CUcontext own = &primaries[device];
    if (!own->references)
        take_time("FAKE_CUDA_CTX_US");
    bool good = own->references++ || occupy_context(device, 1);
    if (!good)
        own->references--;
    pthread_mutex_unlock(&context_lock);
    *context = own;
    return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    NEED_MEETING;
    pthread_mutex_lock(&context_lock);
    int left = primaries[device].references ? --primaries[device].references : -1;
    if (left == 0) {
        release_of(&primaries[device]);
        release_limits(&primaries[device]);
        occupy_context(device, -1);
    }
    pthread_mutex_unlock(&context_lock);
    return left < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    pthread_mutex_lock(&context_lock);
    release_of(&primaries[device]);
    release_limits(&primaries[device]);
    if (primaries[device].references)
        occupy_context(device, -1);
    primaries[device].references = 0;
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    pthread_mutex_lock(&context_lock);
    *flags = primaries[device].flags;
    *active = primaries[device].references > 0;
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    pthread_mutex_lock(&context_lock);
    primaries[device].flags = flags;
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

static CUresult make_context(CUcontext *context, unsigned flags, CUdevice device)
{
    NEED_INIT;
    if (card(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    take_time("FAKE_CUDA_CTX_US");
    if (!occupy_context(device, 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&context_lock);
    CUcontext made = spare_context ? spare_context : malloc(sizeof *made);
    spare_context = NULL;
    pthread_mutex_unlock(&context_lock);
    *made = (struct CUctx_st){.device = device, .references = 1, .flags = flags};
    stack[depth++] = made;
    *context = made;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return make_context(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, UNUSED CUexecAffinityParam *affinity, UNUSED int count, unsigned flags,
                        CUdevice device)
{
    return make_context(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, UNUSED CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
    return make_context(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current() == context)
        depth--;
    release_of(context);
    release_limits(context);
    occupy_context(context->device, -1);
    pthread_mutex_lock(&context_lock);
    free(spare_context);
    spare_context = context; /* the next one has this handle */
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxAttach(CUcontext *context, UNUSED unsigned flags)
{
    NEED_CONTEXT;
    current()->references++;
    *context = current();
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context)
{
    return --context->references ? CUDA_SUCCESS : cuCtxDestroy_v2(context);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (depth == 32)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    NEED_CONTEXT;
    CUcontext top = stack[--depth];
    if (context)
        *context = top;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CALLED;
    *context = current();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CALLED;
    NEED_CONTEXT;
    *device = current()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    context = context ? context : current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned *flags)
{
    *flags = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *number)
{
    *number = (unsigned long long)(context ? context : current());
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(UNUSED CUcontext context, unsigned *version)
{
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

static size_t usual_limit(CUlimit limit)
{
    switch (limit) {
    case CU_LIMIT_STACK_SIZE: return STACK_BYTES;
    case CU_LIMIT_PRINTF_FIFO_SIZE: return (size_t)MIB(FIFO_MIB);
    case CU_LIMIT_MALLOC_HEAP_SIZE: return (size_t)MIB(HEAP_MIB);
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: return SYNC_LEVELS;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: return PENDING;
    default: return 0;
    }
}

/* What the device has to set aside for each more. */
static int64_t bytes_for_each(CUlimit limit)
{
    switch (limit) {
    case CU_LIMIT_STACK_SIZE: return THREADS;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE: return 1;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: return MIB(LEVEL_MIB);
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: return PENDING_BYTES;
    default: return 0;
    }
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    NEED_CONTEXT;
    int64_t set = lasting()->limit[limit];
    *value = set ? (size_t)set : usual_limit(limit);
    return CUDA_SUCCESS;
}

/* Buffers come in whole 4 KiB. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    NEED_CONTEXT;
    if (limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE)
        value = (value + 4095) & ~(size_t)4095;
    CUcontext context = lasting();
    int64_t more = ((int64_t)value - (int64_t)usual_limit(limit)) * bytes_for_each(limit);
    more = more > 0 ? more : 0;
    pthread_mutex_lock(&context_lock);
    bool good = occupy(context->device, more - context->reserve[limit]);
    if (good) {
        context->reserve[limit] = more;
        context->limit[limit] = (int64_t)value;
    }
    pthread_mutex_unlock(&context_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* -- green contexts: each retains the primary context, and is treated as that, but for its multiprocessors */

struct CUgreenCtx_st {
    int64_t bytes; /* its work queues */
    struct CUctx_st as;
};

CUresult cuGreenCtxCreate(CUgreenCtx *context, UNUSED CUdevResourceDesc resources, CUdevice device, UNUSED unsigned flags)
{
    CUcontext primary;
    int64_t bytes = MIB(fake_number("FAKE_CUDA_GREEN_MIB", 0));
    CUresult result = cuDevicePrimaryCtxRetain(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!occupy(device, bytes)) {
        cuDevicePrimaryCtxRelease_v2(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *context = malloc(sizeof **context);
    **context = (struct CUgreenCtx_st){bytes, {.device = device, .references = 1, .primary_of_green = primary}};
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx context)
{
    int device = context->as.device;
    if (current() == &context->as)
        depth--;
    occupy(device, -context->bytes);
    free(context);
    return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    *context = &green->as;
    return CUDA_SUCCESS;
}

/* -- memory */

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    NEED_CONTEXT;
    NEED_NO_CAPTURE;
    if (current() == &primaries[current()->device] && !current()->references)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED; /* it may be current, but nobody has taken it */
    fake_lock();
    *total_bytes = (size_t)total();
    *free_bytes = *total_bytes - (size_t)fake_machine()->used[card(current()->device)];
    uint64_t most;
    uint64_t left = fake_group_left((int)(process() - fake_machine()->process), card(current()->device), &most);
    *free_bytes = left < *free_bytes ? left : *free_bytes;
    *total_bytes = most < *total_bytes ? most : *total_bytes;
    fake_unlock();
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    NEED_CONTEXT;
    NEED_NO_CAPTURE;
    return allocate(address, bytes, DEVICE_MEMORY);
}

/* A pitch that no caller expects. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, UNUSED unsigned element)
{
    NEED_CONTEXT;
    NEED_NO_CAPTURE;
    *pitch = ((width + 511) & ~(size_t)511) + (size_t)fake_number("FAKE_CUDA_PITCH_EXTRA", 0);
    return allocate(address, *pitch * height, DEVICE_MEMORY);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, UNUSED unsigned flags)
{
    NEED_CONTEXT;
    NEED_NO_CAPTURE;
    return allocate(address, bytes, MANAGED_MEMORY);
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTERED;
    NEED_NO_CAPTURE;
    struct block *block = find(address);
    if (block && block->kind == OPENED_MEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    return release(address);
}

CUresult cuMemHostAlloc(void **address, size_t bytes, UNUSED unsigned flags)
{
    CUdeviceptr at = 0;
    NEED_CONTEXT;
    CUresult result = allocate(&at, bytes, HOST_MEMORY);
    *address = (void *)at;
    return result;
}

CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
    return cuMemHostAlloc(address, bytes, 0);
}

CUresult cuMemFreeHost(void *address)
{
    return release((CUdeviceptr)address);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, UNUSED unsigned flags)
{
    *device = (CUdeviceptr)host;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct block *block = find(address);
    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    if (base)
        *base = block->address;
    if (size)
        *size = block->size;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct block *block = find(address);
    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = &primaries[block->device]; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = block->kind == HOST_MEMORY ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = address; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(void **)value = (void *)address; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)value = block->kind == MANAGED_MEMORY; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = block->device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = block->address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = block->size; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = block->address; break;
    default: *(int *)value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address)
{
    bool known = find(address) != NULL;
    for (unsigned i = 0; i < count; i++) {
        if (known)
            cuPointerGetAttribute(values[i], attributes[i], address);
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)values[i] = -2;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED)
            *(unsigned *)values[i] = 0;
        else
            *(void **)values[i] = NULL;
    }
    return CUDA_SUCCESS;
}

/* A handle is the place of a share and its serial number. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    struct block *block = find(address);
    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    share_memory(&block->share, block->device, block->size, false);
    memset(handle, 0, sizeof *handle);
    int32_t content[2] = {block->share, fake_machine()->share[block->share - 1].serial};
    memcpy(handle->reserved, content, sizeof content);
    return CUDA_SUCCESS;
}

static struct block *opened(int share)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct block *block = blocks[i]; block; block = block->next)
            if (block->kind == OPENED_MEMORY && block->share == share)
                return block;
    return NULL;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, UNUSED unsigned flags)
{
    NEED_MEETING;
    NEED_CONTEXT;
    int32_t content[2];
    memcpy(content, handle.reserved, sizeof content);
    int share = content[0];
    struct block *block = opened(share);
    if (!block) {
        bool known = share > 0 && share <= FAKE_SHARES && fake_machine()->share[share - 1].serial == content[1];
        if (!known || !hold(share))
            return CUDA_ERROR_INVALID_VALUE;
        size_t size = (size_t)fake_machine()->share[share - 1].size;
        CUresult result = add_block(address, size, device_of(share), OPENED_MEMORY, lasting());
        if (result != CUDA_SUCCESS)
            return result;
        block = find(*address);
        block->share = share;
    }
    block->opened++;
    *address = block->address;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    NEED_MEETING;
    struct block *block = find(address);
    if (!block || block->kind != OPENED_MEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    return __atomic_sub_fetch(&block->opened, 1, __ATOMIC_SEQ_CST) ? CUDA_SUCCESS : release(address);
}

static int32_t pool_number(CUmemoryPool pool)
{
    fake_lock();
    if (!pool->number)
        pool->number = ++fake_machine()->serials;
    fake_unlock();
    return pool->number;
}

static bool write_file(void *place, const void *content, size_t size)
{
    int file = memfd_create("shareable", MFD_CLOEXEC);
    *(int *)place = file;
    return file >= 0 && pwrite(file, content, size, 0) == (ssize_t)size;
}

struct shareable_pool {
    int64_t reserved;
    int32_t number;
};

CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, UNUSED CUmemAllocationHandleType type,
                                          UNUSED unsigned long long flags)
{
    struct shareable_pool content = {pool->reserved, pool_number(pool)};
    return write_file(shareable, &content, sizeof content) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* An imported pool has the exporter's attributes. No document says what they are there. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, UNUSED CUmemAllocationHandleType type,
                                            UNUSED unsigned long long flags)
{
    struct shareable_pool content;
    if (pread((int)(intptr_t)shareable, &content, sizeof content, 0) != sizeof content)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = calloc(1, sizeof **pool);
    (*pool)->number = content.number;
    (*pool)->reserved = content.reserved;
    (*pool)->imported = true;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *exported, CUdeviceptr address)
{
    struct block *block = find(address);
    if (!block || block->kind != POOL_MEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool pool = block->owner;
    bool shared = block->share != 0;
    share_memory(&block->share, block->device, block->size, true);
    struct fake_share *share = &fake_machine()->share[block->share - 1];
    if (!shared) {
        share->pool = pool_number(pool);
        share->ordinal = ++pool->pointers;
    }
    memset(exported, 0, sizeof *exported);
    memcpy(exported->reserved, &share->ordinal, sizeof share->ordinal);
    return CUDA_SUCCESS;
}

/* The share of that pointer, 0 if there is none. The first pointer of every pool has the same content. */
static int exported_by(CUmemoryPool pool, int32_t ordinal)
{
    for (int i = 0; i < FAKE_SHARES; i++) {
        const struct fake_share *share = &fake_machine()->share[i];
        if (share->holders && share->pool == pool->number && share->ordinal == ordinal)
            return i + 1;
    }
    return 0;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *exported)
{
    int32_t ordinal;
    if (!exported)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&ordinal, exported->reserved, sizeof ordinal);
    int share = exported_by(pool, ordinal);
    if (!share || !hold(share))
        return CUDA_ERROR_INVALID_VALUE;
    size_t size = (size_t)fake_machine()->share[share - 1].size;
    CUresult result = add_block(address, size, device_of(share), OPENED_POOL_MEMORY, NULL);
    if (result == CUDA_SUCCESS)
        find(*address)->share = share;
    return result;
}

/* Memory of another interface: it is taken from the card when it is imported first. The file says so to others. What is mapped
 * from it holds it. */
struct CUextMemory_st {
    struct physical *physical;
};

CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *given)
{
    NEED_CONTEXT;
    if (!given->size)
        return CUDA_ERROR_INVALID_VALUE;
    int share = 0, file = given->handle.fd;
    bool known = pread(file, &share, sizeof share, 0) == sizeof share && hold(share);
    if (!known) {
        if (!occupy(current()->device, (int64_t)given->size))
            return CUDA_ERROR_OUT_OF_MEMORY;
        share = 0;
        share_memory(&share, current()->device, given->size, false);
        if (pwrite(file, &share, sizeof share, 0) != sizeof share)
            return CUDA_ERROR_INVALID_VALUE;
    }
    close(file);
    *memory = malloc(sizeof **memory);
    (*memory)->physical = malloc(sizeof *(*memory)->physical);
    *(*memory)->physical = (struct physical){.device = current()->device, .size = given->size, .references = 1,
                                             .share = share};
    return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory memory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *given)
{
    NEED_CONTEXT;
    CUresult result = add_block(address, given->size, current()->device, EXTERNAL_MEMORY, lasting());
    if (result == CUDA_SUCCESS) {
        find(*address)->physical = memory->physical;
        memory->physical->references++;
    }
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    memory->physical->references--;
    drop(memory->physical);
    free(memory);
    return CUDA_SUCCESS;
}

/* -- arrays: rows of 512 bytes, then whole 64 KiB */

/* Formats from 0x90 on have their channels in them. */
static size_t pixel_bits(CUarray_format format, unsigned channels)
{
    switch ((int)format) {
    case 0x01: case 0x08: return 8 * channels;
    case 0x02: case 0x09: case 0x10: return 16 * channels;
    case 0xb0: return 12; /* NV12 */
    case 0x9f: return 24; /* P010 */
    case 0xc0: case 0xc6: return 8;
    case 0xc1: case 0xc3: case 0xc7: case 0xc9: return 16;
    case 0xc2: case 0xc4: case 0xc8: case 0xca: return 32;
    case 0xc5: case 0xcb: return 64;
    default: return 32 * channels;
    }
}

/* A piece of a sparse array with memory: 64 x 64 elements, or 64 KiB of the levels that are smaller. */
struct tile {
    unsigned level, layer, at[3];
    struct physical *physical;
    struct tile *next;
};

enum { TILE = 64, TILE_BYTES = 65536, TAIL = 0xffff };

struct CUarray_st {
    int device;
    int64_t bytes, needed; /* one whose memory comes later has none */
    void *owner;
    bool whole; /* it gets it all at once */
    struct tile *tiles;
    struct physical *external; /* in which it lies */
};

static CUresult make_array(CUarray *array, size_t width, size_t height, size_t depth_cells, size_t bits, unsigned flags)
{
    NEED_CONTEXT;
    bool later = flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE);
    size_t rows = (height ? height : 1) * (depth_cells ? depth_cells : 1);
    int64_t bytes = (int64_t)((((width * bits / 8 + 511) & ~(size_t)511) * rows + 65535) & ~(size_t)65535);
    if (!later && !occupy(current()->device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *array = malloc(sizeof **array);
    **array = (struct CUarray_st){.device = current()->device, .bytes = later ? 0 : bytes, .needed = later ? bytes : 0,
                                  .owner = lasting(), .whole = flags & CUDA_ARRAY3D_DEFERRED_MAPPING};
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *given)
{
    return make_array(array, given->Width, given->Height, 1, pixel_bits(given->Format, given->NumChannels), 0);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *given)
{
    return make_array(array, given->Width, given->Height, given->Depth, pixel_bits(given->Format, given->NumChannels),
                      given->Flags);
}

static void unmap_tiles(CUarray array)
{
    while (array->tiles) {
        struct tile *one = array->tiles;
        array->tiles = one->next;
        one->physical->mappings--;
        drop(one->physical);
        free(one);
    }
}

CUresult cuArrayDestroy(CUarray array)
{
    unmap_tiles(array);
    if (array->external) {
        array->external->references--;
        drop(array->external);
    }
    occupy(array->device, -array->bytes);
    free(array);
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *given, UNUSED unsigned levels)
{
    return make_array((CUarray *)array, given->Width, given->Height * 2, given->Depth,
                      pixel_bits(given->Format, given->NumChannels), given->Flags);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return cuArrayDestroy((CUarray)array);
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
                                                 UNUSED const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *given)
{
    NEED_CONTEXT;
    CUarray made = malloc(sizeof *made);
    *made = (struct CUarray_st){.device = current()->device, .owner = lasting(), .external = memory->physical};
    memory->physical->references++;
    *array = (CUmipmappedArray)made;
    return CUDA_SUCCESS;
}

static bool is_at(const struct tile *one, const struct tile *other)
{
    return one->level == other->level && one->layer == other->layer && !memcmp(one->at, other->at, sizeof one->at);
}

/* Without memory, it is unmapped: all that has been mapped there. */
static void map_tile(CUarray array, struct tile tile, struct physical *physical)
{
    if (physical) {
        struct tile *made = malloc(sizeof *made);
        *made = tile;
        made->physical = physical;
        made->next = array->tiles;
        array->tiles = made;
        physical->mappings++;
        return;
    }
    for (struct tile **place = &array->tiles; *place;) {
        struct tile *one = *place;
        if (!is_at(one, &tile)) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        one->physical->mappings--;
        drop(one->physical);
        free(one);
    }
}

static void map_tiles(CUarray array, const CUarrayMapInfo *given, struct physical *physical)
{
    if (array->whole) {
        map_tile(array, (struct tile){0}, physical);
    } else if (given->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        unsigned first = (unsigned)(given->subresource.miptail.offset / TILE_BYTES);
        for (unsigned i = 0; i < given->subresource.miptail.size / TILE_BYTES; i++)
            map_tile(array, (struct tile){TAIL, given->subresource.miptail.layer, {first + i}}, physical);
    } else {
        unsigned level = given->subresource.sparseLevel.level, layer = given->subresource.sparseLevel.layer;
        unsigned x = given->subresource.sparseLevel.offsetX, y = given->subresource.sparseLevel.offsetY;
        unsigned z = given->subresource.sparseLevel.offsetZ;
        for (unsigned k = 0; k < given->subresource.sparseLevel.extentDepth; k++)
            for (unsigned j = 0; j < given->subresource.sparseLevel.extentHeight; j += TILE)
                for (unsigned i = 0; i < given->subresource.sparseLevel.extentWidth; i += TILE)
                    map_tile(array, (struct tile){level, layer, {x + i, y + j, z + k}}, physical);
    }
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, UNUSED CUstream stream)
{
    for (unsigned i = 0; i < count; i++) {
        bool maps = list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP;
        map_tiles(list[i].resource.array, &list[i], maps ? (struct physical *)list[i].memHandle.memHandle : NULL);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    return cuMemMapArrayAsync(list, count, stream);
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needed, CUarray array, UNUSED CUdevice device)
{
    *needed = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = (size_t)array->needed, .alignment = 65536};
    return array->needed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needed, CUmipmappedArray array,
                                               CUdevice device)
{
    return cuArrayGetMemoryRequirements(needed, (CUarray)array, device);
}

/* -- pools */

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    *pool = &default_pools[device];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    CALLED;
    if (current_pools[device])
        *pool = current_pools[device];
    else
        cuDeviceGetDefaultMemPool(pool, device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    current_pools[device] = pool;
    return CUDA_SUCCESS;
}

/* One of managed memory need not name a device. */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    pthread_mutex_lock(&lock);
    *pool = spare_pools;
    if (*pool)
        spare_pools = (*pool)->next;
    pthread_mutex_unlock(&lock);
    *pool = *pool ? *pool : malloc(sizeof **pool);
    **pool = (struct CUmemPoolHandle_st){0};
    int device = device_at(properties->location);
    (*pool)->device = device >= 0 ? device : current() ? current()->device : 0;
    (*pool)->type = properties->allocType;
    (*pool)->location = properties->location;
    return CUDA_SUCCESS;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return cuDeviceGetMemPool(pool, location->id);
    *pool = managed_pools[0];
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* Those that are not a device's own. */
CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    static struct CUmemPoolHandle_st pinned[2], managed;
    int device = device_at(*location);
    if (type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return cuDeviceGetDefaultMemPool(pool, device);
    *pool = type == CU_MEM_ALLOCATION_TYPE_MANAGED ? &managed : &pinned[device >= 0];
    (*pool)->type = type;
    (*pool)->location = *location;
    (*pool)->device = device >= 0 ? device : current()->device;
    return CUDA_SUCCESS;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return cuDeviceSetMemPool(location->id, pool);
    managed_pools[0] = pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    pthread_mutex_lock(&lock);
    release_pool(pool, 0);
    pool->destroyed = true; /* not freed: allocations may still name it */
    reuse_pool(pool);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(cuuint64_t *)value;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CALLED;
    NEED_NO_CAPTURE;
    pthread_mutex_lock(&lock);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(cuuint64_t *)value = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(cuuint64_t *)value = (cuuint64_t)pool->reserved; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = (cuuint64_t)pool->used; break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE: *(CUmemAllocationType *)value = pool->type; break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE: *(CUmemLocationType *)value = pool->location.type; break;
    case CU_MEMPOOL_ATTR_LOCATION_ID: *(int *)value = device_at(pool->location); break;
    default: *(int *)value = 1;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    NEED_NO_CAPTURE;
    pthread_mutex_lock(&lock);
    release_pool(pool, bytes);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(UNUSED CUmemoryPool pool, UNUSED const CUmemAccessDesc *access, UNUSED size_t count)
{
    return CUDA_SUCCESS;
}

static CUresult pool_allocate(CUdeviceptr *address, size_t bytes, CUmemoryPool pool)
{
    int64_t size = (int64_t)((bytes + 511) & ~(size_t)511);
    int64_t chunk = settings.chunk;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int64_t more = (pool->used + size - pool->reserved + chunk - 1) / chunk * chunk;
    bool good = more <= 0 || occupy_for(pool, more);
    if (good) {
        pool->reserved += more > 0 ? more : 0;
        pool->used += size;
    }
    pthread_mutex_unlock(&lock);
    return good ? add_block(address, (size_t)size, pool->device, POOL_MEMORY, pool) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUstream stream_of(CUstream stream)
{
    int device = current() ? current()->device : 0;
    return stream == NULL || stream == CU_STREAM_LEGACY ? &legacy[device]
        : stream == CU_STREAM_PER_THREAD ? &per_thread[device] : stream;
}

static const char *kind_of(CUstream stream)
{
    return stream >= per_thread && stream < per_thread + FAKE_DEVICES ? "per-thread" : "legacy";
}

/* What is done in a stream is done on the device of its context, whatever the current one is. */
static int device_of_stream(CUstream stream)
{
    CUcontext context = stream->context ? stream->context : current();
    return context ? context->device : 0;
}

/* Of this process among those of the machine. */
static int place(void)
{
    if (!self || self->pid != initialized_by) {
        fake_lock();
        process();
        fake_unlock();
    }
    return own_place();
}

static uint64_t last_kernel[FAKE_DEVICES];
static const uint64_t MOST_BACKLOG = 100000000;

static bool is_idle(CUstream stream)
{
    return fake_is_done(card(device_of_stream(stream)), place(), stream->last, NULL);
}

static void wait_for(CUstream stream, uint64_t kernel)
{
    fake_wait(card(device_of_stream(stream)), place(), kernel);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    ENTERED;
    CALLED;
    stream = stream_of(stream);
    say("cuMemAllocFromPoolAsync %s", kind_of(stream));
    if (stream->capture) {
        struct CUgraphNode_st *node = &stream->capture->node[stream->capture->count++];
        node->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        node->allocation.bytesize = bytes;
        node->allocation.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        node->allocation.poolProps.location.id = pool->device;
        *address = (CUdeviceptr)0x7000000000 + (CUdeviceptr)stream->capture->count * 4096;
        return CUDA_SUCCESS;
    }
    return pool_allocate(address, bytes, pool);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    NEED_CONTEXT;
    int device = device_of_stream(stream_of(stream));
    CUmemoryPool pool = current_pools[device];
    if (!pool)
        cuDeviceGetDefaultMemPool(&pool, device);
    return cuMemAllocFromPoolAsync(address, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, UNUSED CUstream stream)
{
    ENTERED;
    return release(address);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return cuMemAllocAsync(address, bytes, stream ? stream : CU_STREAM_PER_THREAD);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return cuMemAllocFromPoolAsync(address, bytes, pool, stream ? stream : CU_STREAM_PER_THREAD);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return cuMemFreeAsync(address, stream);
}

/* A synchronized pool gives back what is above its threshold. */
static void settle_pools(void)
{
    pthread_mutex_lock(&lock);
    for (int d = 0; d < FAKE_DEVICES; d++)
        if (default_pools[d].reserved)
            release_pool(&default_pools[d], default_pools[d].threshold);
    pthread_mutex_unlock(&lock);
}

/* -- physical memory and mappings */

CUresult cuMemGetAllocationGranularity(size_t *size, UNUSED const CUmemAllocationProp *properties,
                                       UNUSED CUmemAllocationGranularity_flags flags)
{
    *size = 2 << 20;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     UNUSED unsigned long long flags)
{
    ENTERED;
    if (!size || size % (2 << 20))
        return CUDA_ERROR_INVALID_VALUE;
    int device = device_at(properties->location);
    if (device >= 0 && !occupy(device, (int64_t)size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct physical *made = malloc(sizeof *made);
    *made = (struct physical){.device = device, .size = size, .references = 1};
    *handle = (CUmemGenericAllocationHandle)made;
    return CUDA_SUCCESS;
}

/* Bindings of an object in a range end: those to memory of a device, or all if it is -1. */
static void unbind(struct physical *object, int device, size_t offset, size_t size)
{
    for (struct binding **place = &object->bindings; *place;) {
        struct binding *one = *place;
        bool meant = device < 0 || one->physical->device == device;
        if (!meant || one->offset < offset || one->offset - offset >= size) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        one->physical->mappings--;
        drop(one->physical);
        free(one);
    }
}

static void drop(struct physical *physical)
{
    if (physical->references || physical->mappings)
        return;
    if (physical->multicast)
        unbind(physical, -1, 0, SIZE_MAX);
    else if (physical->share)
        leave_share(physical->share);
    else if (physical->device >= 0 && !physical->pooled)
        occupy(physical->device, -(int64_t)physical->size);
    free(physical);
}

/* A shareable handle is a file with this in it or, for a fabric, begins with it. */
struct shareable {
    int32_t share, serial, multicast;
};

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, UNUSED unsigned long long flags)
{
    struct physical *physical = (struct physical *)handle;
    struct shareable content = {.share = physical->share, .multicast = physical->multicast};
    if (!physical->multicast) {
        share_memory(&physical->share, physical->device, physical->size, false);
        content.share = physical->share;
        content.serial = fake_machine()->share[physical->share - 1].serial;
    }
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        memset(shareable, 0, sizeof(CUmemFabricHandle));
        memcpy(shareable, &content, sizeof content);
        return CUDA_SUCCESS;
    }
    return write_file(shareable, &content, sizeof content) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static bool read_shareable(struct shareable *content, const void *shareable, CUmemAllocationHandleType type)
{
    if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        memcpy(content, shareable, sizeof *content);
    else if (pread((int)(intptr_t)shareable, content, sizeof *content, 0) != sizeof *content)
        return false;
    return content->multicast || (content->share > 0 && content->share <= FAKE_SHARES
                                  && fake_machine()->share[content->share - 1].serial == content->serial
                                  && hold(content->share));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
    struct shareable content;
    if (!read_shareable(&content, shareable, type))
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *made = malloc(sizeof *made);
    *made = (struct physical){.share = content.share, .multicast = content.multicast, .references = 1};
    if (!content.multicast) {
        made->device = device_of(content.share);
        made->size = (size_t)fake_machine()->share[content.share - 1].size;
    }
    *handle = (CUmemGenericAllocationHandle)made;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    const struct physical *physical = (const struct physical *)handle;
    if (physical->multicast)
        return CUDA_ERROR_INVALID_VALUE;
    memset(properties, 0, sizeof *properties);
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = physical->device;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = (struct physical *)handle;
    physical->references--;
    drop(physical);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, UNUSED size_t alignment, UNUSED CUdeviceptr wanted,
                             UNUSED unsigned long long flags)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *address = (CUdeviceptr)at;
    return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    munmap((void *)address, size);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  UNUSED unsigned long long flags)
{
    NEED_MEETING;
    const struct physical *physical = (const struct physical *)handle;
    if (!physical->multicast && offset + size > physical->size)
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *made = malloc(sizeof *made);
    *made = (struct mapping){address, size, (struct physical *)handle, mappings};
    made->physical->mappings++;
    mappings = made;
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    bool any = false;
    for (struct mapping **place = &mappings; *place;) {
        struct mapping *one = *place;
        if (one->address < address || one->address >= address + size) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        one->physical->mappings--;
        drop(one->physical);
        free(one);
        any = true;
    }
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(UNUSED CUdeviceptr address, UNUSED size_t size, UNUSED const CUmemAccessDesc *access,
                        UNUSED size_t count)
{
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    for (struct mapping *one = mappings; one; one = one->next)
        if ((CUdeviceptr)address >= one->address && (CUdeviceptr)address < one->address + one->size) {
            one->physical->references++;
            *handle = (CUmemGenericAllocationHandle)one->physical;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* -- multicast objects, which hold the memory that is bound to them */

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    struct physical *made = malloc(sizeof *made);
    *made = (struct physical){.size = properties->size, .references = 1, .multicast = true};
    *handle = (CUmemGenericAllocationHandle)made;
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(UNUSED CUmemGenericAllocationHandle object, UNUSED CUdevice device)
{
    return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,
                            UNUSED size_t from, UNUSED size_t size, UNUSED unsigned long long flags)
{
    struct physical *one = (struct physical *)object, *other = (struct physical *)memory;
    if (!one->multicast || other->multicast)
        return CUDA_ERROR_INVALID_VALUE;
    struct binding *made = malloc(sizeof *made);
    *made = (struct binding){offset, other, one->bindings};
    one->bindings = made;
    other->mappings++;
    return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, UNUSED CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t from, size_t size, unsigned long long flags)
{
    return cuMulticastBindMem(object, offset, memory, from, size, flags);
}

/* What is at an address: mapped memory, or memory of a pool, which is a block of its own from now on. */
static struct physical *physical_at(CUdeviceptr address)
{
    for (const struct mapping *one = mappings; one; one = one->next)
        if (address >= one->address && address < one->address + one->size)
            return one->physical;
    struct block *block = find(address);
    if (!block || block->kind != POOL_MEMORY)
        return NULL;
    if (!block->physical) {
        block->physical = malloc(sizeof *block->physical);
        *block->physical = (struct physical){.device = block->device, .size = block->size, .references = 1, .pooled = true};
    }
    return block->physical;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size,
                             unsigned long long flags)
{
    CUmemGenericAllocationHandle memory = (CUmemGenericAllocationHandle)physical_at(address);
    return memory ? cuMulticastBindMem(object, offset, memory, 0, size, flags) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, UNUSED CUdevice device, size_t offset,
                                CUdeviceptr address, size_t size, unsigned long long flags)
{
    return cuMulticastBindAddr(object, offset, address, size, flags);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size)
{
    unbind((struct physical *)object, device, offset, size);
    return CUDA_SUCCESS;
}

/* -- logical endpoints: as multicast objects, by numbers */

enum { ENDPOINTS = 64 };
static struct physical endpoints[ENDPOINTS];

static CUmemGenericAllocationHandle endpoint_of(CUlogicalEndpointId id)
{
    endpoints[id].multicast = true;
    endpoints[id].references = 1;
    return (CUmemGenericAllocationHandle)&endpoints[id];
}

CUresult cuLogicalEndpointIdReserve(CUlogicalEndpointId *base, UNUSED cuuint32_t count)
{
    *base = 0;
    return CUDA_SUCCESS;
}

CUresult cuLogicalEndpointCreate(UNUSED CUlogicalEndpointId id, UNUSED const CUlogicalEndpointProp *properties)
{
    return CUDA_SUCCESS;
}

CUresult cuLogicalEndpointQuery(UNUSED CUlogicalEndpointId id, UNUSED cuuint32_t count, int *ready)
{
    *ready = 1;
    return CUDA_SUCCESS;
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, UNUSED CUdevice device, cuuint64_t offset,
                                  CUmemGenericAllocationHandle memory, cuuint64_t from, cuuint64_t size,
                                  unsigned long long flags)
{
    return cuMulticastBindMem(endpoint_of(id), offset, memory, from, size, flags);
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, UNUSED CUdevice device, cuuint64_t offset, void *address,
                                   cuuint64_t size, unsigned long long flags)
{
    return cuMulticastBindAddr(endpoint_of(id), offset, (CUdeviceptr)address, size, flags);
}

CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset, cuuint64_t size)
{
    unbind(&endpoints[id], device, offset, size);
    return CUDA_SUCCESS;
}

CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id)
{
    unbind(&endpoints[id], -1, 0, SIZE_MAX);
    return CUDA_SUCCESS;
}

/* -- copies */

static void work(CUstream stream, uint64_t duration);

/* Copies in a stream go on after the call, others end with it. */
static CUresult take_copy_time(CUstream stream, size_t bytes, bool waits)
{
    if (!settings.copy)
        return CUDA_SUCCESS;
    NEED_CONTEXT;
    stream = stream_of(stream);
    work(stream, settings.copy * bytes >> 20);
    if (waits)
        wait_for(stream, stream->last);
    return CUDA_SUCCESS;
}

#define COPY(name, to, from, stream, waits, parameters) \
CUresult name parameters \
{ \
    memmove((void *)(to), (const void *)(from), bytes); \
    return take_copy_time(stream, bytes, waits); \
}
#define COPIES(suffix, own) \
COPY(cuMemcpyHtoD_v2##suffix, to, from, own, true, (CUdeviceptr to, const void *from, size_t bytes)) \
COPY(cuMemcpyDtoH_v2##suffix, to, from, own, true, (void *to, CUdeviceptr from, size_t bytes)) \
COPY(cuMemcpyDtoD_v2##suffix, to, from, own, true, (CUdeviceptr to, CUdeviceptr from, size_t bytes)) \
COPY(cuMemcpy##suffix, to, from, own, true, (CUdeviceptr to, CUdeviceptr from, size_t bytes))
#define ASYNC_COPIES(suffix, own) \
COPY(cuMemcpyHtoDAsync_v2##suffix, to, from, own, false, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
COPY(cuMemcpyDtoHAsync_v2##suffix, to, from, own, false, (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
COPY(cuMemcpyDtoDAsync_v2##suffix, to, from, own, false, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
COPY(cuMemcpyAsync##suffix, to, from, own, false, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
COPIES(, NULL)
COPIES(_ptds, CU_STREAM_PER_THREAD)
ASYNC_COPIES(, stream)
ASYNC_COPIES(_ptsz, stream ? stream : CU_STREAM_PER_THREAD)

static CUresult fill(CUdeviceptr address, unsigned char value, size_t count, CUstream stream, bool waits)
{
    memset((void *)address, value, count);
    return take_copy_time(stream, count, waits);
}

CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count)
{
    return fill(address, value, count, NULL, true);
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream)
{
    return fill(address, value, count, stream, false);
}

CUresult cuMemsetD32_v2(CUdeviceptr address, unsigned value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((unsigned *)address)[i] = value;
    return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, UNUSED CUstream stream)
{
    return cuMemsetD32_v2(address, value, count);
}

/* -- streams and events */

CUresult cuStreamCreateWithPriority(CUstream *stream, UNUSED unsigned flags, UNUSED int priority)
{
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = current();
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    free(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    ENTERED;
    NEED_NO_CAPTURE;
    wait_for(stream_of(stream), stream_of(stream)->last);
    settle_pools();
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return cuStreamSynchronize(stream ? stream : CU_STREAM_PER_THREAD);
}

CUresult cuCtxSynchronize(void)
{
    NEED_NO_CAPTURE;
    if (current())
        fake_wait(card(current()->device), place(), last_kernel[current()->device]);
    settle_pools();
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
    stream = stream_of(stream);
    return is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, UNUSED unsigned flags)
{
    stream = stream_of(stream);
    if (event->device != device_of_stream(stream))
        return cuEventSynchronize(event);
    stream->last = event->kernel > stream->last ? event->kernel : stream->last;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    CALLED;
    *status = stream_of(stream)->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
    return cuStreamIsCapturing(stream ? stream : CU_STREAM_PER_THREAD, status);
}

static CUresult begin_capture(CUstream stream, CUgraph graph, CUstreamCaptureMode mode)
{
    stream = stream_of(stream);
    CUresult result = CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CAPTURES && !stream->capture; i++)
        if (!captures[i]) {
            stream->capture = graph ? graph : calloc(1, sizeof(struct CUgraph_st));
            stream->mode = mode;
            stream->thread = pthread_self();
            stream->broken = false;
            captures[i] = stream;
            atomic_fetch_add(&capture_count, 1);
            result = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return begin_capture(stream, NULL, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    return begin_capture(stream ? stream : CU_STREAM_PER_THREAD, NULL, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, UNUSED const CUgraphNode *nodes,
                                     UNUSED const CUgraphEdgeData *edges, UNUSED size_t count, CUstreamCaptureMode mode)
{
    return begin_capture(stream, graph, mode);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    stream = stream_of(stream);
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CAPTURES; i++)
        if (captures[i] == stream) {
            captures[i] = NULL;
            atomic_fetch_sub(&capture_count, 1);
        }
    pthread_mutex_unlock(&lock);
    *graph = stream->broken ? NULL : stream->capture;
    stream->capture = NULL;
    return stream->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return cuStreamEndCapture(stream ? stream : CU_STREAM_PER_THREAD, graph);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(UNUSED CUstream stream, unsigned *flags)
{
    *flags = 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(UNUSED CUstream stream, int *priority)
{
    *priority = 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    CALLED;
    *context = stream_of(stream)->context;
    if (!*context)
        *context = current();
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    if (!(flags & CU_EVENT_DISABLE_TIMING) && fake_number("FAKE_CUDA_NO_EVENTS", 0))
        return CUDA_ERROR_NOT_SUPPORTED;
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}

/* A stream that is full makes the caller wait. Then it has one command more. */
static void enqueue(CUstream stream)
{
    if (settings.queue) {
        unsigned at = __atomic_fetch_add(&stream->commands, 1, __ATOMIC_RELAXED) % settings.queue;
        wait_for(stream, stream->done[at]);
        stream->done[at] = stream->last;
    }
}

/* Whether the card has come to it; then its time is that of the card. */
static bool is_reached(CUevent event)
{
    int at = card(event->device);
    if ((event->kernel && !fake_is_done(at, place(), event->kernel, &event->time))
        || (event->slice && !fake_has_begun(at, place(), event->slice, &event->time)))
        return false;
    event->kernel = event->slice = 0;
    return true;
}

/* The card remembers the times of the last kernels only; those of open events are asked for in time. */
enum { OPEN_EVENTS = 512, ASKED_EVERY = FAKE_QUEUE / 4 };
static CUevent open_events[OPEN_EVENTS];

static void watch(CUevent event)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < OPEN_EVENTS && !event->open; i++)
        if (!open_events[i]) {
            open_events[i] = event;
            event->open = true;
        }
    pthread_mutex_unlock(&lock);
}

static void forget(CUevent event)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < OPEN_EVENTS && event->open; i++)
        if (open_events[i] == event) {
            open_events[i] = NULL;
            event->open = false;
        }
    pthread_mutex_unlock(&lock);
}

static void ask_open_events(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < OPEN_EVENTS; i++)
        if (open_events[i] && is_reached(open_events[i])) {
            open_events[i]->open = false;
            open_events[i] = NULL;
        }
    pthread_mutex_unlock(&lock);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    struct CUgraph_st *capture = stream_of(stream)->capture;
    if (capture) {
        capture->node[capture->count++].type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        return CUDA_SUCCESS;
    }
    stream = stream_of(stream);
    struct CUevent_st made = {.device = device_of_stream(stream)};
    if (!is_idle(stream))
        made.kernel = stream->last;
    else
        made.slice = fake_command(card(made.device), place(), &made.time);
    made.open = event->open;
    *event = made;
    enqueue(stream);
    watch(event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, UNUSED unsigned flags)
{
    return cuEventRecord(event, stream);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
    return cuEventRecordWithFlags(event, stream ? stream : CU_STREAM_PER_THREAD, flags);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return cuEventRecord(event, stream ? stream : CU_STREAM_PER_THREAD);
}

CUresult cuEventQuery(CUevent event)
{
    NEED_NO_CAPTURE;
    return is_reached(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    NEED_NO_CAPTURE;
    while (!is_reached(event)) {
        if (event->kernel)
            fake_wait(card(event->device), place(), event->kernel);
        else
            usleep(100);
    }
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    forget(event);
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second)
{
    if (!is_reached(first) || !is_reached(second))
        return CUDA_ERROR_NOT_READY;
    int64_t gap = first == second ? 0 : fake_number("FAKE_CUDA_EVENT_NS", 0);
    *milliseconds = (float)((double)((int64_t)(second->time - first->time) + gap) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent first, CUevent second)
{
    return cuEventElapsedTime(milliseconds, first, second);
}

/* -- modules */

struct CUmod_st {
    int device;
    int64_t bytes;
};

enum { CYCLE = 40 };

struct CUfunc_st {
    uint64_t duration; /* nanoseconds */
    char name[64];
    CUmodule module;
    bool loaded;
    int cycles;
    _Atomic unsigned launched;
    uint64_t cycle[CYCLE];
};

CUresult cuModuleLoadData(CUmodule *module, UNUSED const void *image)
{
    NEED_CONTEXT;
    NEED_NO_CAPTURE;
    int64_t bytes = MIB(fake_number("FAKE_CUDA_MODULE_MIB", 0));
    take_time("FAKE_CUDA_MODULE_US");
    if (bytes && !occupy(current()->device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *module = malloc(sizeof **module);
    **module = (struct CUmod_st){current()->device, bytes};
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, UNUSED unsigned count, UNUSED CUjit_option *options,
                            UNUSED void **values)
{
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, UNUSED const char *path)
{
    return cuModuleLoadData(module, NULL);
}

CUresult cuModuleUnload(CUmodule module)
{
    if (module->bytes)
        occupy(module->device, -module->bytes);
    free(module);
    return CUDA_SUCCESS;
}

static void *function_named(CUmodule module, const char *name)
{
    CUfunction made = calloc(1, sizeof *made);
    made->module = module;
    snprintf(made->name, sizeof made->name, "%s", name);
    const char *at = strncmp(name, "cycle_", 6) ? NULL : name + 5;
    for (; at && *at == '_' && made->cycles < CYCLE; at = strchr(at + 1, '_'))
        made->cycle[made->cycles++] = (uint64_t)(atof(at + 1) * 1000);
    double once, else_;
    if (sscanf(name, "period_%d_%lf_%lf", &made->cycles, &once, &else_) == 3)
        for (int i = 0; i < made->cycles && i < CYCLE; i++)
            made->cycle[i] = (uint64_t)((i ? else_ : once) * 1000);
    if (!strncmp(name, "busy_", 5))
        made->duration = (uint64_t)(atof(name + 5) * 1000);
    return made;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    *function = function_named(module, name);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, UNUSED CUmodule module, UNUSED const char *name)
{
    if (address)
        *address = (CUdeviceptr)calloc(1, 65536);
    if (bytes)
        *bytes = 65536;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    bool lazy = settings.lazy_us || settings.lazy_bytes || fake_number("FAKE_CUDA_LAZY", 0);
    *mode = lazy ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

/* Needs no context; without one, it takes no memory. */
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, UNUSED CUjit_option *options,
                           UNUSED void **values, UNUSED unsigned count, UNUSED CUlibraryOption *more,
                           UNUSED void **more_values, UNUSED unsigned more_count)
{
    if (current())
        return cuModuleLoadData((CUmodule *)library, code);
    *library = calloc(1, sizeof(struct CUmod_st));
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    return cuModuleUnload((CUmodule)library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    *kernel = function_named((CUmodule)library, name);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    *module = (CUmodule)library;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, UNUSED CUkernel kernel,
                              UNUSED CUdevice device)
{
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
        : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, UNUSED CUfunction function)
{
    return cuKernelGetAttribute(value, attribute, NULL, 0);
}

CUresult cuFuncSetAttribute(UNUSED CUfunction function, UNUSED CUfunction_attribute attribute, UNUSED int value)
{
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, UNUSED CUfunction function, UNUSED int threads,
                                                     UNUSED size_t shared)
{
    *count = 2;
    return CUDA_SUCCESS;
}

/* -- launches */

/* Keeps the device busy, after all that the process has launched before; a full queue makes the launch wait. */
static void work(CUstream stream, uint64_t duration)
{
    int device = device_of_stream(stream), at = card(device);
    atomic_fetch_add_explicit(&fake_machine()->launches[at], 1, memory_order_relaxed);
    if (!duration)
        return;
    stream->last = last_kernel[device] = fake_launch(at, place(), settings.latency, stream->last, duration);
    if (stream->last % ASKED_EVERY == 0)
        ask_open_events();
    enqueue(stream);
    if (settings.queue)
        return;
    for (uint64_t backlog; (backlog = fake_backlog(at, place())) > MOST_BACKLOG;)
        fake_sleep_until(fake_now() + backlog - MOST_BACKLOG);
}

/* Code that is loaded when it is first needed. */
static bool load_lazily(CUfunction function)
{
    if (function->loaded)
        return true;
    if (settings.lazy_us)
        usleep((useconds_t)settings.lazy_us);
    if (settings.lazy_bytes && !occupy(current()->device, settings.lazy_bytes))
        return false;
    if (function->module && settings.lazy_bytes)
        function->module->bytes += settings.lazy_bytes;
    function->loaded = true;
    return true;
}

static uint64_t duration_of(CUfunction function)
{
    if (!function->cycles)
        return function->duration;
    return function->cycle[atomic_fetch_add(&function->launched, 1) % (unsigned)function->cycles];
}

static CUresult launch(const char *name, CUfunction function, CUstream stream)
{
    NEED_CONTEXT;
    stream = stream_of(stream);
    if (!strcmp(function->name, "fails"))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        struct CUgraphNode_st *node = &stream->capture->node[stream->capture->count++];
        node->type = CU_GRAPH_NODE_TYPE_KERNEL;
        node->duration = duration_of(function);
        return CUDA_SUCCESS;
    }
    say("%s %s", name, kind_of(stream));
    if (!load_lazily(function))
        return CUDA_ERROR_OUT_OF_MEMORY;
    work(stream, duration_of(function));
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, UNUSED unsigned x, UNUSED unsigned y, UNUSED unsigned z,
                        UNUSED unsigned block_x, UNUSED unsigned block_y, UNUSED unsigned block_z,
                        UNUSED unsigned shared, CUstream stream, UNUSED void **parameters, UNUSED void **extra)
{
    return launch("cuLaunchKernel", function, stream);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, UNUSED unsigned x, UNUSED unsigned y, UNUSED unsigned z,
                             UNUSED unsigned block_x, UNUSED unsigned block_y, UNUSED unsigned block_z,
                             UNUSED unsigned shared, CUstream stream, UNUSED void **parameters, UNUSED void **extra)
{
    return launch("cuLaunchKernel_ptsz", function, stream ? stream : CU_STREAM_PER_THREAD);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, UNUSED void **parameters,
                          UNUSED void **extra)
{
    return launch("cuLaunchKernelEx", function, config->hStream);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, UNUSED void **parameters,
                               UNUSED void **extra)
{
    return launch("cuLaunchKernelEx_ptsz", function, config->hStream ? config->hStream : CU_STREAM_PER_THREAD);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, UNUSED unsigned x, UNUSED unsigned y, UNUSED unsigned z,
                                   UNUSED unsigned block_x, UNUSED unsigned block_y, UNUSED unsigned block_z,
                                   UNUSED unsigned shared, CUstream stream, UNUSED void **parameters)
{
    return launch("cuLaunchCooperativeKernel", function, stream);
}

/* -- graphs */

CUresult cuGraphCreate(CUgraph *graph, UNUSED unsigned flags)
{
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, UNUSED const CUgraphNode *dependencies,
                                UNUSED size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    *node = &graph->node[graph->count++];
    (*node)->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    (*node)->allocation = *parameters;
    parameters->dptr = 0x7000000000;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, UNUSED const CUgraphNode *dependencies,
                                  UNUSED size_t count, CUgraph child)
{
    *node = &graph->node[graph->count++];
    (*node)->type = CU_GRAPH_NODE_TYPE_GRAPH;
    (*node)->child = child;
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    *graph = node->child;
    return node->child ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    for (size_t i = 0; nodes && i < *count && i < (size_t)graph->count; i++)
        nodes[i] = &graph->node[i];
    *count = (size_t)graph->count;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    *parameters = node->allocation;
    return CUDA_SUCCESS;
}

static void add_nodes(CUgraphExec exec, CUgraph graph)
{
    for (int i = 0; i < graph->count; i++) {
        exec->duration += graph->node[i].duration;
        if (graph->node[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            exec->bytes += (int64_t)((graph->node[i].allocation.bytesize + 511) & ~(size_t)511);
        if (graph->node[i].child)
            add_nodes(exec, graph->node[i].child);
    }
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
    *exec = calloc(1, sizeof **exec);
    add_nodes(*exec, graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, UNUSED unsigned long long flags)
{
    return instantiate(exec, graph);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, UNUSED CUDA_GRAPH_INSTANTIATE_PARAMS *given)
{
    return instantiate(exec, graph);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    NEED_CONTEXT;
    int device = current()->device;
    if (!exec->launched && exec->bytes) {
        pthread_mutex_lock(&context_lock);
        int64_t more = graph_needed[device] + exec->bytes - graph_reserved[device];
        bool good = more <= 0 || occupy(device, more);
        graph_reserved[device] += good && more > 0 ? more : 0;
        graph_needed[device] += good ? exec->bytes : 0;
        pthread_mutex_unlock(&context_lock);
        if (!good)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->launched = true;
    work(stream_of(stream), exec->duration);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    pthread_mutex_lock(&context_lock);
    if (exec->launched && current())
        graph_needed[current()->device] -= exec->bytes;
    pthread_mutex_unlock(&context_lock);
    free(exec);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    pthread_mutex_lock(&context_lock);
    occupy(device, graph_needed[device] - graph_reserved[device]);
    graph_reserved[device] = graph_needed[device];
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    NEED_NO_CAPTURE;
    pthread_mutex_lock(&context_lock);
    *(cuuint64_t *)value = (cuuint64_t)(attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graph_reserved[device] : 0);
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

/* -- entry points */

CUresult cuGetErrorName(CUresult error, const char **text)
{
    *text = error == 0 ? "CUDA_SUCCESS" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == 0 ? "no error" : error == 2 ? "out of memory" : "fake error";
    return CUDA_SUCCESS;
}

/* The driver's private tables are not imitated, nor its proof that it is genuine: runtimes that ask for it stop. */
CUresult cuGetExportTable(const void **table, UNUSED const CUuuid *id)
{
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult look_up(const char *name, void **address, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status, const char *asked_by)
{
    const struct fake_row *best = NULL;
    bool seen = false;
    int wanted = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, driver;
    cuDriverGetVersion(&driver);
    int most = version < driver ? version : driver;
    for (int kind = wanted; kind >= 0 && !best; kind--)
        for (int i = 0; i < fake_row_count; i++) {
            const struct fake_row *row = &fake_rows[i];
            if (strcmp(row->base, name))
                continue;
            seen = true;
            if (row->per_thread == kind && row->version <= most && (!best || row->version > best->version))
                best = row;
        }
    const char *table = getenv("FAKE_CUDA_TABLE");
    *address = !best ? NULL : table && !strcmp(table, "thunk") ? best->thunk : best->address;
    if (best && table && !strcmp(table, "alias") && !strcmp(name, "cuEventSynchronize"))
        *address = (void *)cuMemPoolDestroy;
    if (status)
        *status = best ? CU_GET_PROC_ADDRESS_SUCCESS
            : seen ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    say("asked %s %d %lu %s %s", name, version, (unsigned long)flags, best ? best->symbol : "-", asked_by);
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* The library that has called, for the log. */
static const char *caller(void *address)
{
    Dl_info info;
    if (!getenv("FAKE_CUDA_LOG") || !dladdr(address, &info) || !info.dli_fname)
        return "-";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

CUresult cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags)
{
    return look_up(name, address, version, flags, NULL, caller(__builtin_return_address(0)));
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    return look_up(name, address, version, flags, status, caller(__builtin_return_address(0)));
}
