/* Shows the process another memory control group than the one it is in: what it opens of its groups comes from the folder GROUP_ROOT instead, where /proc/self/cgroup and
 * /sys/fs/cgroup/... are files of the test's. Nothing is limited by it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *seen(const char *path, char *room, size_t size) {
    const char *root = getenv("GROUP_ROOT");
    int shown = root && (strncmp(path, "/sys/fs/cgroup", 14) == 0 || strcmp(path, "/proc/self/cgroup") == 0);
    if (!shown || snprintf(room, size, "%s%s", root, path) >= (int)size) return path;
    return room;
}

static int by(const char *name, const char *path, int flags, mode_t mode) {
    char room[4096];
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
    return real(seen(path, room, sizeof room), flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return by("open", path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return by("open64", path, flags, mode);
}
