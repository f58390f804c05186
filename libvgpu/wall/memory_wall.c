/* hami-memory-wall: sets the driver's own limit of device memory for the control group of a container.
 *
 * Runs as createRuntime hook of OCI, on the host, as root, before the program of the container: the runtime writes the state of
 * the container to standard input. Limits come from the arguments, that is from the CDI specification, never from the
 * environment, which a tenant can set.
 *
 *   hami-memory-wall [--best-effort] [--library FILE] [--proc DIRECTORY] [--records DIRECTORY] --limit UUID=BYTES [--limit ...]
 *   hami-memory-wall --probe [--library FILE] [--proc DIRECTORY] --device UUID
 *
 * With --records, it leaves what it has done in a file of that directory, with the id of the container as its name, for the device
 * plugin: the control group below the mount, the limits that were set, and the first problem. No container can write there.
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
#include <unistd.h>

enum { MOST_LIMITS = 16, MOST_STATE = 1 << 20, MOST_ID = 64 };
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
    const char *library, *proc, *device, *records;
    int limits;
    struct limit limit[MOST_LIMITS];
};

static char first_problem[256];

static bool fail(const char *what, const char *detail)
{
    fprintf(stderr, "hami-memory-wall: %s%s%s\n", what, *detail ? ": " : "", detail);
    if (!*first_problem)
        snprintf(first_problem, sizeof first_problem, "%s%s%s", what, *detail ? ": " : "", detail);
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
        else if (!strcmp(word, "--records"))
            given->records = value;
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

/* Where the value of a member of the state itself begins, not of one of its annotations, which have names of the tenant in them;
 * NULL without one. */
static const char *member(const char *state, const char *name)
{
    int depth = 0;
    size_t length = strlen(name);
    for (const char *at = state; *at; at++) {
        if (*at == '{' || *at == '[')
            depth++;
        if (*at == '}' || *at == ']')
            depth--;
        if (*at != '"')
            continue;
        const char *end = end_of_string(at);
        if (!*end)
            return NULL;
        const char *value = end + 1 + strspn(end + 1, " \t\r\n");
        if (depth == 1 && *value == ':' && (size_t)(end - at) == length + 1 && !strncmp(at + 1, name, length))
            return value + 1 + strspn(value + 1, " \t\r\n");
        at = end;
    }
    return NULL;
}

static long pid_of(const char *state)
{
    const char *value = member(state, "pid");
    return value ? strtol(value, NULL, 10) : 0;
}

/* The id of the container, as runtimes for Kubernetes give them; empty if it is none: it becomes the name of a file. */
static void read_id(const char *state, char *id)
{
    const char *value = member(state, "id");
    size_t length = value && *value == '"' ? strspn(value + 1, "0123456789abcdef") : 0;
    *id = '\0';
    if (length > 0 && length <= MOST_ID && value[length + 1] == '"') {
        memcpy(id, value + 1, length);
        id[length] = '\0';
    }
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

/* *below: of the group, the part below the mount. */
static bool find_group(const char *proc, const char *state, char *group, const char **below)
{
    char mount[PATH_MAX], path[PATH_MAX], line[PATH_MAX + 16];
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
    *below = group + strlen(mount);
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

/* Replaces the record of a container as a whole. Without it, the device plugin does not look after the limits: no reason not to
 * start. */
static void record(const struct arguments *given, const char *id, const char *below, bool is_set)
{
    char path[PATH_MAX], fresh[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", given->records, id) >= (int)sizeof path
        || snprintf(fresh, sizeof fresh, "%s/.%s.%ld", given->records, id, (long)getpid()) >= (int)sizeof fresh)
        return;
    FILE *file = fopen(fresh, "wex");
    if (!file) {
        fprintf(stderr, "hami-memory-wall: cannot write %s: %s\n", fresh, strerror(errno));
        return;
    }
    fprintf(file, "group %s\n", below);
    for (int i = 0; i < given->limits; i++)
        fprintf(file, "limit %s=%llu\n", given->limit[i].uuid, given->limit[i].bytes);
    if (!is_set)
        fprintf(file, "problem %s\n", first_problem);
    bool good = !ferror(file);
    if (fclose(file) != 0 || !good || rename(fresh, path) != 0) {
        fprintf(stderr, "hami-memory-wall: cannot write %s: %s\n", path, strerror(errno));
        unlink(fresh);
    }
}

static bool set_limits(const struct arguments *given, const char *group)
{
    struct nvml nvml;
    if (!start(&nvml, given->library))
        return false;
    bool good = true;
    for (int i = 0; i < given->limits; i++)
        good = set(&nvml, group, &given->limit[i]) && good;
    return good;
}

static bool set_all(const struct arguments *given)
{
    static char state[MOST_STATE];
    char group[PATH_MAX], id[MOST_ID + 1];
    const char *below = "";
    state[fread(state, 1, sizeof state - 1, stdin)] = '\0';
    read_id(state, id);
    bool good = find_group(given->proc, state, group, &below) && set_limits(given, group);
    if (given->records && *id)
        record(given, id, below, good);
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
