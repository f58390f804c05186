#include "control.h"

enum {
    UNIT = 65536,
    SCALE_LEAST = UNIT / 16,
    SCALE_MOST = UNIT * 3 / 2,
    FIRST_COST = VGPU_FIRST_COST,
    FIRST_COST_MOST = 100000000,
    MEASURE_EVERY = 16,
    MEASURE_FIRST = 2,
    MOST_PERCENT = 100,
    PART = 256,            /* of a percent point */
    ROUNDS_MEAN = 32,
    ROUNDS_VARIANCE = 16,
    SURE = 4,              /* variances of a mean: two standard deviations */
    SLOWEST = 12,          /* a correction is a twelfth of what is off */
};

static const int64_t MOST_DEBT = 10000000000;   /* 10 s: longer kernels, or a broken file, are forgiven the rest */
static const uint64_t BURST = 25000000;         /* credit for 25 ms at most; twice that after a pause, seen late */
static const int64_t BURST_LEAST = 200000;
static const uint64_t MOST_ELAPSED = 10000000000;
static const uint64_t RESUMING = 1000000000;

static uint64_t scale_of(const struct vgpu_bucket *bucket)
{
    uint64_t scale = atomic_load_explicit(&bucket->scale, memory_order_relaxed);
    if (LIKELY(scale == 0))
        return UNIT;
    return scale < SCALE_LEAST ? SCALE_LEAST : scale > SCALE_MOST ? SCALE_MOST : scale;
}

static uint64_t scaled(const struct vgpu_bucket *bucket, uint64_t cost)
{
    uint64_t scale = scale_of(bucket);
    if (LIKELY(scale == UNIT))
        return cost;
    return cost > MOST_ELAPSED ? MOST_ELAPSED : cost * scale / UNIT;
}

/* One of so many, at distances that no pattern of launches has: multiples of the golden ratio are spread evenly. */
static bool is_sampled(uint32_t number)
{
    return number * 0x9e3779b9u < UINT32_MAX / MEASURE_EVERY;
}

uint64_t vgpu_estimate_launch(struct vgpu_estimate *estimate, bool *measure)
{
    uint32_t measured = atomic_load_explicit(&estimate->measured, memory_order_relaxed);
    uint32_t number = atomic_load_explicit(&estimate->launches, memory_order_relaxed);
    atomic_store_explicit(&estimate->launches, number + 1, memory_order_relaxed);
    *measure = number < MEASURE_FIRST || is_sampled(number) || measured == 0;
    if (LIKELY(measured))
        return atomic_load_explicit(&estimate->mean, memory_order_relaxed);
    /* Nothing is known yet: the more launches wait to be measured, the longer they probably are. */
    uint32_t waiting = atomic_fetch_add_explicit(&estimate->unsettled, 1, memory_order_relaxed);
    uint64_t cost = waiting > 16 ? FIRST_COST_MOST : (uint64_t)FIRST_COST << (waiting > 3 ? waiting - 3 : 0);
    cost = cost > FIRST_COST_MOST ? FIRST_COST_MOST : cost;
    atomic_fetch_add_explicit(&estimate->unsettled_cost, cost, memory_order_relaxed);
    return cost;
}

void vgpu_estimate_cancel(struct vgpu_estimate *estimate, uint64_t cost)
{
    if (atomic_load(&estimate->measured) || atomic_load(&estimate->unsettled) == 0)
        return;
    atomic_fetch_sub(&estimate->unsettled, 1);
    atomic_fetch_sub(&estimate->unsettled_cost, cost);
}

int64_t vgpu_estimate_measured(struct vgpu_estimate *estimate, uint64_t elapsed)
{
    elapsed = elapsed > MOST_ELAPSED ? MOST_ELAPSED : elapsed;
    uint32_t measured = atomic_fetch_add_explicit(&estimate->measured, 1, memory_order_relaxed);
    uint64_t mean = atomic_load_explicit(&estimate->mean, memory_order_relaxed);
    if (measured == 0) {
        atomic_store_explicit(&estimate->mean, elapsed, memory_order_relaxed);
        uint32_t waiting = atomic_exchange_explicit(&estimate->unsettled, 0, memory_order_relaxed);
        uint64_t cost = atomic_exchange_explicit(&estimate->unsettled_cost, 0, memory_order_relaxed);
        return (int64_t)vgpu_multiply(waiting > 1000 ? 1000 : waiting, elapsed) - (int64_t)cost;
    }
    int64_t difference = (int64_t)elapsed - (int64_t)mean;
    /* the mean of the first five, then the last five weigh most */
    int64_t weight = measured < 4 ? (int64_t)measured + 1 : 5;
    atomic_store_explicit(&estimate->mean, (uint64_t)((int64_t)mean + difference / weight), memory_order_relaxed);
    return measured < MEASURE_FIRST ? difference : 0;
}

bool vgpu_bucket_take(struct vgpu_bucket *bucket, uint64_t cost)
{
    if (atomic_load_explicit(&bucket->credit, memory_order_relaxed) <= 0)
        return false;
    cost = scaled(bucket, cost);
    atomic_fetch_sub_explicit(&bucket->credit, (int64_t)cost, memory_order_relaxed);
    atomic_fetch_add_explicit(&bucket->charged, cost, memory_order_relaxed);
    return true;
}

static int64_t most_credit(int cores)
{
    int64_t most = (int64_t)(BURST * (uint64_t)cores / MOST_PERCENT);
    return most < BURST_LEAST ? BURST_LEAST : most;
}

uint64_t vgpu_bucket_refill(struct vgpu_bucket *bucket, uint64_t now, int cores)
{
    uint64_t refilled = atomic_load(&bucket->refilled);
    bool first = refilled == 0 || refilled > now + BURST; /* or of another clock */
    if ((now > refilled || first) && atomic_compare_exchange_strong(&bucket->refilled, &refilled, now)) {
        uint64_t passed = first ? 0 : now - refilled;
        passed = passed > 100 * MOST_ELAPSED ? 100 * MOST_ELAPSED : passed;
        int64_t more = (int64_t)(passed * (uint64_t)cores / MOST_PERCENT), most = most_credit(cores);
        int64_t credit = atomic_load(&bucket->credit), next;
        do {
            int64_t held = credit < -MOST_DEBT ? -MOST_DEBT : credit > most ? most : credit;
            next = first ? (held > 0 ? held : held + 1) : held + more > most ? most : held + more;
        } while (!atomic_compare_exchange_weak(&bucket->credit, &credit, next));
    }
    int64_t credit = atomic_load(&bucket->credit);
    if (credit > 0)
        return 0;
    credit = credit < -MOST_DEBT ? -MOST_DEBT : credit;
    return (uint64_t)(1 - credit) * MOST_PERCENT / (uint64_t)cores;
}

void vgpu_bucket_settle(struct vgpu_bucket *bucket, int64_t cost)
{
    int64_t amount = cost < 0 ? -(int64_t)scaled(bucket, (uint64_t)-cost) : (int64_t)scaled(bucket, (uint64_t)cost);
    atomic_fetch_sub(&bucket->credit, amount);
    atomic_fetch_add(&bucket->charged, (uint64_t)amount);
}

void vgpu_bucket_bill(struct vgpu_bucket *bucket, uint64_t when, uint64_t percent)
{
    uint64_t before = atomic_load(&bucket->sampled);
    if (when == before || !atomic_compare_exchange_strong(&bucket->sampled, &before, when))
        return; /* another process has it */
    uint64_t passed = when - before;
    if (before == 0 || when < before || passed > MOST_ELAPSED)
        return;
    uint64_t cost = passed * (percent > MOST_PERCENT ? MOST_PERCENT : percent) / MOST_PERCENT;
    atomic_fetch_sub(&bucket->credit, (int64_t)cost);
    atomic_fetch_add(&bucket->charged, cost);
}

uint64_t vgpu_bucket_debt(const struct vgpu_bucket *bucket)
{
    int64_t credit = atomic_load_explicit(&bucket->credit, memory_order_relaxed);
    return credit < 0 ? (uint64_t)-(credit + 1) : 0;
}

static uint64_t smoothed(uint64_t before, uint64_t sample)
{
    return before == 0 ? sample : before - before / 4 + sample / 4;
}

void vgpu_bucket_rest(struct vgpu_bucket *bucket)
{
    if (LIKELY(atomic_load_explicit(&bucket->resumed, memory_order_relaxed) == UINT64_MAX))
        return;
    atomic_store(&bucket->resumed, UINT64_MAX);
    atomic_store(&bucket->rounds, 0);
    atomic_store(&bucket->seen, 0);
    atomic_store(&bucket->expected, 0);
    atomic_store(&bucket->mean_sampled, 0);
    atomic_store(&bucket->mean_measured, 0);
    atomic_store(&bucket->variance, 0);
    atomic_store(&bucket->sampled, 0);
}

/* Whether the device may still do what was launched, and not charged, before the limit counted. */
static bool is_resuming(struct vgpu_bucket *bucket, uint64_t when)
{
    uint64_t resumed = UINT64_MAX;
    if (atomic_compare_exchange_strong(&bucket->resumed, &resumed, when))
        return true;
    return when - resumed < RESUMING && when >= resumed;
}

/* A number of the file in percent. Programs of the container can write there, so it is bounded: nothing overflows. */
static double bounded(double parts)
{
    double most = 1e6;
    parts /= PART;
    return parts > most ? most : parts < -most ? -most : parts;
}

static double running_mean(double mean, double one, uint64_t rounds, uint64_t most)
{
    return mean + (one - mean) / (double)(rounds < most ? rounds : most);
}

/* Whether samples differ from what events measure by more than chance. A driver takes five samples a second, and counts
 * each for the process that the device works for at that moment, so a few of them say little. Both in percent. */
static bool contradicts(struct vgpu_bucket *bucket, double sampled, double measured, uint64_t rounds)
{
    double mean = running_mean(bounded((double)bucket->mean_sampled), sampled, rounds, ROUNDS_MEAN);
    double other = running_mean(bounded((double)bucket->mean_measured), measured, rounds, ROUNDS_MEAN);
    atomic_store(&bucket->mean_sampled, (uint64_t)(mean * PART));
    atomic_store(&bucket->mean_measured, (uint64_t)(other * PART));
    double off = sampled - (other > 0 ? measured * mean / other : 0), change = off - bounded((double)bucket->off);
    double variance = bounded((double)bucket->variance);
    if (rounds > 1) /* from differences of neighbors: a slow change is not chance */
        variance = running_mean(variance, change * change / 2, rounds - 1, ROUNDS_VARIANCE);
    atomic_store(&bucket->off, (int64_t)(bounded(off * PART) * PART));
    atomic_store(&bucket->variance, (uint64_t)(bounded(variance * PART) * PART));
    double count = (double)(rounds < ROUNDS_MEAN ? rounds : ROUNDS_MEAN);
    return rounds > 2 && (mean - other) * (mean - other) * count > SURE * variance + 1;
}

void vgpu_bucket_sample(struct vgpu_bucket *bucket, uint64_t when, uint64_t percent)
{
    uint64_t before = atomic_load(&bucket->sampled);
    if (when == before || !atomic_compare_exchange_strong(&bucket->sampled, &before, when))
        return; /* another process has it */
    uint64_t charged = atomic_load(&bucket->charged);
    uint64_t more = charged - atomic_exchange(&bucket->sampled_charged, charged);
    uint64_t passed = when - before;
    if (is_resuming(bucket, when) || before == 0 || when < before || passed > MOST_ELAPSED || more > 100 * passed)
        return;
    percent = percent > MOST_PERCENT ? MOST_PERCENT : percent;
    double scale = (double)scale_of(bucket) / UNIT, rate = (double)more * MOST_PERCENT / (double)passed;
    uint64_t seen = smoothed(bucket->seen, percent * UNIT);
    uint64_t expected = smoothed(bucket->expected, (uint64_t)(rate * UNIT));
    atomic_store(&bucket->seen, seen);
    atomic_store(&bucket->expected, expected);
    if (seen < UNIT / 2 || expected < UNIT / 2)
        return;
    uint64_t rounds = atomic_fetch_add(&bucket->rounds, 1) + 1, weight = 2 + rounds / 4;
    if (!contradicts(bucket, (double)percent, rate / scale, rounds)) {
        atomic_store(&bucket->scale, UNIT);
        return;
    }
    /* What events overcount: time slices of others, streams that overlap. A correction of a scale, soon a slow one. */
    double off = ((double)seen - (double)expected) / (double)expected; /* no ratio: what varies must not weigh more */
    double next = scale * UNIT * (1 + (off > 1 ? 1 : off) / (double)(weight < SLOWEST ? weight : SLOWEST));
    next = next < SCALE_LEAST ? SCALE_LEAST : next > SCALE_MOST ? SCALE_MOST : next;
    atomic_store(&bucket->scale, (uint64_t)next);
}
