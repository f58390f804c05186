/* Limits of device memory by control group, as the driver has them since release 615.
 *
 * FAKE_NVML_WALL=dmem (default): limits need the file dmem.max in the group, and hold for the whole subtree. misc: the
 * nearest limited group counts; limits do not nest. off: not supported. FAKE_CGROUP is the directory of the group that a
 * process is in.
 */
#include "fake.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *backend(void)
{
    const char *name = getenv("FAKE_NVML_WALL");
    return name ? name : "dmem";
}

bool fake_wall_is(const char *name)
{
    return !strcmp(backend(), name);
}

bool fake_group_has_files(const char *path)
{
    char file[PATH_MAX + 16];
    snprintf(file, sizeof file, "%s/dmem.max", path);
    return access(file, F_OK) == 0;
}

/* A group that was removed has lost its limits; another one may have its name by now. */
static void forget_removed(void)
{
    struct stat about;
    for (int i = 0; i < FAKE_GROUPS; i++) {
        struct fake_group *group = &fake_machine()->group[i];
        if (group->path[0] && (stat(group->path, &about) != 0 || about.st_ino != group->inode))
            memset(group, 0, sizeof *group);
    }
}

struct fake_group *fake_find_group(const char *path)
{
    forget_removed();
    for (int i = 0; i < FAKE_GROUPS; i++)
        if (!strcmp(fake_machine()->group[i].path, path))
            return &fake_machine()->group[i];
    return NULL;
}

struct fake_group *fake_make_group(const char *path)
{
    struct stat about;
    struct fake_group *group = fake_find_group(path);
    if (group || stat(path, &about) != 0 || strlen(path) >= sizeof group->path)
        return group;
    for (int i = 0; i < FAKE_GROUPS; i++) {
        group = &fake_machine()->group[i];
        if (group->path[0])
            continue;
        strcpy(group->path, path);
        group->inode = about.st_ino;
        for (int d = 0; d < FAKE_DEVICES; d++)
            group->hard[d] = UINT64_MAX;
        return group;
    }
    abort();
}

static bool is_within(const char *path, const char *group)
{
    size_t length = strlen(group);
    return !strncmp(path, group, length) && (path[length] == '/' || !path[length]);
}

uint64_t fake_group_used(const char *path, int card)
{
    const struct fake_machine *machine = fake_machine();
    int64_t used = 0;
    for (int i = 0; i < machine->processes; i++)
        if (machine->process[i].pid && is_within(machine->cgroup[i], path))
            used += machine->process[i].used[card];
    return used > 0 ? (uint64_t)used : 0;
}

static bool to_parent(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return false;
    *slash = '\0';
    return true;
}

void fake_join_group(int place)
{
    const char *path = getenv("FAKE_CGROUP");
    snprintf(fake_machine()->cgroup[place], sizeof fake_machine()->cgroup[place], "%s", path ? path : "");
}

/* What is left of the limits above a process; UINT64_MAX without any. *total: the smallest of them. */
uint64_t fake_group_left(int place, int card, uint64_t *total)
{
    char path[sizeof fake_machine()->cgroup[0]];
    strcpy(path, fake_machine()->cgroup[place]);
    uint64_t left = UINT64_MAX;
    *total = UINT64_MAX;
    if (!path[0])
        return left;
    do {
        const struct fake_group *group = fake_find_group(path);
        if (!group || group->hard[card] == UINT64_MAX)
            continue;
        uint64_t used = fake_group_used(path, card);
        uint64_t here = group->hard[card] > used ? group->hard[card] - used : 0;
        left = here < left ? here : left;
        *total = group->hard[card] < *total ? group->hard[card] : *total;
        if (fake_wall_is("misc"))
            break;
    } while (to_parent(path));
    return left;
}
