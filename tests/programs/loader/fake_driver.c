/* A driver without any function: every name that a real driver exports, with the real driver's answers to cuGetProcAddress. For tests of the
 * routes to a function; what functions do is simcuda's. `exports.h` is written by the test from the measured table. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Bodies differ, so that no linker folds two functions into one. */
#define EXPORT(name) int name(void) { return __COUNTER__ * 0; }
#define ANSWER(symbol, version, flags, name)
#include "exports.h"
#undef EXPORT
#undef ANSWER

int cuInit(unsigned flags) { (void)flags; return getenv("FAKE_DRIVER_REFUSES") ? 999 : 0; }

int cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);

static const struct { const char *symbol; int version; uint64_t flags; void *address; } answers[] = {
#define EXPORT(name)
#define ANSWER(symbol, version, flags, name) {symbol, version, flags, (void *)name},
#include "exports.h"
};

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
    *pfn = NULL;
    if (status) *status = 1;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        /* Flag 1 asks for the legacy form in so many words. */
        if (strcmp(answers[i].symbol, symbol) == 0 && answers[i].version == version && (answers[i].flags == flags || (flags == 1 && answers[i].flags == 0))) {
            *pfn = answers[i].address;
            if (status) *status = 0;
        }
    }
    return 0;
}

int cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}
