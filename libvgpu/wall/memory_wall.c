/* hami-memory-wall: sets the driver's own limit of device memory for the control group of a container.
 *
 * Runs as createRuntime hook of OCI, on the host, as root, before the program of the container: the runtime writes the state of
 * the container to standard input. Limits come from the arguments, that is from the CDI specification, never from the
 * environment, which a tenant can set.
 *
 *   hami-memory-wall [--best-effort] [--library FILE] [--proc DIRECTORY] --limit UUID=BYTES [--limit ...]
 *   hami-memory-wall --probe [--library FILE] [--proc DIRECTORY] --device UUID
 *
 * The soft limit is always 0: one that is set is added to all groups above and stays there when the group goes.
 * There is no query for the capability. The probe clears the limits of the topmost group, which never has any.
 * Source: nvml.h of CUDA 13.5; docs.nvidia.com/deploy/mps, memory partitioning.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LIMITS = 16, MOST_STATE = 1 << 20 };
enum { DONE = 0, FAILED = 1, MISUSED = 2 };
#define NO_LIMIT 0xFFFFFFFFFFFFFFFFull

/* Of NVML: none of its headers is needed to build this. */
enum {
    NVML_OK = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_OPERATING_SYSTEM = 17
};

struct set_limits {
    const char *group;
    unsigned long long soft, hard;
};

struct get_limits {
    const char *group;
    unsigned long long soft, hard, used;
};

struct nvml {
    int (*init)(void);
    int (*find)(const char *uuid, void **device);
    int (*set)(void *device, struct set_limits *limits);
    int (*get)(void *device, struct get_limits *limits);
};

struct limit {
    char uuid[96];
    unsigned long long bytes;
};

struct arguments {
    bool best_effort, probe;
    const char *library, *proc, *device;
    int limits;
    struct limit limit[MOST_LIMITS];
};

static bool fail(const char *what, const char *detail)
{
    fprintf(stderr, "hami-memory-wall: %s%s%s\n", what, *detail ? ": " : "", detail);
    return false;
}

/* -- arguments */

static bool read_limit(struct limit *limit, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || (size_t)(equals - text) >= sizeof limit->uuid)
        return false;
    memcpy(limit->uuid, text, (size_t)(equals - text));
    limit->uuid[equals - text] = '\0';
    const char *digits = equals + 1;
    if (!*digits || strspn(digits, "0123456789") != strlen(digits))
        return false;
    errno = 0;
    limit->bytes = strtoull(digits, NULL, 10);
    return errno == 0 && limit->bytes > 0 && limit->bytes < NO_LIMIT;
}

static bool read_arguments(struct arguments *given, int count, char **words)
{
    for (int i = 1; i < count; i++) {
        const char *word = words[i];
        if (!strcmp(word, "--best-effort")) {
            given->best_effort = true;
            continue;
        }
        if (!strcmp(word, "--probe")) {
            given->probe = true;
            continue;
        }
        if (i + 1 >= count)
            return fail("unknown argument, or one without value", word);
        const char *value = words[++i];
        if (!strcmp(word, "--library"))
            given->library = value;
        else if (!strcmp(word, "--proc"))
            given->proc = value;
        else if (!strcmp(word, "--device"))
            given->device = value;
        else if (strcmp(word, "--limit") != 0)
            return fail("unknown argument", word);
        else if (given->limits == MOST_LIMITS)
            return fail("more limits than a container has devices", value);
        else if (!read_limit(&given->limit[given->limits++], value))
            return fail("expected UUID=BYTES", value);
    }
    if (given->probe && !given->device)
        return fail("--probe needs --device", "");
    if (!given->probe && !given->limits)
        return fail("expected --limit or --probe", "");
    return true;
}

/* -- the control group */

/* Where the string that begins at *at ends; its closing quote, or the end of the text. */
static const char *end_of_string(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1])
            at++;
    return at;
}

/* The member "pid" of the state itself, not one of its annotations, which have names of the tenant in them; 0 without one. */
static long pid_of(const char *state)
{
    int depth = 0;
    for (const char *at = state; *at; at++) {
        if (*at == '{' || *at == '[')
            depth++;
        if (*at == '}' || *at == ']')
            depth--;
        if (*at != '"')
            continue;
        const char *end = end_of_string(at);
        if (!*end)
            return 0;
        const char *value = end + 1 + strspn(end + 1, " \t\r\n");
        if (depth == 1 && *value == ':' && end - at == 4 && !strncmp(at, "\"pid\"", 5))
            return strtol(value + 1, NULL, 10);
        at = end;
    }
    return 0;
}

/* Finds where version 2 of control groups is mounted. With a mount of version 1 beside it, the driver does not use it. */
static bool find_mount(const char *proc, char *mount)
{
    char path[PATH_MAX], line[2 * PATH_MAX], root[PATH_MAX], at[PATH_MAX];
    bool found = false, has_v1 = false;
    snprintf(path, sizeof path, "%s/self/mountinfo", proc);
    FILE *file = fopen(path, "re");
    if (!file)
        return fail("cannot read", path);
    while (fgets(line, sizeof line, file)) {
        if (strstr(line, " - cgroup "))
            has_v1 = true;
        if (!strstr(line, " - cgroup2 ") || found)
            continue;
        if (sscanf(line, "%*s %*s %*s %4095s %4095s", root, at) == 2 && !strcmp(root, "/")) {
            strcpy(mount, at);
            found = true;
        }
    }
    fclose(file);
    if (has_v1 || !found)
        return fail("the node has no control groups of version 2 alone", path);
    return true;
}

static bool find_group(const char *proc, char *group)
{
    static char state[MOST_STATE];
    char mount[PATH_MAX], path[PATH_MAX], line[PATH_MAX + 16];
    size_t length = fread(state, 1, sizeof state - 1, stdin);
    state[length] = '\0';
    long pid = pid_of(state);
    if (pid <= 0)
        return fail("no pid in the state of the container", "");
    if (!find_mount(proc, mount))
        return false;
    snprintf(path, sizeof path, "%s/%ld/cgroup", proc, pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return fail("cannot read", path);
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::/", 4) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        found = strlen(mount) + strlen(line + 3) < PATH_MAX;
        if (found)
            strcat(strcpy(group, mount), line + 3);
    }
    fclose(file);
    if (!found || strstr(group, "/.."))
        return fail("the container has no control group here", path);
    /* a limit of the topmost group would be one of the node */
    if (!line[4])
        return fail("the container runs in the topmost control group", path);
    return true;
}

/* -- the driver */

static bool load(struct nvml *nvml, const char *library)
{
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!loaded)
        return fail("the driver's library cannot be loaded", dlerror());
    *(void **)&nvml->init = dlsym(loaded, "nvmlInit_v2");
    *(void **)&nvml->find = dlsym(loaded, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml->set = dlsym(loaded, "nvmlDeviceSetMemoryLimits_v1");
    *(void **)&nvml->get = dlsym(loaded, "nvmlDeviceGetMemoryLimits_v1");
    if (!nvml->init || !nvml->find || !nvml->set || !nvml->get)
        return fail("the driver is older than release 615", library);
    return true;
}

static bool refuse(int result, const char *subject)
{
    char number[32];
    switch (result) {
    case NVML_INVALID_ARGUMENT:
        return fail("the limit is more than the device has", subject);
    case NVML_NOT_SUPPORTED:
        return fail("memory accounting is off (RmMemacctMode=0), or the device is in MIG mode", subject);
    case NVML_NO_PERMISSION:
        return fail("only root may set limits", subject);
    case NVML_NOT_FOUND:
        return fail("the control group has no controller dmem", subject);
    case NVML_FUNCTION_NOT_FOUND:
        return fail("the driver is older than release 615", subject);
    case NVML_OPERATING_SYSTEM:
        return fail("the control group is gone", subject);
    default:
        snprintf(number, sizeof number, "NVML error %d", result);
        return fail(number, subject);
    }
}

static bool start(struct nvml *nvml, const char *library)
{
    if (!load(nvml, library))
        return false;
    int result = nvml->init();
    if (result == NVML_OK)
        return true;
    return refuse(result, "nvmlInit");
}

static bool find_device(const struct nvml *nvml, const char *uuid, void **device)
{
    int result = nvml->find(uuid, device);
    if (result == NVML_NOT_FOUND || result == NVML_INVALID_ARGUMENT)
        return fail("the node has no such device", uuid);
    if (result != NVML_OK)
        return refuse(result, uuid);
    return true;
}

/* Sets one limit, and reads it back. */
static bool set(const struct nvml *nvml, const char *group, const struct limit *limit)
{
    void *device;
    if (!find_device(nvml, limit->uuid, &device))
        return false;
    struct set_limits target = {.group = group, .soft = 0, .hard = limit->bytes};
    int result = nvml->set(device, &target);
    if (result == NVML_INVALID_ARGUMENT)
        return refuse(result, limit->uuid);
    if (result != NVML_OK)
        return refuse(result, group);
    struct get_limits present = {.group = group};
    result = nvml->get(device, &present);
    if (result != NVML_OK)
        return refuse(result, group);
    if (present.hard != limit->bytes || present.soft != 0)
        return fail("another limit was read back than was set", group);
    return true;
}

static bool set_all(const struct arguments *given)
{
    char group[PATH_MAX];
    struct nvml nvml;
    if (!find_group(given->proc, group) || !start(&nvml, given->library))
        return false;
    bool good = true;
    for (int i = 0; i < given->limits; i++)
        good = set(&nvml, group, &given->limit[i]) && good;
    return good;
}

static bool probe(const struct arguments *given)
{
    char mount[PATH_MAX];
    struct nvml nvml;
    void *device;
    if (!find_mount(given->proc, mount) || !start(&nvml, given->library) || !find_device(&nvml, given->device, &device))
        return false;
    struct set_limits none = {.group = mount, .soft = 0, .hard = NO_LIMIT};
    int result = nvml.set(device, &none);
    /* the topmost group has no file of the controller dmem, but the driver has looked for it */
    if (result != NVML_OK && result != NVML_NOT_FOUND)
        return refuse(result, given->device);
    puts("the driver limits device memory");
    return true;
}

int main(int count, char **words)
{
    struct arguments given = {.library = "libnvidia-ml.so.1", .proc = "/proc"};
    if (!read_arguments(&given, count, words))
        return MISUSED;
    bool good = given.probe ? probe(&given) : set_all(&given);
    return good || given.best_effort ? DONE : FAILED;
}
