#include "lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

bool vgpu_trylock(struct vgpu_lock *lock)
{
    unsigned state = 0;
    return atomic_compare_exchange_strong_explicit(&lock->state, &state, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

void vgpu_lock(struct vgpu_lock *lock)
{
    if (__builtin_expect(vgpu_trylock(lock), 1))
        return;
    int saved = errno;
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    errno = saved;
}

void vgpu_unlock(struct vgpu_lock *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2, 0))
        syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
