/* Processes that are suspended (cuCheckpointProcess*): what is not on the card does not count, until it is there again. */
#ifndef VGPU_SUSPEND_H
#define VGPU_SUSPEND_H

/* A process that somebody has woken in whom the limiter is not, as on the host, counts again from its own next request on. The
 * caller holds no lock. */
void vgpu_suspend_look(void);

#endif
