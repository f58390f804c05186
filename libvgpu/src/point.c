/* Test builds only: kills the process at the point whose number the environment names, or lets it wait there, so that
 * others come in between. */
#include "types.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

void vgpu_point(int number)
{
    static _Atomic int chosen = -1, passed;
    if (chosen < 0) {
        const char *text = getenv("VGPU_TEST_POINT");
        chosen = text ? atoi(text) : 0;
    }
    const char *wait = number == chosen ? getenv("VGPU_TEST_WAIT_US") : NULL;
    if (wait) {
        usleep((unsigned)atoi(wait));
        return;
    }
    const char *after = number == chosen ? getenv("VGPU_TEST_AFTER") : NULL;
    if (number == chosen && ++passed > (after ? atoi(after) : 0))
        raise(SIGKILL);
}
