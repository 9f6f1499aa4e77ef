/* A program that has found the driver long before our library comes: by dlsym and cuGetProcAddress into tables of its own, and by a library that is
 * linked to the driver. Prints whose function each address is afterwards, and what later lookups find.
 * usage: late TABLE   (tests/fixtures/driver_addresses_13.tsv); LATE_LIBRARY, LINKED_LIBRARY and LINKED_LATER are paths.
 * With NO_DESCRIPTORS no file can be opened while the library starts; with THREADS so many threads start it at once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef int (*ask5)(const char *, void **, int, uint64_t, int *);

static struct { char symbol[64], export[64]; int version, flags; } names[1024];
static void *by_dlsym[1024], *by_proc[1024], **on_the_heap;
static ask5 ask;
static int count;

static void print(const char *route, const char *export, void *address) {
    Dl_info info = {0};
    const char *file = "-", *name = "-";
    if (address && dladdr(address, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        file = slash ? slash + 1 : info.dli_fname;
        name = info.dli_sname ? info.dli_sname : "-";
    }
    printf("%s\t-\t-\t-\t%s\t%s\t%s\n", route, export, file, name);
}

static void read_names(const char *path) {
    char line[512], version[16], flags[16];
    FILE *table = fopen(path, "r");
    if (!table) exit(2);
    while (fgets(line, sizeof line, table)) {
        if (*line == '#' || strncmp(line, "symbol\t", 7) == 0) continue;
        if (sscanf(line, "%63s %15s %15s %63s", names[count].symbol, version, flags, names[count].export) != 4) continue;
        names[count].version = atoi(version);
        names[count++].flags = atoi(flags);
    }
    fclose(table);
}

static void look_up(void *driver, int at) {
    int status;
    by_dlsym[at] = dlsym(driver, names[at].export);
    ask(names[at].symbol, &by_proc[at], names[at].version, names[at].flags, &status);
}

static void *linked(const char *variable) {
    void *library = dlopen(getenv(variable), RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(3);
    return library;
}

static int (*attach)(void);
static pthread_barrier_t all_here;

static void *attach_with_the_others(void *none) {
    pthread_barrier_wait(&all_here);
    return (void *)(intptr_t)attach();
}

/* An answer that is not 0, of so many threads at once, if there is one. */
static int attach_on(int threads) {
    pthread_t each[64];
    int worst = 0;
    pthread_barrier_init(&all_here, 0, threads);
    for (int i = 0; i < threads; i++) if (pthread_create(&each[i], 0, attach_with_the_others, 0)) exit(5);
    for (int i = 0; i < threads; i++) {
        void *answer;
        pthread_join(each[i], &answer);
        if (answer) worst = (int)(intptr_t)answer;
    }
    return worst;
}

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver || argc < 2) return 2;
    read_names(argv[1]);
    ask = (ask5)dlsym(driver, "cuGetProcAddress_v2");
    on_the_heap = malloc(1024 * sizeof *on_the_heap);
    for (int i = 0; i < count; i++) look_up(driver, i), on_the_heap[i] = by_dlsym[i];
    void *before = linked("LINKED_LIBRARY");
    for (int i = 0; i < count; i++) if (strcmp(names[i].export, "cuLaunchKernel") == 0) print("before", "cuLaunchKernel", by_dlsym[i]);

    void *library = dlopen(getenv("LATE_LIBRARY"), RTLD_NOW | RTLD_GLOBAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 4;
    attach = (int (*)(void))dlsym(library, "ft_attach");
    struct rlimit files, none;
    getrlimit(RLIMIT_NOFILE, &files);
    none = files, none.rlim_cur = 0;
    if (getenv("NO_DESCRIPTORS")) setrlimit(RLIMIT_NOFILE, &none);
    int attached = getenv("THREADS") ? attach_on(atoi(getenv("THREADS"))) : attach();
    setrlimit(RLIMIT_NOFILE, &files);
    unsigned status = ((unsigned (*)(void))dlsym(library, "ft_status"))();
    printf("attach %d status %u again %d\n", attached, status, attach());

    for (int i = 0; i < count; i++) {
        print("table_dlsym", names[i].export, by_dlsym[i]);
        print("table_proc", names[i].export, by_proc[i]);
        if (strcmp(names[i].export, "cuLaunchKernel") == 0) print("heap", "cuLaunchKernel", on_the_heap[i]);
    }
    fflush(stdout);
    ((int (*)(void))dlsym(before, "print_table"))();
    for (int i = 0; i < count; i++) {
        look_up(driver, i);
        print("later_dlsym", names[i].export, by_dlsym[i]);
        print("later_proc", names[i].export, by_proc[i]);
    }
    fflush(stdout);
    ((int (*)(void))dlsym(linked("LINKED_LATER"), "print_table"))();
    return 0;
}
