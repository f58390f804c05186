#include "lock.h"

#include "types.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int vgpu_keep_thread(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

void vgpu_release_thread(int state)
{
    pthread_setcancelstate(state, &(int){0});
}

void vgpu_pause(long nanoseconds)
{
    struct timespec time = {0, nanoseconds};
    int state = vgpu_keep_thread();
    nanosleep(&time, NULL);
    vgpu_release_thread(state);
}

bool vgpu_trylock(struct vgpu_lock *lock)
{
    unsigned state = 0;
    bool taken = atomic_compare_exchange_strong_explicit(&lock->state, &state, 1, memory_order_acquire,
                                                         memory_order_relaxed);
    VGPU_LOCKED(taken);
    return taken;
}

void vgpu_lock(struct vgpu_lock *lock)
{
    if (__builtin_expect(vgpu_trylock(lock), 1))
        return;
    int saved = errno;
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    errno = saved;
    VGPU_LOCKED(1);
}

void vgpu_unlock(struct vgpu_lock *lock)
{
    VGPU_LOCKED(-1);
    if (__builtin_expect(atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2, 0))
        syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void vgpu_lock_forked(struct vgpu_lock *lock)
{
    if (atomic_exchange(&lock->state, 0))
        VGPU_LOCKED(-1);
}
