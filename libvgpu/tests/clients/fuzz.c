/* Regions with any content: no crash, no long wait, no grant above the limit.
 *
 * Usage: fuzz REGION ROUNDS SEED. Each round changes bytes of a region that a process has mapped, then opens it anew or
 * goes on with it, charges and returns memory. A process that is alone with a broken region must still hold its limit.
 */
#include "account.h"
#include "compute.h"
#include "process.h"
#include "slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct vgpu_process vgpu_process;

/* What process.c does, without the driver. */
bool vgpu_is_open(void)
{
    return vgpu_process.region != NULL;
}

bool vgpu_open(void)
{
    return vgpu_is_open();
}

uint64_t vgpu_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Of this thread on a CPU: nothing else that the machine does counts. */
static uint64_t cpu_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int unslotted;

bool vgpu_attach(void)
{
    if (vgpu_process.slot < 0)
        vgpu_process.slot = vgpu_slot_claim(vgpu_process.region, vgpu_process.config.region);
    unslotted += vgpu_process.slot < 0;
    return vgpu_process.slot >= 0;
}

static uint64_t state;

static uint64_t number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static const uint64_t LIMIT = 1 << 30;

/* Words that matter more often than others; values that are extreme more often than others. */
static void mutate(struct region *region, int slots)
{
    unsigned char *bytes = (unsigned char *)region;
    for (uint64_t n = number() % 8; n < 8; n++) {
        uint64_t at;
        switch (number() % 6) {
        case 0: at = number() % offsetof(struct region, slot); break;
        case 1: at = offsetof(struct region, slots_used) + number() % 56; break;
        case 2: at = number() % sizeof *region; break;
        default: at = offsetof(struct region, slot) + number() % (uint64_t)slots * sizeof(struct region_slot);
            at += number() % 2 ? number() % 80 : number() % 4 ? offsetof(struct region_slot, status) + number() % 32
                : offsetof(struct region_slot, utilization) + number() % 192;
        }
        uint64_t value = number() % 4 == 0 ? UINT64_MAX : number() % 3 == 0 ? 0 : number() % 2 ? number() % 65536 : number();
        size_t size = number() % 3 == 0 ? 1 : number() % 2 ? 4 : 8;
        if (at + size <= sizeof *region)
            memcpy(bytes + at, &value, size);
    }
}

static void reopen(bool *made)
{
    struct vgpu_process *process = &vgpu_process;
    munmap(process->region, REGION_FILE);
    process->region = vgpu_region_open(process->config.region, &process->config, made);
    process->shares = process->region != NULL;
    if (!process->region)
        process->region = vgpu_region_private(&process->config);
    process->slot = -1;
    memset(process->counted, 0, sizeof process->counted);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    struct vgpu_process *process = &vgpu_process;
    long rounds = atol(argv[2]);
    state = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    bool made;
    process->config.valid = process->config.trusted = true;
    process->config.count = 1;
    snprintf(process->config.region, PATH_TEXT, "%s", argv[1]);
    process->region = vgpu_region_open(argv[1], &process->config, &made);
    process->shares = true;
    process->slot = -1;
    process->memory_limit[0] = LIMIT;
    if (!process->region)
        return 3;
    uint64_t worst = 0;
    long granted = 0, refused = 0;
    struct vgpu_bucket bucket = {0};
    for (long i = 0; i < rounds; i++) {
        int slots = 1 + (int)(number() % 4);
        if (i % 16 == 0) { /* a region that has been repaired, so that not all are equally broken */
            memset(process->region->slot, 0, 8 * sizeof(struct region_slot));
            process->region->slots_used = 4;
            process->region->magic = REGION_MAGIC;
            process->region->major = REGION_MAJOR;
            process->slot = -1;
            memset(process->counted, 0, sizeof process->counted);
        }
        mutate(process->region, slots);
        uint64_t begun = cpu_now();
        if (i % 64 == 63)
            reopen(&made);
        uint64_t size = number() % (LIMIT / 2) + 1, held = 0;
        for (int n = 0; n < 4; n++) {
            if (vgpu_charge(0, size, PART_DATA) == CUDA_OK) {
                held += size;
                granted++;
            } else {
                refused++;
            }
            if (vgpu_counted(0) > LIMIT || held > LIMIT) {
                printf("round %ld: %llu granted\n", i, (unsigned long long)held);
                return 1;
            }
        }
        vgpu_usage(0);
        struct vgpu_share share = {.name = 1 + number() % 4};
        if (vgpu_import(0, 0, size, PART_IMPORTED, &share) == CUDA_OK)
            vgpu_unimport(0, size, 0, PART_IMPORTED, &share);
        for (; held; held -= size)
            vgpu_uncharge(0, size, PART_DATA);
        /* the compute file has no more rights than the region */
        for (size_t word = 0; word < sizeof bucket / 8; word++)
            if (number() % 4 == 0)
                ((uint64_t *)&bucket)[word] = number() % 2 ? number() : UINT64_MAX;
        vgpu_bucket_sample(&bucket, number(), number());
        if (!vgpu_bucket_take(&bucket, number() % 1000000))
            vgpu_bucket_refill(&bucket, vgpu_now(), 1 + (int)(number() % 99));
        vgpu_bucket_settle(&bucket, (int64_t)(number() % 1000000));
        uint64_t took = cpu_now() - begun;
        worst = took > worst ? took : worst;
    }
    printf("%ld %ld %.3f %d\n", granted, refused, (double)worst / 1e6, unslotted);
    return 0;
}
