#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "config.h"

#include "log.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEFAULT_REGION "/tmp/cudevshr.cache"

/* The device plugin knows a limiter that reads limits by this text in the file: it must not become part of the code. */
static const char *const volatile first_line = "hami-limits 1";

static bool parse_number(const char *text, uint64_t most, uint64_t *value)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno || *end || number > most)
        return false;
    *value = number;
    return true;
}

bool vgpu_parse_bytes(const char *text, uint64_t *bytes)
{
    char digits[24];
    size_t length = strlen(text);
    int shift = 0;
    if (length > 1)
        switch (text[length - 1] | 0x20) {
        case 'k': shift = 10; break;
        case 'm': shift = 20; break;
        case 'g': shift = 30; break;
        }
    length -= shift != 0;
    if (!length || length >= sizeof digits)
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    uint64_t number;
    if (!parse_number(digits, (uint64_t)INT64_MAX >> shift, &number))
        return false;
    *bytes = number << shift;
    return true;
}

static void clear(struct vgpu_config *config)
{
    memset(config, 0, sizeof *config);
    config->priority = 1;
    config->log_level = LOG_WARNING;
    for (int i = 0; i < VGPU_DEVICES; i++)
        config->device[i].cores = 100;
}

static bool parse_policy(const char *text, enum vgpu_policy *policy)
{
    if (!strcasecmp(text, "force"))
        *policy = POLICY_FORCE;
    else if (!strcasecmp(text, "disable"))
        *policy = POLICY_DISABLE;
    else if (!strcasecmp(text, "default"))
        *policy = POLICY_DEFAULT;
    else
        return false;
    return true;
}

static bool parse_cores(const char *text, int *cores)
{
    uint64_t number;
    if (!parse_number(text, 100, &number))
        return false;
    *cores = number ? (int)number : 100;
    return true;
}

static bool parse_compute_by(const char *text, enum vgpu_compute_by *by)
{
    if (!strcmp(text, "events"))
        *by = BY_EVENTS;
    else if (!strcmp(text, "nvml"))
        *by = BY_NVML;
    else if (!strcmp(text, "off"))
        *by = BY_NOTHING;
    else
        return false;
    return true;
}

static bool parse_compute_of(const char *text, enum vgpu_compute_of *of)
{
    *of = strcmp(text, "all") ? OF_LAUNCHES : OF_ALL;
    return *of == OF_ALL || !strcmp(text, "launches");
}

/* device UUID [memory=BYTES] [context=BYTES] [cores=PERCENT] [cores-most=PERCENT] */
static bool parse_device(struct vgpu_config *config, char *text)
{
    if (config->count == VGPU_DEVICES)
        return false;
    struct vgpu_device *device = &config->device[config->count];
    char *rest, *word = strtok_r(text, " ", &rest);
    if (!word || strlen(word) >= UUID_TEXT)
        return false;
    strcpy(device->uuid, word);
    while ((word = strtok_r(NULL, " ", &rest))) {
        if (!strncmp(word, "memory=", 7)) {
            if (!vgpu_parse_bytes(word + 7, &device->memory) || !device->memory)
                return false;
        } else if (!strncmp(word, "context=", 8)) {
            if (!vgpu_parse_bytes(word + 8, &device->context))
                return false;
        } else if (!strncmp(word, "cores=", 6)) {
            if (!parse_cores(word + 6, &device->cores))
                return false;
        } else if (!strncmp(word, "cores-most=", 11)) {
            if (!parse_cores(word + 11, &device->cores_most))
                return false;
        }
    }
    if (device->cores_most && device->cores_most < device->cores)
        return false;
    config->count++;
    return true;
}

static bool parse_path(char *path, const char *text)
{
    if (*text != '/' || strlen(text) >= PATH_TEXT)
        return false;
    strcpy(path, text);
    return true;
}

static bool parse_line(struct vgpu_config *config, char *line)
{
    char *value = strchr(line, ' ');
    if (!value)
        return false;
    *value++ = '\0';
    uint64_t number;
    if (!strcmp(line, "device"))
        return parse_device(config, value);
    if (!strcmp(line, "region"))
        return parse_path(config->region, value);
    if (!strcmp(line, "compute"))
        return parse_path(config->compute, value);
    if (!strcmp(line, "policy"))
        return parse_policy(value, &config->policy);
    if (!strcmp(line, "compute-by"))
        return parse_compute_by(value, &config->compute_by);
    if (!strcmp(line, "compute-of"))
        return parse_compute_of(value, &config->compute_of);
    if (!strcmp(line, "priority")) {
        if (!parse_number(value, INT_MAX, &number))
            return false;
        config->priority = (int)number;
    } else if (!strcmp(line, "log-level")) {
        if (!parse_number(value, 9, &number))
            return false;
        config->log_level = (int)number;
    }
    return true; /* a key of a later version */
}

bool vgpu_config_parse(struct vgpu_config *config, const char *text, size_t length)
{
    clear(config);
    config->trusted = config->present = true;
    char line[PATH_TEXT + 64];
    for (int number = 0; length; number++) {
        const char *end = memchr(text, '\n', length);
        size_t size = end ? (size_t)(end - text) : length;
        if (!end || size >= sizeof line || memchr(text, '\0', size))
            return false; /* a file that was cut off is not a smaller set of limits */
        memcpy(line, text, size);
        line[size] = '\0';
        text += size + 1;
        length -= size + 1;
        if (number == 0 ? strcmp(line, first_line) != 0 : *line && *line != '#' && !parse_line(config, line))
            return false;
    }
    return config->valid = config->count > 0;
}

enum { MOST_TEXT = 16384 };

/* Threads and coroutines with small stacks come here, too. */
static void read_file(struct vgpu_config *config, int file)
{
    size_t length = 0;
    ssize_t more = -1;
    char *text = mmap(NULL, MOST_TEXT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text == MAP_FAILED)
        return;
    while ((more = read(file, text + length, MOST_TEXT - length)) > 0)
        length += (size_t)more;
    if (more < 0 || length == MOST_TEXT || !vgpu_config_parse(config, text, length))
        config->valid = false;
    munmap(text, MOST_TEXT);
}

bool vgpu_config_read_again(struct vgpu_config *config, const char *limits)
{
    clear(config);
    int file = open(limits, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0)
        return false;
    read_file(config, file);
    close(file);
    return config->valid;
}

static const char *variable(const char *name, int index)
{
    char indexed[64];
    snprintf(indexed, sizeof indexed, "%s_%d", name, index);
    const char *text = getenv(indexed);
    text = text ? text : getenv(name);
    return text && *text ? text : NULL;
}

static void read_environment(struct vgpu_config *config)
{
    const char *text;
    config->valid = true;
    for (int i = 0; i < VGPU_DEVICES; i++) {
        struct vgpu_device *device = &config->device[i];
        if ((text = variable("CUDA_DEVICE_MEMORY_LIMIT", i))) {
            config->present = true;
            config->valid &= vgpu_parse_bytes(text, &device->memory);
        }
        if ((text = variable("CUDA_DEVICE_SM_LIMIT", i))) {
            config->present = true;
            config->valid &= parse_cores(text, &device->cores);
        }
    }
    if ((text = getenv("CUDA_TASK_PRIORITY")))
        config->priority = atoi(text);
    if ((text = getenv("GPU_CORE_UTILIZATION_POLICY")))
        parse_policy(text, &config->policy);
    if ((text = getenv("LIBCUDA_LOG_LEVEL")))
        config->log_level = atoi(text);
    if ((text = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE")) && parse_path(config->region, text))
        config->present = true;
    if (config->present && !*config->region)
        strcpy(config->region, DEFAULT_REGION);
}

void vgpu_config_read(struct vgpu_config *config, const char *limits)
{
    clear(config);
    int file = limits ? open(limits, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
    if (file >= 0) {
        read_file(config, file);
        close(file);
        config->trusted = config->present = true;
    } else if (limits && errno != ENOENT && errno != ENOTDIR) {
        config->present = true; /* it is there and cannot be read */
    } else {
        read_environment(config);
    }
    if (!*config->compute && *config->region) {
        size_t length = strlen(config->region);
        const char *dot = strrchr(config->region, '.');
        if (dot && !strcmp(dot, ".cache"))
            length = (size_t)(dot - config->region);
        snprintf(config->compute, sizeof config->compute, "%.*s.sm", (int)(length < PATH_TEXT - 4 ? length : PATH_TEXT - 4),
                 config->region);
    }
    vgpu_log_level(config->log_level);
    if (!config->valid)
        LOG_ONCE(LOG_ERROR, "the limits in %s cannot be read: no GPU may be used", limits && config->trusted ? limits
                 : "the environment");
}

bool vgpu_limits_path(char *path, size_t size)
{
    Dl_info info;
    if (!dladdr((void *)vgpu_limits_path, &info) || !info.dli_fname)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    int length = slash ? (int)(slash - info.dli_fname) : 1;
    int written = snprintf(path, size, "%.*s/limits", length, slash ? info.dli_fname : ".");
    return written > 0 && (size_t)written < size;
}
