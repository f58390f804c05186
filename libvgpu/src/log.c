#include "log.h"

#include "lock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int shown = LOG_WARNING;

void vgpu_log_level(int level)
{
    atomic_store(&shown, level < LOG_ERROR ? LOG_ERROR : level);
}

void vgpu_log(int level, const char *format, ...)
{
    if (level > atomic_load(&shown))
        return;
    int saved = errno;
    char line[512] = "hami: ";
    size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    if (more > 0)
        used += (size_t)more < sizeof line - used - 1 ? (size_t)more : sizeof line - used - 2;
    line[used++] = '\n';
    /* One write, so that lines of several processes do not mix; a closed standard error is no reason to fail. */
    int state = vgpu_keep_thread();
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written;
    vgpu_release_thread(state);
    errno = saved;
}
