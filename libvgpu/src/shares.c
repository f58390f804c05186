#include "shares.h"

#include "table.h"

/* A state: slot + 1, exported, device, size in units of 512 bytes. Size 0: the record is not written yet. */
enum { OWNER_BITS = 11, EXPORTED_BIT = 11, DEVICE_BIT = 12, SIZE_BIT = 16, UNIT = 512 };

struct state {
    int owner, device;
    bool exported;
    uint64_t bytes;
};

static uint64_t pack(const struct state *state)
{
    uint64_t units = vgpu_round(state->bytes, UNIT) / UNIT;
    return (uint64_t)(state->owner + 1) | (uint64_t)state->exported << EXPORTED_BIT
        | (uint64_t)state->device << DEVICE_BIT | units << SIZE_BIT;
}

static struct state unpack(uint64_t packed)
{
    return (struct state){.owner = (int)(packed & ((1 << OWNER_BITS) - 1)) - 1,
                          .exported = packed >> EXPORTED_BIT & 1,
                          .device = (int)(packed >> DEVICE_BIT & (VGPU_DEVICES - 1)),
                          .bytes = (packed >> SIZE_BIT) * UNIT};
}

static struct region_record *at(struct region *region, uint32_t number)
{
    return &region->slot[number / VGPU_DEVICES].utilization[number % VGPU_DEVICES].record;
}

/* The first record says what holds for all: `name` is the version, `block` how many have ever been used. */
static struct region_record *head(struct region *region)
{
    return at(region, 0);
}

static uint32_t used_records(struct region *region)
{
    uint64_t used = atomic_load(&head(region)->block);
    return used < SHARE_RECORDS ? (uint32_t)used : SHARE_RECORDS - 1;
}

static void changed(struct region *region)
{
    if (atomic_fetch_add(&head(region)->name, 1) == UINT64_MAX)
        atomic_fetch_add(&head(region)->name, 1); /* never 0 again */
}

uint64_t vgpu_shares_version(const struct region *region)
{
    return atomic_load(&region->slot[0].utilization[0].record.name);
}

void vgpu_shares_changed(struct region *region)
{
    if (vgpu_shares_version(region))
        changed(region);
}

uint64_t vgpu_share_block(struct region *region, uint64_t name)
{
    uint32_t used = used_records(region);
    for (uint32_t i = 1; i <= used; i++) {
        struct region_record *record = at(region, i);
        if (unpack(atomic_load(&record->state)).bytes && atomic_load(&record->name) == name)
            return atomic_load(&record->block);
    }
    return name;
}

uint64_t vgpu_share_bytes(struct region *region, uint64_t block)
{
    uint64_t bytes = 0;
    uint32_t used = used_records(region);
    for (uint32_t i = 1; i <= used; i++) {
        struct region_record *record = at(region, i);
        uint64_t held = unpack(atomic_load(&record->state)).bytes;
        if (held > bytes && atomic_load(&record->block) == block)
            bytes = held;
    }
    return bytes;
}

/* Records up to this one are looked at from now on. */
static void announce(struct region *region, uint32_t number)
{
    uint64_t used = atomic_load(&head(region)->block);
    while ((used < number || used >= SHARE_RECORDS)
           && !atomic_compare_exchange_weak(&head(region)->block, &used, number))
        continue;
}

/* Whoever is killed while it writes leaves a record that counts nothing, and that goes with its slot. */
uint32_t vgpu_share_add(struct region *region, int owner, int d, uint64_t bytes, const struct vgpu_share *share,
                        bool exported)
{
    struct state state = {.owner = owner, .device = d, .exported = exported};
    for (uint32_t i = 1; i < SHARE_RECORDS; i++) {
        struct region_record *record = at(region, i);
        uint64_t none = 0;
        if (atomic_load_explicit(&record->state, memory_order_relaxed))
            continue;
        announce(region, i);
        if (!atomic_compare_exchange_strong(&record->state, &none, pack(&state)))
            continue;
        VGPU_POINT(70);
        atomic_store(&record->name, share->name);
        atomic_store(&record->block, share->block);
        VGPU_POINT(71);
        vgpu_share_resize(region, owner, i, bytes);
        return i;
    }
    return 0;
}

void vgpu_share_resize(struct region *region, int owner, uint32_t number, uint64_t bytes)
{
    struct region_record *record = at(region, number);
    struct state state = unpack(atomic_load(&record->state));
    if (state.owner != owner)
        return;
    state.bytes = bytes;
    atomic_store(&record->state, pack(&state));
    VGPU_POINT(72);
    changed(region);
    VGPU_POINT(73);
}

void vgpu_share_remove(struct region *region, int owner, uint32_t number)
{
    struct region_record *record = at(region, number);
    if (unpack(atomic_load(&record->state)).owner != owner)
        return;
    atomic_store(&record->state, 0);
    VGPU_POINT(74);
    changed(region);
    VGPU_POINT(75);
}

void vgpu_shares_drop(struct region *region, int owner, bool exported, uint64_t block)
{
    uint32_t used = used_records(region);
    for (uint32_t i = 1; i <= used; i++) {
        struct state state = unpack(atomic_load(&at(region, i)->state));
        bool meant = !block || atomic_load(&at(region, i)->block) == block;
        if (meant && state.owner == owner && state.exported == exported)
            vgpu_share_remove(region, owner, i);
    }
    /* The process may have been killed between a change and its notice. */
    if (!block)
        vgpu_shares_changed(region);
}

/* A block in the records that are summed up. */
struct sighting {
    uint64_t block, bytes;
    bool exported;
};

/* Adds what is held of a block to those that have been seen. Returns what cannot be remembered. */
static uint64_t see(struct vgpu_table *seen, uint64_t block, uint64_t bytes, bool exported)
{
    struct sighting *known = vgpu_table_find(seen, block);
    struct sighting first = {.block = block, .bytes = bytes, .exported = exported};
    if (!known && block && vgpu_table_put(seen, &first))
        return 0;
    if (!known)
        return exported ? 0 : bytes;
    known->exported |= exported;
    known->bytes = bytes > known->bytes ? bytes : known->bytes;
    return 0;
}

static bool is_suspended(struct region *region, int owner)
{
    return owner >= 0 && owner < REGION_SLOTS && atomic_load(&region->slot[owner].status) == SLOT_SUSPENDED;
}

uint64_t vgpu_shares_sum(struct region *region, int d, const struct vgpu_share *more, uint64_t bytes)
{
    struct vgpu_table seen = {0};
    uint64_t sum = more ? see(&seen, more->block, bytes, false) : 0;
    uint32_t used = used_records(region);
    for (uint32_t i = 1; i <= used; i++) {
        struct region_record *record = at(region, i);
        struct state state = unpack(atomic_load(&record->state));
        if (state.bytes && state.device == d && !is_suspended(region, state.owner))
            sum = vgpu_add(sum, see(&seen, atomic_load(&record->block), state.bytes, state.exported));
    }
    for (uint64_t i = 0; i < seen.capacity; i++) {
        const struct sighting *one = vgpu_table_at(&seen, i);
        if (one && !one->exported)
            sum = vgpu_add(sum, one->bytes);
    }
    vgpu_table_clear(&seen);
    return sum;
}

void vgpu_shares_owners(struct region *region, bool has_records[REGION_SLOTS])
{
    uint32_t used = used_records(region);
    for (uint32_t i = 1; i <= used; i++) {
        uint64_t packed = atomic_load(&at(region, i)->state);
        int owner = unpack(packed).owner;
        if (owner >= 0 && owner < REGION_SLOTS)
            has_records[owner] = true;
        else if (packed && atomic_compare_exchange_strong(&at(region, i)->state, &packed, 0))
            changed(region);
    }
}
