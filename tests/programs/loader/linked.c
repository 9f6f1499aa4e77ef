/* A library's table of driver functions that the dynamic linker fills (as torch's has one), and whose function each entry is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define EXPORT(name) extern int name(void);
#define ANSWER(symbol, version, flags, name)
#include "exports.h"
#undef EXPORT

static const struct { const char *name; void *address; } table[] = {
#define EXPORT(name) {#name, (void *)name},
#include "exports.h"
};

int print_table(void) {
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        Dl_info info = {0};
        if (!dladdr(table[i].address, &info)) return 1;
        printf("elf\t%s\t-\t-\t%s\t%s\t%s\n", table[i].name, table[i].name, strrchr(info.dli_fname, '/') + 1, info.dli_sname);
    }
    return 0;
}
