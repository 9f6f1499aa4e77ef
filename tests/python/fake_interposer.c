/* Stands for libflextensor.so in the Python tests: the C interface of docs/c-api.md that records every call as one line of text, and
 * the moments at which the real one brings the Python hook in. Answers are set by fake_set. No driver, no weights are touched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text;
static size_t used, room;
static long answers[8]; /* 0 wants, 1 phase (of each model too), 2 refuse models, 3 answer of model_weight, 4 answer of weight_private, 5 of attach, 6 of model_replan, 7 record nothing */
static uint64_t models;
static uint32_t quiet, untold;

static void record(const char *format, ...) {
    if (answers[7]) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length] = '\n';
    pthread_mutex_lock(&lock);
    if (used + length + 2 > room) text = realloc(text, room = 2 * (used + length + 2));
    memcpy(text + used, line, length + 1);
    used += length + 1;
    text[used] = 0;
    pthread_mutex_unlock(&lock);
}

/* For the tests. */
void fake_set(int which, long value) { answers[which] = value; }

void fake_reset(void) {
    memset(answers, 0, sizeof answers);
    quiet = untold = 0;
    models = 0;
    used = 0;
}

size_t fake_take(char *buffer, size_t capacity) {
    pthread_mutex_lock(&lock);
    size_t length = used;
    if (buffer && capacity > used) {
        if (used) memcpy(buffer, text, used);
        buffer[used] = 0;
        used = 0;
    }
    pthread_mutex_unlock(&lock);
    return length;
}

static int bring_in(void *unused) {
    (void)unused;
    int (*run)(const char *) = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    char code[2048];
    const char *path = getenv("FAKE_ARRIVE");
    if (!path) return 0;
    snprintf(code, sizeof code, "exec(compile(open(%c%s%c).read(), %c%s%c, 'exec'), {'__name__': '_arrive', '__file__': %c%s%c})", 39,
             path, 39, 39, path, 39, 39, path, 39);
    return run(code) ? 0 : 0;
}

/* As the interposer does after the first successful cuInit, and whenever new memory is managed. */
void fake_bring_in(void) {
    int (*pending)(int (*)(void *), void *) = dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
    if (pending) pending(bring_in, NULL);
}

/* The interface. */
uint32_t ft_api_version(void) { return getenv("FAKE_VERSION") ? (uint32_t)atoi(getenv("FAKE_VERSION")) : 1; }
int32_t ft_attach(void) { record("attach"); return (int32_t)answers[5]; }
int32_t ft_phase(void) { return (int32_t)answers[1]; }

uint64_t ft_model_begin(const char *name) {
    if (answers[2]) return 0;
    uint64_t id = ++models;
    record("model_begin %llu %s", (unsigned long long)id, name);
    return id;
}
int32_t ft_model_owner(uint64_t model, uint32_t owner, const char *path, const char *class_name, int32_t trap) {
    record("model_owner %llu %u %s %s %d", (unsigned long long)model, owner, *path ? path : "-", class_name, trap);
    return 0;
}
int32_t ft_model_weight(uint64_t model, const char *name, uint64_t address, uint64_t bytes, uint32_t owner, uint32_t flags) {
    record("model_weight %llu %s %llu %llu %u %u", (unsigned long long)model, name, (unsigned long long)address,
           (unsigned long long)bytes, owner, flags);
    return (int32_t)answers[3];
}
int32_t ft_model_end(uint64_t model) { record("model_end %llu", (unsigned long long)model); return 0; }
int32_t ft_model_strategy(uint64_t model, const char *json) {
    record("model_strategy %llu %s", (unsigned long long)model, json ? json : "-");
    return 0;
}
int32_t ft_model_replan(uint64_t model) { record("model_replan %llu", (unsigned long long)model); return (int32_t)answers[6]; }
int32_t ft_model_course(uint64_t model, uint32_t discovery, uint32_t profiling, uint32_t warmups, uint32_t flags, const char *profile) {
    record("model_course %llu %u %u %u %u %s", (unsigned long long)model, discovery, profiling, warmups, flags,
           !profile ? "-" : *profile ? profile : "none");
    return 0;
}
int32_t ft_model_phase(uint64_t model) { (void)model; return (int32_t)answers[1]; }
int32_t ft_model_profiling(uint64_t model, uint32_t what) {
    record("model_profiling %llu %u", (unsigned long long)model, what);
    return 0;
}
int32_t ft_configure(const char *json) { record("configure %s", json); return 0; }
int32_t ft_profile_save(const char *folder) { record("profile_save %s", folder ? folder : "-"); return answers[1] == 3 ? 0 : -1; }
void ft_model_drop(uint64_t model) { record("model_drop %llu", (unsigned long long)model); }
int32_t ft_weight_private(uint64_t address) {
    record("weight_private %llu", (unsigned long long)address);
    return (int32_t)answers[4];
}
int32_t ft_weight_written(uint64_t address) {
    record("weight_written %llu", (unsigned long long)address);
    return 0;
}
void ft_pass_begin(uint64_t model, uint64_t shape) {
    record("pass_begin %llu %llu", (unsigned long long)model, (unsigned long long)shape);
}
void ft_pass_end(uint64_t model) { record("pass_end %llu", (unsigned long long)model); }
void ft_passes_untold(uint64_t model, uint64_t count) { record("passes_untold %llu %llu", (unsigned long long)model, (unsigned long long)count); }
const uint32_t *ft_quiet(void) { return &quiet; }
uint32_t *ft_untold(void) { return &untold; }
void fake_quiet(int value) { quiet = (uint32_t)value; }
uint32_t fake_untold(void) { return untold; }
void ft_owner_enter(uint64_t model, uint32_t owner) { record("owner_enter %llu %u", (unsigned long long)model, owner); }
void ft_owner_exit(uint64_t model, uint32_t owner) { record("owner_exit %llu %u", (unsigned long long)model, owner); }
void ft_trap_enter(uint64_t model, uint32_t trap) { record("trap_enter %llu %u", (unsigned long long)model, trap); }
void ft_trap_exit(uint64_t model, uint32_t trap) { record("trap_exit %llu %u", (unsigned long long)model, trap); }
uint32_t ft_wants(uint64_t model) { (void)model; return (uint32_t)answers[0]; }

static int64_t answer(const char *json, char *buffer, size_t capacity) {
    size_t length = strlen(json);
    if (buffer && capacity) {
        size_t copied = length < capacity - 1 ? length : capacity - 1;
        memcpy(buffer, json, copied);
        buffer[copied] = 0;
    }
    return (int64_t)length;
}
int64_t ft_config_json(char *buffer, size_t capacity) {
    const char *json = getenv("FAKE_CONFIG");
    return answer(json ? json : "{}", buffer, capacity);
}
int64_t ft_report_json(char *buffer, size_t capacity) {
    const char *json = getenv("FAKE_REPORT");
    return answer(json ? json : "{\"version\": \"0.1.0\", \"phase\": \"DISCOVERY\"}", buffer, capacity);
}
uint64_t ft_arena(uint64_t *bytes) { *bytes = 0; return 0; }
