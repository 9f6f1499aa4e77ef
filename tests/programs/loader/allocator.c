/* Stands for an allocator that is preloaded beside us (jemalloc, tcmalloc): it takes malloc and its family over, and says at the end how often it was asked.
 * COMPANION_LOG: the file that it appends its line to. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static unsigned long asked;

static unsigned long count(void) { return __atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED); }

void *malloc(size_t bytes) { return count(), __libc_malloc(bytes); }
void *calloc(size_t many, size_t bytes) { return count(), __libc_calloc(many, bytes); }
void *realloc(void *old, size_t bytes) { return count(), __libc_realloc(old, bytes); }
void *memalign(size_t unit, size_t bytes) { return count(), __libc_memalign(unit, bytes); }
void *aligned_alloc(size_t unit, size_t bytes) { return count(), __libc_memalign(unit, bytes); }
void free(void *address) { __libc_free(address); }

int posix_memalign(void **address, size_t unit, size_t bytes) {
    void *made = (count(), __libc_memalign(unit, bytes));
    if (!made) return ENOMEM;
    *address = made;
    return 0;
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("COMPANION_LOG");
    char line[64];
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "allocator %lu\n", asked);
    if (write(file, line, (size_t)length) != length) return;
    close(file);
}
