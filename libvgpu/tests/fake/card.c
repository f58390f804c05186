/* The time of a card: processes that have work get time slices in turn, of FAKE_CUDA_SLICE_US. A kernel that is not done when
 * its slice ends goes on in the next one, and its time goes on meanwhile: that of an event does not stop either. */
#include "fake.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { LEAST_NAP = 20000 };

uint64_t fake_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void fake_sleep_until(uint64_t when)
{
    struct timespec time = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};
    if (when > fake_now())
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t slice(void)
{
    static uint64_t length;
    if (!length)
        length = (uint64_t)fake_number("FAKE_CUDA_SLICE_US", 2000) * 1000;
    return length;
}

static struct fake_kernel *first_of(struct fake_runner *runner)
{
    return runner->finished < runner->queued ? &runner->kernel[(runner->finished + 1) % FAKE_QUEUE] : NULL;
}

static bool has_work(struct fake_runner *runner, uint64_t now)
{
    struct fake_kernel *first = first_of(runner);
    return runner->asks || (first && first->release <= now);
}

/* The next runner with work, after the last one; false if there is none. */
static bool choose(int number)
{
    struct fake_card *card = &fake_machine()->card[number];
    for (int i = 1; i <= card->runners; i++) {
        int at = (card->last + i) % card->runners;
        struct fake_runner *runner = &card->runner[at];
        if (!has_work(runner, card->now))
            continue;
        runner->asks = false;
        runner->began[++runner->slices % FAKE_SLICES] = card->now;
        if (at != card->last)
            atomic_fetch_add(&fake_machine()->slices[number], 1);
        card->last = at;
        card->runs = at + 1;
        card->slice_end = card->now + slice();
        return true;
    }
    return false;
}

static void skip(struct fake_card *card, uint64_t now)
{
    uint64_t next = now;
    for (int i = 0; i < card->runners; i++) {
        struct fake_kernel *first = first_of(&card->runner[i]);
        if (first && first->release > card->now)
            next = least(next, first->release);
    }
    card->now = next;
}

static void count(int number, const struct fake_runner *runner, uint64_t time)
{
    struct fake_process *process = &fake_machine()->process[runner->place];
    if (process->pid == runner->pid && process->start == runner->start)
        atomic_fetch_add(&process->busy[number], time);
}

/* Lets the runner that has the card go on, as far as its kernel, its slice and the time allow. */
static void run(int number, uint64_t now)
{
    struct fake_card *card = &fake_machine()->card[number];
    struct fake_runner *runner = &card->runner[card->runs - 1];
    struct fake_kernel *first = first_of(runner);
    if (card->now >= card->slice_end || !first || first->release > card->now) {
        card->runs = 0;
        return;
    }
    uint64_t time = least(first->left, least(now, card->slice_end) - card->now);
    count(number, runner, time);
    card->now += time;
    first->left -= time;
    if (!first->left) {
        first->done = card->now;
        runner->finished++;
    }
}

/* The caller locks. */
static void catch_up(int number)
{
    struct fake_card *card = &fake_machine()->card[number];
    uint64_t now = fake_now();
    while (card->now < now) {
        if (card->runs || choose(number))
            run(number, now);
        else
            skip(card, now);
    }
}

static void lock_clock(void)
{
    if (pthread_mutex_lock(&fake_machine()->clock) == EOWNERDEAD)
        pthread_mutex_consistent(&fake_machine()->clock);
}

static void unlock_clock(void)
{
    pthread_mutex_unlock(&fake_machine()->clock);
}

static bool is_of(const struct fake_runner *runner, int place)
{
    const struct fake_process *process = &fake_machine()->process[place];
    return runner->pid == process->pid && runner->start == process->start && runner->space == process->space;
}

/* The caller locks. */
static struct fake_runner *runner_of(int number, int place)
{
    struct fake_card *card = &fake_machine()->card[number];
    const struct fake_process *process = &fake_machine()->process[place];
    struct fake_runner *unused = NULL;
    for (int i = 0; i < card->runners; i++) {
        struct fake_runner *runner = &card->runner[i];
        if (is_of(runner, place))
            return runner;
        if (runner->finished == runner->queued && !is_of(runner, runner->place) && card->runs != i + 1)
            unused = runner; /* that process has ended */
    }
    if (!unused && card->runners == FAKE_RUNNERS)
        return &card->runner[0]; /* more than a card has */
    unused = unused ? unused : &card->runner[card->runners++];
    memset(unused, 0, sizeof *unused);
    unused->start = process->start;
    unused->space = process->space;
    unused->place = place;
    unused->pid = process->pid;
    return unused;
}

static uint64_t backlog(const struct fake_runner *runner, uint64_t last)
{
    uint64_t sum = 0;
    for (uint64_t i = runner->finished + 1; i <= last && i <= runner->queued; i++)
        sum += runner->kernel[i % FAKE_QUEUE].left;
    return sum;
}

uint64_t fake_backlog(int number, int place)
{
    lock_clock();
    catch_up(number);
    struct fake_runner *runner = runner_of(number, place);
    uint64_t sum = backlog(runner, runner->queued);
    unlock_clock();
    return sum;
}

uint64_t fake_launch(int number, int place, uint64_t latency, uint64_t after, uint64_t duration)
{
    for (;;) {
        lock_clock();
        catch_up(number);
        struct fake_runner *runner = runner_of(number, place);
        if (runner->queued - runner->finished < FAKE_QUEUE / 2) {
            uint64_t now = fake_machine()->card[number].now, kernel = runner->queued + 1;
            runner->kernel[kernel % FAKE_QUEUE] =
                (struct fake_kernel){.release = now + (after <= runner->finished ? latency : 0), .left = duration};
            runner->queued = kernel;
            unlock_clock();
            return kernel;
        }
        uint64_t first = runner->finished + 1;
        unlock_clock();
        fake_wait(number, place, first);
    }
}

bool fake_is_done(int number, int place, uint64_t kernel, uint64_t *when)
{
    if (!kernel)
        return true;
    lock_clock();
    catch_up(number);
    struct fake_runner *runner = runner_of(number, place);
    bool done = kernel <= runner->finished;
    uint64_t kept = runner->queued >= FAKE_QUEUE ? runner->queued - FAKE_QUEUE + 1 : 1;
    if (done && when)
        *when = runner->kernel[(kernel < kept ? kept : kernel) % FAKE_QUEUE].done;
    unlock_clock();
    return done;
}

void fake_wait(int number, int place, uint64_t kernel)
{
    while (!fake_is_done(number, place, kernel, NULL)) {
        lock_clock();
        uint64_t rest = backlog(runner_of(number, place), kernel);
        unlock_clock();
        fake_sleep_until(fake_now() + (rest > LEAST_NAP ? rest : LEAST_NAP));
    }
}

uint64_t fake_command(int number, int place, uint64_t *when)
{
    lock_clock();
    catch_up(number);
    struct fake_card *card = &fake_machine()->card[number];
    struct fake_runner *runner = runner_of(number, place);
    bool own = card->runs && &card->runner[card->runs - 1] == runner;
    uint64_t number_of_slice = 0;
    if (card->runs && !own) {
        runner->asks = true;
        number_of_slice = runner->slices + 1;
    }
    *when = card->now;
    unlock_clock();
    return number_of_slice;
}

bool fake_has_begun(int number, int place, uint64_t slice_number, uint64_t *when)
{
    lock_clock();
    catch_up(number);
    struct fake_runner *runner = runner_of(number, place);
    bool begun = slice_number <= runner->slices;
    if (begun)
        *when = runner->began[slice_number % FAKE_SLICES];
    unlock_clock();
    return begun;
}
