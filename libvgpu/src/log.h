/* Messages on standard error. Never on standard output: programs parse it. */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

#include <stdatomic.h>

enum { LOG_ERROR = 1, LOG_WARNING = 2, LOG_INFO = 3 };

void vgpu_log_level(int level);
void vgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Each place in the code says its message once in a process. */
#define LOG_ONCE(level, ...)                                                   \
    do {                                                                       \
        static atomic_flag told = ATOMIC_FLAG_INIT;                            \
        if (!atomic_flag_test_and_set(&told))                                  \
            vgpu_log(level, __VA_ARGS__);                                      \
    } while (0)

#endif
