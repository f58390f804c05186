/* The compute limit in simulated time: processes with a workload each, a GPU that gives each a time slice, samples of
 * utilization, and control.c between them.
 *
 * Usage: simulate WORKLOAD PROCESSES CONTAINERS SAMPLES SMS LIMIT [LIMIT ...]
 * WORKLOAD: one of the names below, or a number: the period of a pattern of launches of one kernel, 2 ms and else 0.1 ms.
 * SAMPLES: which a monitor writes, a number of enum monitor. Prints, for each container: mean, mean error and worst excess
 * of one-second windows in percent points, seconds until it settled.
 */
#include "control.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum workload { FLOOD, SYNC, DECODE, MIXED, ON_OFF, MEDIUM, PERIOD };
static const char *const workloads[] = {"flood", "sync", "decode", "mixed", "onoff", "medium"};

enum { MOST = 8, QUEUE = 1024, KEYS = 8, ROUND = 5 };

/* NONE writes no samples. EXACT writes what each container had of the GPU. NVML does as on an H200: five times a second,
 * all that the GPU has done is the work of the process that it works for at that moment. */
enum monitor { NONE, EXACT, NVML };

static const uint64_t SECOND = 1000000000, SLICE = 2000000, LAUNCH = 5000, END = 60;

struct kernel {
    uint64_t work, start;
    int key;
    bool measured;
};

struct process {
    int container;
    uint64_t next; /* when it launches again */
    bool waits;    /* until its queue is empty */
    int step, first, queued, launched;
    struct kernel queue[QUEUE], wanted;
    struct vgpu_estimate estimate[KEYS];
};

static struct process processes[MOST];
static struct vgpu_bucket buckets[MOST];
static uint64_t now, random_state = 88172645463325252u;
static int limits[MOST], count, containers, period;
static enum workload workload;
static double busy_second[MOST], busy_sample[MOST], seen[MOST];
static uint64_t sampled;
static int intervals;

static double uniform(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) / 9007199254740992.0;
}

static void want(struct process *process)
{
    struct kernel *kernel = &process->wanted;
    *kernel = (struct kernel){0};
    switch (workload) {
    case SYNC: kernel->work = 100000000; break;
    case MEDIUM: kernel->work = 20000000; break;
    case DECODE: kernel->work = 30000; break;
    case PERIOD: kernel->work = process->launched++ % period ? 100000 : 2000000; break;
    case MIXED: /* 10 µs to 5 ms, and a fifth of variation that no key tells */
        kernel->key = (int)(uniform() * KEYS);
        kernel->work = (uint64_t)(10000 * pow(500, kernel->key / 7.0) * (0.8 + 0.4 * uniform()));
        break;
    default: kernel->work = 50000;
    }
}

/* As launch.c does. Returns when to try again, or 0 if the launch passes. */
static uint64_t gate(struct process *process)
{
    int limit = limits[process->container];
    struct vgpu_bucket *bucket = &buckets[process->container];
    struct kernel *kernel = &process->wanted;
    if (limit >= 100)
        return 0;
    if (atomic_load(&bucket->credit) <= 0) {
        uint64_t wait = vgpu_bucket_refill(bucket, now, limit);
        if (wait)
            return now + (wait < 20000000 ? wait : 20000000);
    }
    vgpu_bucket_take(bucket, vgpu_estimate_launch(&process->estimate[kernel->key], &kernel->measured));
    return 0;
}

static void finish(struct process *process)
{
    struct kernel *kernel = &process->queue[process->first];
    if (kernel->measured && limits[process->container] < 100)
        vgpu_bucket_settle(&buckets[process->container],
                           vgpu_estimate_measured(&process->estimate[kernel->key], now - kernel->start));
    process->first = (process->first + 1) % QUEUE;
    if (--process->queued == 0 && process->waits) {
        process->waits = false;
        process->next = now + (workload == DECODE ? 1000000 : 20000);
    }
}

static void launch(struct process *process)
{
    if (workload == ON_OFF && now / (3 * SECOND) % 2) {
        process->next = now + 1000000;
        return;
    }
    uint64_t again = gate(process);
    if (again) {
        process->next = again > now + 1000 ? again : now + 1000;
        return;
    }
    process->queue[(process->first + process->queued++) % QUEUE] = process->wanted;
    want(process);
    process->next = now + LAUNCH;
    if (workload == SYNC || workload == MEDIUM)
        process->waits = true;
    if (workload == DECODE && ++process->step == 200) {
        process->step = 0;
        process->waits = true;
    }
}

/* As a driver that samples the GPU, and a monitor that asks it. `at`: the process for which the GPU works. */
static void sample(enum monitor monitor, int at)
{
    double sum = 0;
    for (int i = 0; i < containers; i++) {
        seen[i] += monitor == EXACT ? busy_sample[i] : 0;
        sum += busy_sample[i];
        busy_sample[i] = 0;
    }
    if (monitor == NVML) {
        seen[processes[at].container] += sum;
        if (++intervals % ROUND)
            return;
    }
    for (int i = 0; monitor != NONE && i < containers; i++) {
        vgpu_bucket_sample(&buckets[i], now, (uint64_t)(seen[i] * 100 / (double)(now - sampled) + 0.5));
        seen[i] = 0;
    }
    sampled = now;
}

int main(int argc, char **argv)
{
    if (argc < 7)
        return 2;
    period = atoi(argv[1]);
    while (workload < PERIOD && strcmp(workloads[workload], argv[1]))
        workload++;
    count = atoi(argv[2]);
    containers = atoi(argv[3]);
    enum monitor monitor = (enum monitor)atoi(argv[4]);
    for (int i = 0; i < containers; i++)
        limits[i] = atoi(argv[6 + i]);
    random_state += (uint64_t)atoi(argv[5]) * 0x9e3779b97f4a7c15u;
    now = SECOND; /* no clock reads 0 */
    for (int i = 0; i < count; i++) {
        processes[i].container = i % containers;
        processes[i].next = now + (uint64_t)i * 100000;
        want(&processes[i]);
    }
    int runs = -1, last = 0;
    uint64_t slice_end = 0, next_sample = now + SECOND / 6, next_second = now + SECOND, begun = now;
    double sum[MOST] = {0}, error[MOST] = {0}, worst[MOST] = {0};
    int windows[MOST] = {0}, settled[MOST], good[MOST] = {0};
    for (int i = 0; i < MOST; i++)
        settled[i] = -1;
    while (now < begun + END * SECOND) {
        uint64_t then = next_sample < next_second ? next_sample : next_second;
        for (int i = 0; i < count; i++)
            if (!processes[i].waits && processes[i].queued < QUEUE && processes[i].next < then)
                then = processes[i].next;
        if (runs >= 0) {
            uint64_t left = processes[runs].queue[processes[runs].first].work;
            then = now + left < then ? now + left : then;
            then = slice_end < then ? slice_end : then;
        }
        then = then < now ? now : then;
        if (runs >= 0) {
            struct process *process = &processes[runs];
            process->queue[process->first].work -= then - now;
            busy_second[process->container] += (double)(then - now);
            busy_sample[process->container] += (double)(then - now);
        }
        now = then;
        if (runs >= 0) {
            if (processes[runs].queue[processes[runs].first].work == 0) {
                finish(&processes[runs]);
                if (processes[runs].queued)
                    processes[runs].queue[processes[runs].first].start = now;
                else
                    runs = -1;
            }
            if (now >= slice_end)
                runs = -1;
        }
        for (int i = 0; i < count; i++)
            if (!processes[i].waits && processes[i].queued < QUEUE && processes[i].next <= now)
                launch(&processes[i]);
        for (int i = 1; runs < 0 && i <= count; i++) {
            int at = (last + i) % count;
            if (!processes[at].queued)
                continue;
            struct kernel *kernel = &processes[at].queue[processes[at].first];
            kernel->start = kernel->start ? kernel->start : now;
            runs = last = at;
            slice_end = now + SLICE;
        }
        if (now >= next_sample) {
            sample(monitor, last);
            next_sample += monitor == NVML ? (uint64_t)((0.19 + 0.02 * uniform()) * (double)SECOND) : SECOND / 6;
        }
        if (now >= next_second) {
            int second = (int)((now - begun) / SECOND);
            for (int i = 0; i < containers; i++) {
                double used = busy_second[i] / (double)SECOND * 100, off = used - limits[i];
                busy_second[i] = 0;
                if (workload == ON_OFF && (second / 3) % 2) /* simulated time began at 1 s */
                    continue;
                good[i] = fabs(off) <= 3 || fabs(off) <= 0.1 * limits[i] ? good[i] + 1 : 0;
                if (good[i] == 3 && settled[i] < 0)
                    settled[i] = second - 3;
                if (second <= 10)
                    continue;
                sum[i] += used;
                error[i] += fabs(off);
                worst[i] = off > worst[i] ? off : worst[i];
                windows[i]++;
            }
            next_second += SECOND;
        }
    }
    for (int i = 0; i < containers; i++)
        printf("%.2f %.2f %.2f %d\n", sum[i] / windows[i], error[i] / windows[i], worst[i], settled[i]);
    return 0;
}
