/* A lock between the threads of one process, for our own records: the driver is never called while one is held, since it may
 * wait for another thread of the program. Plain memory, so that a child that finds it held just writes it anew; and
 * no libpthread, which programs of before glibc 2.34 would have to load. All zero is unlocked. */
#ifndef VGPU_LOCK_H
#define VGPU_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>

struct vgpu_lock {
    _Atomic unsigned state; /* 0: free, 1: held, 2: held and somebody waits */
};

/* Between the two, the thread cannot be canceled: it would leave locks and files behind. The first returns what the second
 * takes. */
int vgpu_keep_thread(void);
void vgpu_release_thread(int state);

void vgpu_pause(long nanoseconds); /* less than a second */

void vgpu_lock(struct vgpu_lock *lock);
bool vgpu_trylock(struct vgpu_lock *lock);
void vgpu_unlock(struct vgpu_lock *lock);

/* Of a lock that this process was copied with, by a thread that is not there. */
void vgpu_lock_forked(struct vgpu_lock *lock);

#endif
