/* Asks for every driver function by dlsym and by cuGetProcAddress, as a runtime does, and prints which library's function came back.
 * usage: routes TABLE   (tests/fixtures/driver_addresses_13.tsv) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*ask4)(const char *, void **, int, uint64_t);
typedef int (*ask5)(const char *, void **, int, uint64_t, int *);

static void print(const char *route, const char *symbol, const char *version, const char *flags, const char *export, void *address) {
    Dl_info info = {0};
    const char *file = "-", *name = "-";
    if (address && dladdr(address, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        file = slash ? slash + 1 : info.dli_fname;
        name = info.dli_sname ? info.dli_sname : "-";
    }
    printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\n", route, symbol, version, flags, export, file, name);
}

int main(int argc, char **argv) {
    char line[512], *field[4];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found;
    int status;
    if (!driver || argc < 2) return fprintf(stderr, "no driver: %s\n", dlerror()), 2;
    ask5 ask = (ask5)dlsym(driver, "cuGetProcAddress_v2");
    /* The first question of a real runtime has an empty name. */
    found = (void *)1;
    ask("", &found, 0, 0, &status);
    if (found) return fprintf(stderr, "the empty name has an address\n"), 3;
    ask4 old = NULL;
    ask5 again = NULL;
    if (ask("cuGetProcAddress", (void **)&old, 11030, 0, &status) || ask("cuGetProcAddress", (void **)&again, 12000, 0, &status)) return 4;
    FILE *table = fopen(argv[1], "r");
    if (!table) return perror(argv[1]), 2;
    while (fgets(line, sizeof line, table)) {
        line[strcspn(line, "\n")] = 0;
        if (*line == '#' || strncmp(line, "symbol\t", 7) == 0) continue;
        char *rest = line;
        for (int i = 0; i < 4; i++) field[i] = strsep(&rest, "\t");
        int version, flags;
        sscanf(field[1], "%d", &version);
        sscanf(field[2], "%d", &flags);
        print("dlsym", field[0], field[1], field[2], field[3], dlsym(driver, field[3]));
        found = NULL, ask(field[0], &found, version, flags, &status);
        print("proc_v2", field[0], field[1], field[2], field[3], found);
        found = NULL, again(field[0], &found, version, flags, &status);
        print("proc_v2_of_proc", field[0], field[1], field[2], field[3], found);
        found = NULL, old(field[0], &found, version, flags);
        print("proc_v1", field[0], field[1], field[2], field[3], found);
        if (flags == 0) {
            found = NULL, ask(field[0], &found, version, 1, &status);
            print("proc_v2_legacy", field[0], field[1], "1", field[3], found);
        }
    }
    fclose(table);
    return 0;
}
