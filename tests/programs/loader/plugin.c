/* A library that programs open late: it reads a weight by a kernel, by functions of the driver that the dynamic linker gave it, and by those that it looked up. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

typedef int launch_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

extern launch_fn cuLaunchKernel;

static int launch(launch_fn *by, void *kernel, void *stream, uint64_t *arguments, int count) {
    void *pointers[16];
    for (int at = 0; at < count && at < 16; at++) pointers[at] = &arguments[at];
    return by(kernel, 1, 1, 1, 32, 1, 1, 0, stream, pointers, 0);
}

int launch_as_linked(void *kernel, void *stream, uint64_t *arguments, int count) {
    return launch(cuLaunchKernel, kernel, stream, arguments, count);
}

int launch_as_looked_up(void *kernel, void *stream, uint64_t *arguments, int count) {
    static launch_fn *found;
    if (!found) found = (launch_fn *)dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuLaunchKernel");
    return found ? launch(found, kernel, stream, arguments, count) : 500;
}
