/* Processes that are suspended: cuda.h's states of a process. A locked process waits in its next call of the driver; what a
 * suspended one had on a card is on none. What cards of NVIDIA do where the header is silent is assumed: restoring what does not
 * fit on the card fails, and leaves the process as it was.
 *
 *   FAKE_CUDA_RESTORE  `fails`: restoring ends in the state of an error that cannot be corrected
 */
#define __CUDA_API_VERSION_INTERNAL
#include "fake.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __thread int depth;

/* Of a call of the driver, by the process at that place, or of none. Calls within calls count as one. */
int fake_enter(int place)
{
    if (place < 0 || depth++)
        return place;
    struct fake_suspension *own = &fake_machine()->suspension[place];
    for (;;) {
        atomic_fetch_add(&own->inside, 1);
        if (atomic_load(&own->state) == CU_PROCESS_STATE_RUNNING)
            return place;
        atomic_fetch_sub(&own->inside, 1);
        while (atomic_load(&own->state) != CU_PROCESS_STATE_RUNNING)
            usleep(200);
    }
}

void fake_left(int *place)
{
    if (*place >= 0 && !--depth)
        atomic_fetch_sub(&fake_machine()->suspension[*place].inside, 1);
}

/* The place of a process that uses the driver, -1 if there is none. The caller locks. */
static int place_of(int pid)
{
    struct fake_machine *machine = fake_machine();
    fake_prune();
    for (int i = 0; i < machine->processes; i++)
        if (machine->process[i].pid == pid && machine->process[i].space == fake_space())
            return i;
    return -1;
}

/* A process in that state is in another one from now on. */
static CUresult change(int pid, CUprocessState from, CUprocessState to)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    int place = place_of(pid), expected = (int)from;
    if (place >= 0)
        result = atomic_compare_exchange_strong(&fake_machine()->suspension[place].state, &expected, (int)to)
            ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
    fake_unlock();
    return result;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    fake_lock();
    int place = place_of(pid);
    if (place >= 0)
        *state = (CUprocessState)atomic_load(&fake_machine()->suspension[place].state);
    fake_unlock();
    return place >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    CUprocessState state;
    *tid = pid;
    return cuCheckpointProcessGetState(pid, &state);
}

/* Waits for the calls that the process is in. */
CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *given)
{
    CUresult result = change(pid, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED);
    if (result != CUDA_SUCCESS)
        return result;
    fake_lock();
    int place = place_of(pid);
    fake_unlock();
    uint64_t begun = fake_now(), most = given ? given->timeoutMs * (uint64_t)1000000 : 0;
    while (place >= 0 && atomic_load(&fake_machine()->suspension[place].inside)) {
        if (most && fake_now() - begun > most) {
            change(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
            return CUDA_ERROR_NOT_READY;
        }
        usleep(200);
    }
    return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *given)
{
    (void)given;
    return change(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}

/* Takes what the process has from the cards. The caller locks. */
static void put_away(int place)
{
    struct fake_process *process = &fake_machine()->process[place];
    for (int d = 0; d < FAKE_DEVICES; d++) {
        fake_machine()->suspension[place].away[d] += process->used[d];
        fake_machine()->used[d] -= process->used[d];
        process->used[d] = 0;
    }
}

/* False if it does not fit on the cards, which are left as they were. The caller locks. */
static bool put_back(int place)
{
    struct fake_machine *machine = fake_machine();
    int64_t *away = machine->suspension[place].away, total = (int64_t)fake_number("FAKE_CUDA_TOTAL_MIB", 16384) << 20;
    for (int d = 0; d < FAKE_DEVICES; d++)
        if (machine->used[d] + away[d] > total)
            return false;
    for (int d = 0; d < FAKE_DEVICES; d++) {
        machine->process[place].used[d] += away[d];
        machine->used[d] += away[d];
        machine->peak[d] = machine->used[d] > machine->peak[d] ? machine->used[d] : machine->peak[d];
        away[d] = 0;
    }
    return true;
}

/* Memory that the caller copies by itself: it is told of nothing, and names the process when it is done. */
struct CUIcheckpointOperation_st {
    int pid;
    CUcheckpointCustomStorageInfo info;
};

static CUresult begin_operation(int pid, CUcheckpointCustomStorageInfo **place)
{
    if (pid == getpid())
        return CUDA_ERROR_NOT_SUPPORTED;
    CUcheckpointOperationHandle made = calloc(1, sizeof *made);
    made->pid = pid;
    made->info.handle = made;
    *place = &made->info;
    return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *given)
{
    CUcheckpointCustomStorageInfo **storage = given ? given->customStorageInfo_out : NULL;
    CUresult result = change(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTING);
    if (result != CUDA_SUCCESS)
        return result;
    if (storage) {
        result = begin_operation(pid, storage);
        if (result != CUDA_SUCCESS)
            change(pid, CU_PROCESS_STATE_CHECKPOINTING, CU_PROCESS_STATE_LOCKED);
        return result;
    }
    fake_lock();
    put_away(place_of(pid));
    fake_unlock();
    return change(pid, CU_PROCESS_STATE_CHECKPOINTING, CU_PROCESS_STATE_CHECKPOINTED);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *given)
{
    CUcheckpointCustomStorageInfo **storage = given ? given->customStorageInfo_out : NULL;
    const char *wanted = getenv("FAKE_CUDA_RESTORE");
    CUresult result = change(pid, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_RESTORING);
    if (result != CUDA_SUCCESS)
        return result;
    if (wanted && !strcmp(wanted, "fails")) {
        change(pid, CU_PROCESS_STATE_RESTORING, CU_PROCESS_STATE_FAILED);
        return CUDA_ERROR_UNKNOWN;
    }
    fake_lock();
    bool good = put_back(place_of(pid));
    fake_unlock();
    if (!good) {
        change(pid, CU_PROCESS_STATE_RESTORING, CU_PROCESS_STATE_CHECKPOINTED);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (storage)
        return begin_operation(pid, storage);
    return change(pid, CU_PROCESS_STATE_RESTORING, CU_PROCESS_STATE_LOCKED);
}

CUresult cuCheckpointOperationComplete(CUcheckpointOperationHandle operation)
{
    int pid = operation->pid;
    CUresult result = change(pid, CU_PROCESS_STATE_RESTORING, CU_PROCESS_STATE_LOCKED);
    if (result == CUDA_ERROR_ILLEGAL_STATE) {
        result = change(pid, CU_PROCESS_STATE_CHECKPOINTING, CU_PROCESS_STATE_CHECKPOINTED);
        fake_lock();
        if (result == CUDA_SUCCESS)
            put_away(place_of(pid));
        fake_unlock();
    }
    free(operation);
    return result;
}
