/* One check of the loader's manners a run: checks NAME [arguments]; prints what it found, exit code 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*init_fn)(unsigned);
typedef unsigned (*status_fn)(void);

static unsigned status(void) {
    status_fn ask = (status_fn)dlsym(RTLD_DEFAULT, "ft_status");
    return ask ? ask() : 0xffff;
}

static void *driver(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) exit(fprintf(stderr, "%s\n", dlerror()) * 0 + 2);
    return handle;
}

static const char *library_of(void *address) {
    Dl_info info = {0};
    if (!address || !dladdr(address, &info)) return "-";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static int call_init(void) { return ((init_fn)dlsym(driver(), "cuInit"))(0); }

/* Triton's way: clear, look up, and take any message for a failure. */
static int errors(void) {
    void *handle = driver();
    dlerror();
    void *found = dlsym(handle, "cuLaunchKernelEx");
    const char *message = dlerror();
    printf("found %s message %s\n", library_of(found), message ? message : "none");
    found = dlsym(handle, "cuNoSuchFunction");
    message = dlerror();
    printf("missing %s message %s\n", found ? "found" : "null", message && strstr(message, "cuNoSuchFunction") ? "names it" : "wrong");
    /* A name of the table that this driver does not have. */
    found = dlsym(handle, "cuMemcpyBatchAsync_v2");
    message = dlerror();
    printf("absent %s message %s\n", library_of(found), message && strstr(message, "cuMemcpyBatchAsync_v2") ? "names it" : message ? message : "none");
    return 0;
}

static int states(void) {
    printf("before %u\n", status());
    printf("init %d\n", call_init());
    printf("after %u\n", status());
    printf("again %d\n", call_init());
    printf("then %u\n", status());
    printf("lookup %s\n", library_of(dlsym(driver(), "cuMemAlloc_v2")));
    return 0;
}

static int forks(void) {
    fflush(stdout);
    if (fork() == 0) {
        int code = call_init();
        printf("child before: init %d stage %u\n", code, status() & 0xff);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    call_init();
    printf("parent stage %u\n", status() & 0xff);
    fflush(stdout);
    if (fork() == 0) {
        printf("child after: stage %u\n", status() & 0xff);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    printf("parent still %u\n", status() & 0xff);
    return 0;
}

static pthread_barrier_t together;

static void *init_in_thread(void *init) {
    pthread_barrier_wait(&together);
    return (void *)(intptr_t)((init_fn)init)(0);
}

static int threads(void) {
    pthread_t thread[8];
    void *code;
    int failed = 0;
    void *init = dlsym(driver(), "cuInit");
    pthread_barrier_init(&together, NULL, 8);
    for (int i = 0; i < 8; i++) pthread_create(&thread[i], NULL, init_in_thread, init);
    for (int i = 0; i < 8; i++) pthread_join(thread[i], &code), failed += code != NULL;
    printf("failed %d stage %u\n", failed, status() & 0xff);
    return 0;
}

/* No driver is loaded, but our exports stand in the global scope. */
static int without_driver(void) {
    init_fn init = (init_fn)dlsym(RTLD_DEFAULT, "cuInit");
    int (*allocate)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    if (!init || !allocate) return puts("not exported"), 0;
    int code = init(0), allocated = allocate();
    printf("init %d alloc %d stage %u\n", code, allocated, status() & 0xff);
    return 0;
}

/* A driver that is unloaded, and loaded again somewhere else. */
static int reload(void) {
    void *handle = driver(), *first = dlsym(handle, "cuMemAlloc_v2");
    dlclose(handle);
    /* Something else takes the place. */
    void *other = dlopen(getenv("OTHER_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    handle = driver();
    void *second = dlsym(handle, "cuMemAlloc_v2");
    printf("first %s second %s other %s\n", library_of(first), library_of(second), other ? "loaded" : "missing");
    int code = ((init_fn)dlsym(handle, "cuInit"))(0);
    printf("init %d stage %u\n", code, status() & 0xff);
    return 0;
}

/* Another library's functions whose names only begin like the driver's, or are the driver's. */
static int strangers(void) {
    void *handle = dlopen(getenv("OTHER_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    printf("cudnnCreate %s\n", library_of(dlsym(handle, "cudnnCreate")));
    printf("cuMemAlloc_v2 %s\n", library_of(dlsym(handle, "cuMemAlloc_v2")));
    return 0;
}

/* By the program's own handle a lookup finds our exports themselves. */
static int own_handle(void) {
    init_fn init = (init_fn)dlsym(dlopen(NULL, RTLD_NOW), "cuInit");
    printf("init %d\n", init ? init(0) : -1);
    return 0;
}

/* A library that needs the driver, and has functions of such names itself: its handle finds its own first. */
static int wide_handle(void) {
    void *wide = dlopen(getenv("OTHER_LIBRARY"), RTLD_NOW | RTLD_LOCAL), *found = NULL;
    if (!wide) return fprintf(stderr, "%s\n", dlerror()), 2;
    int (*ask)(const char *, void **, int, uint64_t, int *) = dlsym(wide, "cuGetProcAddress_v2");
    int status, code = ask("cuMemAlloc", &found, 3020, 0, &status);
    printf("asked %d %s\n", code, library_of(found));
    int (*allocate)(void) = found;
    printf("allocated %d\n", allocate ? allocate() : -2);
    return 0;
}

/* The same, with a driver that is too old for the function. */
static int wide_handle_old_driver(void) {
    void *wide = dlopen(getenv("OTHER_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (!wide || !dlsym(wide, "cuInit")) return 2;
    int (*exported)(void) = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    printf("allocated %d\n", exported());
    return 0;
}

static int linked(void) {
    void *handle = dlopen(getenv("LINKED_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return fprintf(stderr, "%s\n", dlerror()), 2;
    return ((int (*)(void))dlsym(handle, "print_table"))();
}

/* Which of two definitions a wrapper's RTLD_NEXT finds: its own library's or the next one's. */
static int next(void) {
    void *handle = dlopen(getenv("WRAPPER_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return fprintf(stderr, "%s\n", dlerror()), 2;
    int (*ask)(void) = (int (*)(void))dlsym(handle, "who_is_next");
    printf("next %d\n", ask());
    return 0;
}

int main(int argc, char **argv) {
    static const struct { const char *name; int (*run)(void); } checks[] = {
        {"errors", errors}, {"states", states}, {"forks", forks}, {"threads", threads}, {"without_driver", without_driver},
        {"reload", reload}, {"strangers", strangers}, {"linked", linked}, {"next", next}, {"own_handle", own_handle}, {"wide_handle", wide_handle}, {"wide_handle_old_driver", wide_handle_old_driver},
    };
    for (unsigned i = 0; argc > 1 && i < sizeof checks / sizeof *checks; i++)
        if (strcmp(argv[1], checks[i].name) == 0) return checks[i].run();
    return fprintf(stderr, "checks NAME\n"), 2;
}
