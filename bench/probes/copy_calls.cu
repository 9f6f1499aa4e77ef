// What a copy from pinned host memory costs the thread that enqueues it, by size and by what lies behind the target; and launches beside copies of another thread.
// nvcc -O2 -std=c++17 -arch=sm_90 -o copy_calls copy_calls.cu -lcuda -lpthread && ./copy_calls
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include <thread>
#include <atomic>
#include <chrono>
#include <sys/mman.h>
#include <x86intrin.h>
#define C(x) do { CUresult r = (x); if (r) { const char *s; cuGetErrorString(r, &s); printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, s); exit(1); } } while (0)
typedef std::chrono::steady_clock K;
static double us(K::time_point a) { return std::chrono::duration<double, std::micro>(K::now() - a).count(); }
static const size_t MB = 1 << 20, T = 64 * MB;
__global__ void tiny(int *p) { if (p) p[threadIdx.x] = 1; }
__global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }
static CUmemAllocationProp prop() { CUmemAllocationProp p = {}; p.type = CU_MEM_ALLOCATION_TYPE_PINNED; p.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}; return p; }
static CUdeviceptr map(std::vector<CUmemGenericAllocationHandle> &h, size_t each) {
  CUdeviceptr a; C(cuMemAddressReserve(&a, T, 0, 0, 0));
  for (size_t i = 0; i < h.size(); i++) C(cuMemMap(a + i * each, each, 0, h[i], 0));
  CUmemAccessDesc d = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}; C(cuMemSetAccess(a, T, &d, 1)); return a;
}
static double med(std::vector<double> v) { std::sort(v.begin(), v.end()); return v[v.size() / 2]; }
int main() {
  C(cuInit(0)); CUcontext c; CUdevice dev; C(cuDeviceGet(&dev, 0)); C(cuDevicePrimaryCtxRetain(&c, dev)); C(cuCtxSetCurrent(c));
  { auto t = K::now(); auto x = __rdtsc(); while (us(t) < 50000); printf("tsc %.3f GHz\n", (__rdtsc() - x) / us(t) / 1e3); }
  CUdeviceptr plain; C(cuMemAlloc(&plain, T));
  auto p = prop();
  std::vector<CUmemGenericAllocationHandle> small(T / (2 * MB)), one(1);
  for (auto &h : small) C(cuMemCreate(&h, 2 * MB, &p, 0));
  C(cuMemCreate(&one[0], T, &p, 0));
  CUdeviceptr pages = map(small, 2 * MB), whole = map(one, T), alias = 0;
  for (int i = 0; i < 8; i++) alias = map(small, 2 * MB);
  char *reg = (char *)mmap(0, 1024 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); madvise(reg, 1024 * MB, MADV_HUGEPAGE);
  for (size_t i = 0; i < 1024 * MB; i += 4096) reg[i] = 1;
  for (size_t i = 0; i < 1024; i += 64) C(cuMemHostRegister(reg + i * MB, 64 * MB, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  void *alloc; C(cuMemHostAlloc(&alloc, T, 0));
  CUstream s, l; C(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING)); C(cuStreamCreate(&l, CU_STREAM_NON_BLOCKING));
  struct { const char *n; CUdeviceptr d; char *h; bool two; } v[] = {{"plain", plain, reg, 0}, {"2MiB handles", pages, reg, 0}, {"aliased", alias, reg, 0}, {"one handle", whole, reg, 0}, {"2MiB hostalloc", pages, (char *)alloc, 0}, {"2MiB 2D", pages, reg, 1}, {"plain 2D", plain, reg, 1}};
  for (auto &x : v) for (size_t n : {2 * MB, 8 * MB, 16 * MB, 32 * MB}) {
    std::vector<double> idle, busy;
    auto copy = [&] { auto t = K::now();
      if (x.two) { CUDA_MEMCPY2D q = {}; q.srcMemoryType = CU_MEMORYTYPE_HOST; q.srcHost = x.h; q.srcPitch = q.dstPitch = q.WidthInBytes = MB / 16; q.dstMemoryType = CU_MEMORYTYPE_DEVICE; q.dstDevice = x.d; q.Height = n / (MB / 16); C(cuMemcpy2DAsync(&q, s)); }
      else C(cuMemcpyHtoDAsync(x.d, x.h, n, s)); return us(t); };
    for (int i = 0; i < 40; i++) { C(cuStreamSynchronize(s)); idle.push_back(copy()); }
    for (int i = 0; i < 5; i++) { C(cuStreamSynchronize(s)); for (int j = 0; j < 12; j++) { double u = copy(); if (j > 2) busy.push_back(u); } }
    // Behind an event, as copies that wait for readers are.
    C(cuStreamSynchronize(s)); CUevent e; C(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING)); std::vector<double> wait;
    for (int r = 0; r < 5; r++) { spin<<<1, 1, 0, l>>>(3000000); C(cuEventRecord(e, l)); C(cuStreamWaitEvent(s, e, 0)); for (int j = 0; j < 8; j++) wait.push_back(copy()); C(cuStreamSynchronize(s)); }
    printf("%-16s %2zu MiB: idle %.1f us, behind copies %.1f us, behind an event %.1f us\n", x.n, n / MB, med(idle), med(busy), med(wait));
  }
  std::atomic<int> go{0}; std::atomic<bool> stop{false}; std::vector<double> theirs;
  std::thread w([&] { C(cuCtxSetCurrent(c)); CUevent e; C(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING)); int i = 0; while (!stop) { if (!go) { std::this_thread::yield(); continue; } auto t = K::now(); C(cuMemcpyHtoDAsync(alias, reg + (i++ % 32) * 32 * MB, 16 * MB, s)); theirs.push_back(us(t)); C(cuEventRecord(e, s)); while (us(t) < 300); } });
  for (int g = 0; g < 4; g++) { go = g & 1; std::vector<double> t; C(cuStreamSynchronize(l)); auto all = K::now(); for (int i = 0; i < 6000; i++) { auto a = K::now(); tiny<<<1, 32, 0, l>>>((int *)0); t.push_back(us(a)); while (us(a) < 12); } double m = 0; for (double x : t) m += x; double md = med(t); std::sort(t.begin(), t.end());
    printf("launches %s copies on another thread: mean %.2f us, median %.2f, p99 %.2f, whole %.1f ms\n", g & 1 ? "beside" : "without", m / t.size(), md, t[t.size() * 99 / 100], us(all) / 1e3); C(cuStreamSynchronize(s)); }
  stop = true; w.join(); printf("copies of the other thread: median %.1f us\n", med(theirs));
  // The same copies by the launching thread.
  for (int g = 0; g < 2; g++) { auto all = K::now(); for (int i = 0; i < 6000; i++) { auto a = K::now(); tiny<<<1, 32, 0, l>>>((int *)0); if (g && i % 25 == 0) C(cuMemcpyHtoDAsync(alias, reg + (i / 25 % 32) * 32 * MB, 16 * MB, s)); while (us(a) < 12); } printf("one thread, copies %d: whole %.1f ms\n", g, us(all) / 1e3); C(cuStreamSynchronize(s)); }
}
