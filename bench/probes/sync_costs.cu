// What a kernel behind a wait, or in front of a mark, starts later: events of other streams, words in memory, and the events of launch attributes.
//
//   nvcc -O2 -o sync_costs sync_costs.cu -lcuda && ./sync_costs [kernels 100] [rounds 25]
//
// Kernels that spin for a fixed time on all multiprocessors follow each other on one stream. Everything is enqueued while the stream is held, so that the driver cannot leave out a wait that is over
// already. The median of a round, less that of kernels alone, for each kernel. `exchange` is what streaming does: each copy waits for the use three before it, each use for its copy.
// What whole programs pay is `../turns.py`'s matter.
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define MUST(call) do { int code = (int)(call); if (code) { std::printf("%s: %d\n", #call, code); std::exit(1); } } while (0)

__global__ void spin(long long nanoseconds) {
    long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begun < nanoseconds);
}

struct Scene {
    int kernels;
    CUstream work, side;
    std::vector<CUevent> copied, used;
    CUevent begins, ends, ready;
    volatile unsigned *gate;
    CUdeviceptr gate_at, words, there;
    void *host;
};

static const size_t PIECE = 1 << 20;
static const long long SPIN_NS = 60000;

static void launch(Scene &s, CUlaunchAttribute *attribute) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(264);
    config.blockDim = dim3(128);
    config.stream = s.work;
    config.attrs = (cudaLaunchAttribute *)attribute;
    config.numAttrs = attribute ? 1 : 0;
    MUST(cudaLaunchKernelEx(&config, spin, SPIN_NS));
}

static void one(Scene &s, const std::string &way, int at) {
    auto has = [&](const char *part) { return way.find(part) != std::string::npos; };
    int every = has("fourth") ? 4 : 1;
    bool mine = at % every == 0;
    if (has("exchange") && mine) {
        if (at >= 3) MUST(cuStreamWaitEvent(s.side, s.used[at - 3 - (at - 3) % every], 0));
        MUST(cuMemcpyHtoDAsync(s.there, s.host, PIECE, s.side));
        MUST(cuEventRecord(s.copied[at], s.side));
    }
    if ((has("wait") || has("exchange")) && mine) MUST(cuStreamWaitEvent(s.work, s.copied[at], 0));
    if (has("twice") && mine) MUST(cuStreamWaitEvent(s.work, s.copied[(at + 1) % s.kernels], 0));
    if (has("poll") && mine) MUST(cuStreamWaitValue32(s.work, s.words, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CUlaunchAttribute attribute = {};
    bool attributed = false;
    if (has("completion") && mine) {
        attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
        attribute.value.launchCompletionEvent.event = s.used[at];
        attributed = true;
    }
    if (has("programmatic") && mine) {
        attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
        attribute.value.programmaticEvent.event = s.used[at];
        attribute.value.programmaticEvent.triggerAtBlockStart = 0;
        attributed = true;
    }
    launch(s, attributed ? &attribute : nullptr);
    if ((has("event") || has("exchange")) && mine) MUST(cuEventRecord(s.used[at], s.work));
    if (has("word") && mine) MUST(cuStreamWriteValue32(s.work, s.words + 4, at, 0));
}

static float round_of(Scene &s, const std::string &way) {
    *s.gate = 0;
    MUST(cuStreamWaitValue32(s.side, s.gate_at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    MUST(cuStreamWaitValue32(s.work, s.gate_at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    if (way.find("exchange") == std::string::npos) {
        for (auto event : s.copied) MUST(cuEventRecord(event, s.side));
        MUST(cuEventRecord(s.ready, s.side));
        MUST(cuStreamWaitEvent(s.work, s.ready, 0));
    }
    // Copies have a start, as they have in a program.
    launch(s, nullptr);
    launch(s, nullptr);
    MUST(cuEventRecord(s.begins, s.work));
    for (int at = 0; at < s.kernels; at++) one(s, way, at);
    MUST(cuEventRecord(s.ends, s.work));
    *s.gate = 1;
    MUST(cuStreamSynchronize(s.work));
    MUST(cuStreamSynchronize(s.side));
    float ms = 0;
    MUST(cuEventElapsedTime(&ms, s.begins, s.ends));
    return ms;
}

static CUevent event(unsigned flags) {
    CUevent made;
    MUST(cuEventCreate(&made, flags));
    return made;
}

int main(int count, char **given) {
    Scene s;
    s.kernels = count > 1 ? std::atoi(given[1]) : 100;
    int rounds = count > 2 ? std::atoi(given[2]) : 25;
    MUST(cudaSetDevice(0));
    MUST(cudaFree(nullptr));
    MUST(cuStreamCreate(&s.work, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&s.side, CU_STREAM_NON_BLOCKING));
    for (int at = 0; at < s.kernels; at++) {
        s.copied.push_back(event(CU_EVENT_DISABLE_TIMING));
        s.used.push_back(event(CU_EVENT_DISABLE_TIMING));
    }
    s.begins = event(0), s.ends = event(0), s.ready = event(CU_EVENT_DISABLE_TIMING);
    void *gate;
    MUST(cuMemHostAlloc(&gate, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(cuMemHostGetDevicePointer(&s.gate_at, gate, 0));
    s.gate = (volatile unsigned *)gate;
    MUST(cuMemHostAlloc(&s.host, PIECE, 0));
    MUST(cuMemAlloc(&s.there, PIECE));
    MUST(cuMemAlloc(&s.words, 256));
    MUST(cuMemsetD32(s.words, 1, 64));
    // The first launch loads the kernel, which waits for the device: not while a stream is held.
    launch(s, nullptr);
    MUST(cuStreamSynchronize(s.work));
    const char *ways[] = {"alone", "alone again", "event", "wait", "wait twice", "wait, event", "every fourth: wait, event", "poll", "word", "poll, word",
                          "wait, word", "completion", "programmatic", "wait, programmatic", "exchange", "every fourth: exchange"};
    std::vector<std::vector<float>> found(sizeof ways / sizeof *ways);
    for (int round = 0; round <= rounds; round++)
        for (size_t at = 0; at < found.size(); at++) {
            float ms = round_of(s, ways[at]);
            if (round) found[at].push_back(ms);
        }
    std::printf("%d kernels of %.0f us, %d rounds\n", s.kernels, SPIN_NS / 1e3, rounds);
    float alone = 0;
    for (size_t at = 0; at < found.size(); at++) {
        auto &ms = found[at];
        std::sort(ms.begin(), ms.end());
        float middle = ms[ms.size() / 2];
        if (!at) alone = middle;
        std::printf("%-28s %9.3f ms (%.3f to %.3f) %+7.2f us each\n", ways[at], middle, ms[ms.size() / 4], ms[ms.size() * 3 / 4], (middle - alone) * 1e3 / s.kernels);
        std::fflush(stdout);
    }
}
