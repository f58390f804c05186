/* A libnvidia-ml.so.1 with CARDS cards (two), the first of which supports MIG: the functions that hami.devices.nvml* call,
 * with the structures of NVIDIA's nvml.h (driver 550) written out, so that pynvml's own ctypes declarations are put to the
 * test.
 * FAKE_NVML_FAIL=function:card:status[,…] lets a function fail for a card; FAKE_NVML_XID=n has the second card report it.
 * FAKE_NVML_HEALTH names a file with numbers: the serial number, the card and the code of the last XID, and what the driver
 * asks for of each card (-1: it does not know the field, as before release 570). Changes of it are events, which come after
 * 10 ms, or FAKE_NVML_PAUSE_MS.
 * FAKE_NVML_MODULE names a file with the version of the driver that is loaded. A library of another VERSION refuses all
 * calls, and every library does while there is no such file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION "550.1"
#endif
#ifndef CARDS
#define CARDS 2
#endif

typedef int ret_t;
typedef unsigned int uint;
typedef unsigned long long ull;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10, MISMATCH = 18,
       NO_ROOM = 22 };
enum { NO_INSTANCE = 0xFFFFFFFF };

typedef struct card { int index; uint mig; } card_t;
typedef struct inst { card_t *card; uint id, profile, start, size; int used, inner; } inst_t;
typedef struct mig { inst_t *inst; } mig_t;
typedef struct { ull total, free, used; } memory_t;
typedef struct { char legacy[16]; uint domain, bus, device, ids, subsystem; char bus_id[32]; } pci_t;
typedef struct { void *device; ull type, data; uint gpu_instance, compute_instance; } event_t;
typedef struct { uint start, size; } placement_t;
typedef struct { uint version, id, p2p, slices, instances, sms, copy, dec, enc, jpeg, ofa; ull memory; char name[96]; }
    profile_t;
typedef struct { uint version, id, slices, instances, sms, copy, dec, enc, jpeg, ofa; char name[96]; } inner_profile_t;
typedef struct { void *device; uint id, profile; placement_t placement; } gi_info_t;
typedef struct { void *device, *gi; uint id, profile; placement_t placement; } ci_info_t;
typedef struct { uint pid; ull memory; uint gpu_instance, compute_instance; } process_t;
typedef struct { uint gpu, memory; } utilization_t;
typedef struct { uint pid; ull when; uint sm, memory, encoder, decoder; } sample_t;
typedef struct { uint sms, copy, dec, enc, jpeg, ofa, gi_slices, ci_slices; ull memory; } attributes_t;

static card_t cards[CARDS];
static inst_t insts[8];
static mig_t migs[8];
static const struct { uint id, slices, sms, memory, size, count; const char *name; } profiles[] = {
    {19, 1, 14, 9728, 1, 7, "MIG 1g.10gb"}, {14, 2, 28, 19968, 2, 3, "MIG 2g.20gb"}};

static int is_mig(void *handle) { return (mig_t *)handle >= migs && (mig_t *)handle < migs + 8; }

/* The version of the loaded driver: that of the library, unless a file says another. NULL if none is loaded. */
static const char *loaded(void) {
    static char text[32];
    const char *path = getenv("FAKE_NVML_MODULE");
    if (!path) return VERSION;
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    const char *read = fgets(text, sizeof text, file);
    fclose(file);
    return read;
}

static ret_t fails(const char *function, int card) {
    if (!loaded()) return NOT_LOADED;
    if (strcmp(loaded(), VERSION)) return MISMATCH;
    char text[512], *rest = text, *word, name[64];
    int which, status;
    snprintf(text, sizeof text, "%s", getenv("FAKE_NVML_FAIL") ? getenv("FAKE_NVML_FAIL") : "");
    while ((word = strsep(&rest, ",")))
        if (sscanf(word, "%63[^:]:%d:%d", name, &which, &status) == 3 && !strcmp(name, function) && which == card)
            return status;
    return OK;
}
#define ENTER(card) do { ret_t status = fails(__func__, card); if (status) return status; } while (0)

ret_t nvmlInitWithFlags(uint flags) { ENTER(-1); return OK; }
ret_t nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(ret_t status) {
    return status == 15 ? "GPU is lost" : status == MISMATCH ? "Driver/library version mismatch" : "some error";
}
ret_t nvmlSystemGetDriverVersion(char *text, uint size) {
    ENTER(-1);
    return snprintf(text, size, "%s", loaded()) < (int)size ? OK : SMALL;
}

ret_t nvmlDeviceGetCount_v2(uint *count) { ENTER(-1); *count = CARDS; return OK; }
ret_t nvmlDeviceGetHandleByIndex_v2(uint index, void **handle) {
    ENTER((int)index);
    if (index >= CARDS) return INVALID;
    cards[index].index = (int)index;
    *handle = &cards[index];
    return OK;
}
ret_t nvmlDeviceGetUUID(void *handle, char *text, uint size) {
    if (is_mig(handle)) {
        snprintf(text, size, "MIG-%u", ((mig_t *)handle)->inst->id);
        return OK;
    }
    ENTER(((card_t *)handle)->index);
    return snprintf(text, size, "GPU-%d", ((card_t *)handle)->index) < (int)size ? OK : SMALL;
}
ret_t nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int index;
    if (sscanf(uuid, "GPU-%d", &index) != 1 || index < 0 || index >= CARDS) return NOT_FOUND;
    cards[index].index = index;
    *handle = &cards[index];
    return OK;
}
ret_t nvmlDeviceGetName(card_t *card, char *text, uint size) {
    ENTER(card->index);
    snprintf(text, size, card->index ? "Tesla T4" : "NVIDIA A100-SXM4-80GB");
    return OK;
}
ret_t nvmlDeviceGetMemoryInfo(card_t *card, memory_t *memory) {
    ENTER(card->index);
    memory->total = card->index ? 16106127360ULL : 85899345920ULL;
    memory->free = memory->total - 4096;
    memory->used = 4096;
    return OK;
}
ret_t nvmlDeviceGetMinorNumber(card_t *card, uint *minor) { ENTER(card->index); *minor = 4 + card->index; return OK; }
ret_t nvmlDeviceGetPciInfo_v3(card_t *card, pci_t *pci) {
    ENTER(card->index);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->legacy, sizeof pci->legacy, "wrong");
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x3B + card->index);
    return OK;
}

typedef struct { uint field, scope; long long at, took; uint type, status; union { double d; uint ui; ull ull; } value; }
    field_t;
static struct health { int serial, card, xid, action[CARDS]; } told;

/* What FAKE_NVML_HEALTH says; nothing but unknown fields without it. */
static struct health health(void) {
    struct health now = {0, 0, 0, {0}};
    for (int at = 0; at < CARDS; at++) now.action[at] = -1;
    const char *path = getenv("FAKE_NVML_HEALTH");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return now;
    if (fscanf(file, "%d %d %d", &now.serial, &now.card, &now.xid) < 3) {
        now = told;
    } else {
        for (int at = 0; at < CARDS; at++)
            if (fscanf(file, "%d", &now.action[at]) < 1) break;
    }
    fclose(file);
    return now;
}
ret_t nvmlDeviceGetFieldValues(card_t *card, int count, field_t *values) {
    ENTER(card->index);
    int action = health().action[card->index];
    for (int at = 0; at < count; at++) {
        values[at].status = values[at].field == 230 && action >= 0 ? OK : NOT_SUPPORTED;
        values[at].type = 1;
        values[at].value.ui = (uint)action;
    }
    return OK;
}

ret_t nvmlEventSetCreate(void **set) { ENTER(-1); *set = insts; return OK; }
ret_t nvmlEventSetFree(void *set) { return set == insts ? OK : INVALID; }
ret_t nvmlDeviceGetSupportedEventTypes(card_t *card, ull *types) {
    ENTER(card->index);
    *types = 0x1b | (health().action[card->index] >= 0 ? 0x8000 : 0);
    return OK;
}
ret_t nvmlDeviceRegisterEvents(card_t *card, ull types, void *set) {
    ENTER(card->index);
    if (card->index == 0) told = health();
    return set == insts && (types & ~0x8000ULL) == 8 ? OK : INVALID;
}
ret_t nvmlEventSetWait_v2(void *set, event_t *event, uint timeout_ms) {
    static int was_told;
    const char *xid = getenv("FAKE_NVML_XID");
    ENTER(-1);
    if (xid && !was_told++) {
        *event = (event_t){&cards[1], 8, strtoull(xid, NULL, 10), NO_INSTANCE, NO_INSTANCE};
        return OK;
    }
    const char *text = getenv("FAKE_NVML_PAUSE_MS");
    uint pause_ms = text ? (uint)atoi(text) : 10;
    for (uint waited = 0; waited < timeout_ms; waited += pause_ms) {
        struct health now = health();
        if (now.serial != told.serial) {
            told.serial = now.serial;
            *event = (event_t){&cards[now.card], 8, (ull)now.xid, NO_INSTANCE, NO_INSTANCE};
            return OK;
        }
        for (int at = 0; at < CARDS; at++)
            if (now.action[at] != told.action[at]) {
                told.action[at] = now.action[at];
                *event = (event_t){&cards[at], 0x8000, 0, NO_INSTANCE, NO_INSTANCE};
                return OK;
            }
        usleep(1000 * pause_ms);
        ENTER(-1);
    }
    return TIMEOUT;
}

ret_t nvmlDeviceGetMigMode(card_t *card, uint *current, uint *pending) {
    ENTER(card->index);
    *current = *pending = card->mig;
    return card->index ? NOT_SUPPORTED : OK;
}
ret_t nvmlDeviceSetMigMode(card_t *card, uint mode, ret_t *activation) {
    ENTER(card->index);
    card->mig = mode;
    *activation = OK;
    return OK;
}
ret_t nvmlDeviceGetGpuInstanceProfileInfoV(card_t *card, uint number, profile_t *info) {
    ENTER(card->index);
    if (card->index || number > 1 || info->version != (sizeof *info | 2u << 24)) return NOT_SUPPORTED;
    *info = (profile_t){.version = info->version, .id = profiles[number].id, .slices = profiles[number].slices,
                        .instances = profiles[number].count, .sms = profiles[number].sms, .copy = 1,
                        .memory = profiles[number].memory};
    strcpy(info->name, profiles[number].name);
    return OK;
}
ret_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(card_t *card, uint profile, placement_t *places, uint *count) {
    int number = profile == 14;
    *count = profiles[number].count;
    for (uint at = 0; places && at < *count; at++)
        places[at] = (placement_t){at * profiles[number].size, profiles[number].size};
    return OK;
}
ret_t nvmlDeviceCreateGpuInstanceWithPlacement(card_t *card, uint profile, const placement_t *place, inst_t **made) {
    ENTER(card->index);
    for (inst_t *one = insts; one < insts + 8; one++)
        if (one->used && one->start < place->start + place->size && place->start < one->start + one->size)
            return NO_ROOM;
    for (uint at = 0; at < 8; at++)
        if (!insts[at].used) {
            insts[at] = (inst_t){card, at + 1, profile, place->start, place->size, 1, 0};
            migs[at].inst = *made = &insts[at];
            return OK;
        }
    return NO_ROOM;
}
ret_t nvmlGpuInstanceGetInfo(inst_t *one, gi_info_t *info) {
    *info = (gi_info_t){one->card, one->id, one->profile, {one->start, one->size}};
    return OK;
}
ret_t nvmlDeviceGetGpuInstances(card_t *card, uint profile, inst_t **found, uint *count) {
    *count = 0;
    for (inst_t *one = insts; one < insts + 8; one++)
        if (one->used && one->profile == profile) found[(*count)++] = one;
    return OK;
}
ret_t nvmlDeviceGetGpuInstanceById(card_t *card, uint id, inst_t **found) {
    if (id < 1 || id > 8 || !insts[id - 1].used) return NOT_FOUND;
    *found = &insts[id - 1];
    return OK;
}
ret_t nvmlGpuInstanceDestroy(inst_t *one) { return one->inner ? 19 : (one->used = 0); }
ret_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(inst_t *one, uint number, uint engine, inner_profile_t *info) {
    if (number != one->size - 1 || engine || info->version != (sizeof *info | 2u << 24)) return NOT_SUPPORTED;
    info->id = 50 + number;
    info->slices = one->size;
    info->instances = 1;
    return OK;
}
ret_t nvmlGpuInstanceCreateComputeInstance(inst_t *one, uint profile, inst_t **made) {
    ENTER(one->card->index);
    one->inner = 1;
    *made = one;
    return profile == 49 + one->size ? OK : INVALID;
}
ret_t nvmlComputeInstanceGetInfo_v2(inst_t *one, ci_info_t *info) {
    *info = (ci_info_t){one->card, one, 0, 49 + one->size, {0, one->size}};
    return OK;
}
ret_t nvmlGpuInstanceGetComputeInstances(inst_t *one, uint profile, inst_t **found, uint *count) {
    if ((*count = one->inner)) found[0] = one;
    return OK;
}
ret_t nvmlComputeInstanceDestroy(inst_t *one) { return one->inner = 0; }
ret_t nvmlDeviceGetMaxMigDeviceCount(card_t *card, uint *count) { *count = 7; return OK; }
ret_t nvmlDeviceGetMigDeviceHandleByIndex(card_t *card, uint index, void **handle) {
    if (!insts[index].used || !insts[index].inner) return NOT_FOUND;
    *handle = &migs[index];
    return OK;
}
ret_t nvmlDeviceGetGpuInstanceId(mig_t *mig, uint *id) { *id = mig->inst->id; return OK; }
ret_t nvmlDeviceGetComputeInstanceId(mig_t *mig, uint *id) { *id = 0; return OK; }
ret_t nvmlDeviceGetAttributes_v2(mig_t *mig, attributes_t *has) {
    *has = (attributes_t){.gi_slices = mig->inst->size, .ci_slices = mig->inst->size, .memory = 9728};
    return OK;
}

/* Two processes on the second card: one of known memory that has worked, one of unknown memory that has not. */
static ret_t give(const void *all, uint number, size_t size, uint *count, void *found) {
    uint room = *count;
    *count = number;
    if (room < number) return SMALL;
    memcpy(found, all, number * size);
    return OK;
}
ret_t nvmlDeviceGetComputeRunningProcesses_v3(void *handle, uint *count, process_t *found) {
    static const process_t all[] = {{4007, 1 << 30, NO_INSTANCE, NO_INSTANCE}, {4008, ~0ULL, NO_INSTANCE, NO_INSTANCE}};
    if (!is_mig(handle)) ENTER(((card_t *)handle)->index);
    return give(all, handle == &cards[1] ? 2 : 0, sizeof *all, count, found);
}
ret_t nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, uint *count, void *found) { *count = 0; return OK; }
ret_t nvmlDeviceGetUtilizationRates(card_t *card, utilization_t *rates) {
    ENTER(card->index);
    *rates = (utilization_t){60 + card->index, 20};
    return OK;
}
ret_t nvmlDeviceGetProcessUtilization(card_t *card, sample_t *found, uint *count, ull since) {
    static const sample_t all[] = {{4007, 1ULL << 60, 45, 10, 0, 0}, {4007, 1, 99, 0, 0, 0}};
    ENTER(card->index);
    if (card->index == 0) return NOT_FOUND;
    if (!found) *count = 0;
    return give(all, 2, sizeof *all, count, found);
}
