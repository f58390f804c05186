#include "account.h"

#include "compute.h"
#include "process.h"
#include "shares.h"
#include "slots.h"

enum { TRIES = 3 };

static uint64_t own(const struct vgpu_process *process, int d)
{
    return process->counted[d][PART_DATA] + process->counted[d][PART_CONTEXT] + process->counted[d][PART_MODULE];
}

/* The process keeps its own count and publishes it; what others write into its slot does not last. Caller locks. */
static void publish(struct vgpu_process *process, int d)
{
    struct region_memory *memory = &process->region->slot[process->slot].memory[d];
    atomic_store_explicit(&memory->data, process->counted[d][PART_DATA], memory_order_relaxed);
    atomic_store_explicit(&memory->context, process->counted[d][PART_CONTEXT], memory_order_relaxed);
    atomic_store_explicit(&memory->module, process->counted[d][PART_MODULE], memory_order_relaxed);
    atomic_store_explicit(&memory->imported, process->counted[d][PART_IMPORTED], memory_order_relaxed);
    atomic_store_explicit(&memory->exported, process->counted[d][PART_EXPORTED], memory_order_relaxed);
    atomic_store(&memory->total, own(process, d));
}

/* Bytes in records, which are only read again after a change. Caller locks. */
static uint64_t shared(struct vgpu_process *process, int d)
{
    uint64_t version = vgpu_shares_version(process->region);
    if (UNLIKELY(version != process->shared[d].version)) {
        process->shared[d].bytes = vgpu_shares_sum(process->region, d, NULL, 0);
        process->shared[d].version = version;
    }
    return process->shared[d].bytes;
}

/* What the container would use if this process counted so many bytes more, and records that many. */
static uint64_t usage_with(const struct vgpu_process *process, int d, uint64_t more, enum vgpu_part part,
                           uint64_t recorded)
{
    struct vgpu_sum sum = {.counted = recorded};
    if (process->slot >= 0)
        sum = (struct vgpu_sum){.counted = vgpu_add(recorded, own(process, d)),
                                .exported = process->counted[d][PART_EXPORTED],
                                .imported = process->counted[d][PART_IMPORTED]};
    if (part == PART_IMPORTED)
        sum.imported = vgpu_add(sum.imported, more);
    else
        sum.counted = vgpu_add(sum.counted, more);
    /* The driver lets this process wait until it is woken, and then there must be room for it with all that it counts by then. */
    if (!vgpu_is_own_suspended(process))
        vgpu_region_others(process->region, process->slot, d, &sum);
    return vgpu_add(sum.counted, vgpu_less(sum.imported, sum.exported));
}

static bool fits(struct vgpu_process *process, int d, uint64_t more, enum vgpu_part part)
{
    uint64_t limit = process->memory_limit[d];
    if (limit == 0)
        return true;
    if (limit == UINT64_MAX)
        return more == 0 && own(process, d) == 0;
    return usage_with(process, d, more, part, shared(process, d)) <= limit;
}

/* Adds, then checks, then takes back: of two processes that do so at once, at least one sees the other's sum. */
static bool try(struct vgpu_process *process, int d, uint64_t bytes, enum vgpu_part part)
{
    vgpu_lock(&process->lock);
    bool granted = fits(process, d, bytes, part); /* a hopeless request must not make that of another process fail */
    if (granted) {
        process->counted[d][part] += bytes;
        VGPU_POINT(40);
        publish(process, d);
        VGPU_POINT(41);
        if (process->memory_limit[d] && !fits(process, d, 0, part)) {
            process->counted[d][part] -= bytes;
            VGPU_POINT(42);
            publish(process, d);
            granted = false;
        }
    }
    vgpu_unlock(&process->lock);
    return granted;
}

/* Writes the record of an import, changes it, or removes it. False: there is none left. Caller locks. */
static bool record(struct vgpu_process *process, int d, uint64_t bytes, struct vgpu_share *share)
{
    if (share->record && bytes) {
        vgpu_share_resize(process->region, process->slot, share->record, bytes);
    } else if (share->record) {
        vgpu_share_remove(process->region, process->slot, share->record);
        process->imports--;
        share->record = 0;
    } else if (bytes) {
        share->record = vgpu_share_add(process->region, process->slot, d, bytes, share, false);
        process->imports += share->record != 0;
    }
    return share->record || !bytes;
}

/* As try, for a block that others may count already. */
static bool try_import(struct vgpu_process *process, int d, uint64_t before, uint64_t after, enum vgpu_part part,
                       struct vgpu_share *share)
{
    uint64_t limit = process->memory_limit[d];
    vgpu_lock(&process->lock);
    bool granted = limit != UINT64_MAX, recorded = true;
    if (granted && limit)
        granted = usage_with(process, d, 0, part, vgpu_shares_sum(process->region, d, share, after)) <= limit;
    if (granted)
        recorded = record(process, d, after, share);
    if (granted && recorded && !fits(process, d, 0, part)) {
        record(process, d, before, share);
        granted = false;
    }
    vgpu_unlock(&process->lock);
    return recorded ? granted : try(process, d, after, part);
}

/* What a process asks for: bytes, or a block that was imported. */
struct request {
    int d;
    uint64_t before, after;
    enum vgpu_part part;
    struct vgpu_share *share; /* NULL: bytes */
};

__attribute__((noinline)) static bool admit(struct vgpu_process *process, const struct request *asked)
{
    if (asked->share)
        return try_import(process, asked->d, asked->before, asked->after, asked->part, asked->share);
    return try(process, asked->d, asked->after, asked->part);
}

/* What was refused at once: too much, or others were counting at the same time, or dead processes still count. */
__attribute__((noinline, cold)) static int insist(const struct request *asked)
{
    struct vgpu_process *process = &vgpu_process;
    if (!vgpu_attach())
        return vgpu_is_open() && !process->config.valid ? CUDA_NOT_PERMITTED : CUDA_OUT_OF_MEMORY;
    if (asked->after > process->memory_limit[asked->d] || !process->shares)
        return CUDA_OUT_OF_MEMORY;
    for (int i = 0; i < TRIES; i++) {
        vgpu_region_reap(process->region, process->config.region);
        if (admit(process, asked))
            return CUDA_OK;
        vgpu_pause(20000L << i);
    }
    return CUDA_OUT_OF_MEMORY;
}

int vgpu_charge(int d, uint64_t bytes, enum vgpu_part part)
{
    if (LIKELY(vgpu_attach() && (bytes == 0 || try(&vgpu_process, d, bytes, part))))
        return CUDA_OK;
    return insist(&(struct request){.d = d, .after = bytes, .part = part});
}

/* Caller locks. */
static void add(int d, uint64_t more, uint64_t less, enum vgpu_part part)
{
    struct vgpu_process *process = &vgpu_process;
    process->counted[d][part] = vgpu_less(vgpu_add(process->counted[d][part], more), less);
    VGPU_POINT(43);
    publish(process, d);
    VGPU_POINT(44);
}

void vgpu_uncharge(int d, uint64_t bytes, enum vgpu_part part)
{
    if (!bytes || !vgpu_attach())
        return;
    vgpu_lock(&vgpu_process.lock);
    add(d, 0, bytes, part);
    vgpu_unlock(&vgpu_process.lock);
}

void vgpu_free(struct vgpu_freed *freed, const struct vgpu_amount *amount)
{
    if (amount->device < 0)
        return;
    struct vgpu_share share = amount->share;
    if (share.record)
        record(&vgpu_process, amount->device, 0, &share);
    else
        freed->bytes[amount->device][amount->part] += amount->bytes;
    if (amount->exported) {
        vgpu_unexport(amount);
        freed->bytes[amount->device][PART_EXPORTED] += amount->bytes;
    }
}

/* What was exported no longer covers what others hold before it is no longer counted itself: nothing is ever missing. */
void vgpu_uncharge_all(const struct vgpu_freed *freed)
{
    for (int d = 0; d < VGPU_DEVICES; d++)
        for (int part = PART_COUNT - 1; part >= 0; part--)
            vgpu_uncharge(d, freed->bytes[d][part], (enum vgpu_part)part);
}

void vgpu_export(struct vgpu_amount *amount, uint64_t name)
{
    struct vgpu_process *process = &vgpu_process;
    if (!amount || amount->part != PART_DATA)
        return;
    if (name && name != amount->share.name) {
        struct vgpu_share share = {.name = name, .block = amount->share.block ? amount->share.block : name};
        vgpu_share_add(process->region, process->slot, amount->device, amount->bytes, &share, true);
        amount->share = share;
    }
    if (!amount->exported)
        process->counted[amount->device][PART_EXPORTED] += amount->bytes;
    amount->exported = true;
    publish(process, amount->device);
}

void vgpu_unexport(const struct vgpu_amount *amount)
{
    if (amount->share.block)
        vgpu_shares_drop(vgpu_process.region, vgpu_process.slot, true, amount->share.block);
}

int vgpu_import(int d, uint64_t before, uint64_t after, enum vgpu_part part, struct vgpu_share *share)
{
    bool named = share->name && (share->record || !before) && vgpu_attach();
    if (!named)
        return vgpu_charge(d, after - before, part);
    if (!share->block)
        share->block = vgpu_share_block(vgpu_process.region, share->name);
    struct request asked = {.d = d, .before = before, .after = after, .part = part, .share = share};
    return admit(&vgpu_process, &asked) ? CUDA_OK : insist(&asked);
}

void vgpu_unimport(int d, uint64_t before, uint64_t after, enum vgpu_part part, const struct vgpu_share *share)
{
    struct vgpu_share held = *share;
    if (!held.record) {
        vgpu_uncharge(d, before - after, part);
        return;
    }
    vgpu_lock(&vgpu_process.lock);
    record(&vgpu_process, d, after, &held);
    vgpu_unlock(&vgpu_process.lock);
}

int vgpu_recharge(int d, uint64_t before, uint64_t after, enum vgpu_part part)
{
    if (after > before)
        return vgpu_charge(d, after - before, part);
    vgpu_uncharge(d, before - after, part);
    return CUDA_OK;
}

bool vgpu_correct(int d, uint64_t before, uint64_t after, enum vgpu_part part)
{
    add(d, after, before, part);
    return fits(&vgpu_process, d, 0, part);
}

uint64_t vgpu_usage(int d)
{
    struct vgpu_process *process = &vgpu_process;
    vgpu_lock(&process->lock);
    uint64_t recorded = UNLIKELY(vgpu_shares_version(process->region) != 0) ? shared(process, d) : 0;
    uint64_t usage = usage_with(process, d, 0, PART_DATA, recorded);
    vgpu_unlock(&process->lock);
    return usage;
}

bool vgpu_is_within(int d)
{
    vgpu_lock(&vgpu_process.lock);
    bool within = fits(&vgpu_process, d, 0, PART_DATA);
    vgpu_unlock(&vgpu_process.lock);
    return within;
}

uint64_t vgpu_counted(int d)
{
    vgpu_lock(&vgpu_process.lock);
    uint64_t counted = own(&vgpu_process, d);
    vgpu_unlock(&vgpu_process.lock);
    return counted;
}

void vgpu_tidy(void)
{
    struct vgpu_process *process = &vgpu_process;
    if (process->shares && vgpu_compute_is_due(process->compute, vgpu_now()))
        vgpu_region_reap(process->region, process->config.region);
}
