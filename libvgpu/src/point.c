/* Test builds only: kills the process at the point whose number VGPU_TEST_POINT names, and lets it wait at that of
 * VGPU_TEST_WAIT_POINT, so that others come in between: for VGPU_TEST_WAIT_US, or until somebody removes the file that it makes under
 * the name VGPU_TEST_WAIT_FILE. Ends it if it calls the driver while it holds a lock. */
#include "types.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int setting(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static void wait(void)
{
    const char *path = getenv("VGPU_TEST_WAIT_FILE");
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file < 0) {
        usleep((unsigned)setting("VGPU_TEST_WAIT_US"));
        return;
    }
    close(file);
    while (access(path, F_OK) == 0)
        usleep(1000);
}

void vgpu_point(int number)
{
    static _Atomic int kill_at = -1, wait_at = -1, passed, waits;
    if (kill_at < 0) {
        wait_at = setting("VGPU_TEST_WAIT_POINT");
        kill_at = setting("VGPU_TEST_POINT");
    }
    if (number == wait_at && waits++ % (setting("VGPU_TEST_WAIT_EVERY") + 1) == 0)
        wait();
    if (number == kill_at && ++passed > setting("VGPU_TEST_AFTER"))
        raise(SIGKILL);
}

static _Thread_local int locks;

void vgpu_locked(int more)
{
    locks += more;
}

void vgpu_calls_driver(void)
{
    if (locks <= 0)
        return;
    fputs("libvgpu: the driver is called under a lock\n", stderr);
    abort();
}
