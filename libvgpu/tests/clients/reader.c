/* Reads a limits file while somebody else writes it, and keeps what the limiter would. A library for Python. */
#include "config.h"
#include "lock.h"

#include <sys/stat.h>

/* *accepted*: reads that the limiter could use. *kept*: the memory of the first two devices as it was read when the time of
 * the file, *at*, was last another one. */
struct reader {
    uint64_t accepted;
    int64_t at;
    uint64_t kept[2];
};

int vgpu_keep_thread(void)
{
    return 0;
}

void vgpu_release_thread(int state)
{
    (void)state;
}

void reader_look(struct reader *reader, const char *path);
void reader_look(struct reader *reader, const char *path)
{
    static struct vgpu_config config;
    struct stat about;
    if (stat(path, &about) != 0 || !vgpu_config_read_again(&config, path) || config.count != 2)
        return;
    int64_t at = about.st_mtim.tv_sec * INT64_C(1000000000) + about.st_mtim.tv_nsec;
    reader->accepted++;
    if (at == reader->at)
        return;
    reader->at = at;
    for (int device = 0; device < 2; device++)
        reader->kept[device] = config.device[device].memory;
}

/* Until *stop, and once more. */
void reader_run(struct reader *reader, const char *path, const volatile int *stop);
void reader_run(struct reader *reader, const char *path, const volatile int *stop)
{
    while (!*stop)
        reader_look(reader, path);
    reader_look(reader, path);
}
