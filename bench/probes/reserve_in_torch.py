"""Where the driver reserves a range of addresses that it is asked for, in a process with torch: by size, beside pinned memory, with a range taken from the kernel around it."""
import ctypes, mmap, sys, torch
torch.zeros(1, device="cuda")
cu = ctypes.CDLL("libcuda.so.1"); libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p; libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
U = ctypes.c_uint64; M = 1 << 20
def reserve(size, hint, align=2 * M):
    a = U(0); rc = cu.cuMemAddressReserve(ctypes.byref(a), ctypes.c_size_t(size), ctypes.c_size_t(align), U(hint), U(0)); return rc, a.value
def free(a, size): return cu.cuMemAddressFree(U(a), ctypes.c_size_t(size))
def zone(base, size):
    p = libc.mmap(base, size, 0, 0x4000 | 0x2 | 0x20 | 0x100000, -1, 0); return p == base
def attempt(what, at, size=64 * M, hole=True):
    if hole: libc.munmap(at, size)
    rc, a = reserve(size, at); print(f"{what:40s} asked {at:x} rc {rc} got {a:x} {'SAME' if a == at else 'other'}", flush=True)
    if rc == 0: free(a, size)
print("arena", [hex(x) for x in reserve(1 << 40, 0)])
def round_(tag, base):
    attempt(tag + " no zone", base, hole=False)
    if zone(base, 4 << 40):
        attempt(tag + " zone, hole 64M", base); attempt(tag + " zone, hole at 64M", base + 64 * M); attempt(tag + " zone, hole at 2G", base + (2 << 30)); attempt(tag + " zone, 1G at 4G", base + (4 << 30), 1 << 30)
        libc.munmap(base, 4 << 40)
    else: print(tag, "no zone")
round_("after init", 0x300000000000)
buf = torch.empty(32 * M, dtype=torch.uint8).pin_memory(); round_("after pin_memory", 0x310000000000)
p = libc.mmap(None, 32 * M, 3, 0x22, -1, 0); print("register", cu.cuMemHostRegister_v2(ctypes.c_void_p(p), ctypes.c_size_t(32 * M), 3)); round_("after register", 0x320000000000)
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); round_("after 1 GiB", 0x330000000000)
s = torch.cuda.Stream(); round_("after stream", 0x340000000000)
rc, a = reserve(192 * M, 0); print("driver likes", hex(a)); free(a, 192 * M); q = libc.mmap(a + 64 * M, 128 * M, 0, 0x4000 | 0x22 | 0x100000, -1, 0); print("kept", q == a + 64 * M); attempt("there again", a, hole=False)
import threading
t = threading.Thread(target=lambda: round_("in a thread without context", 0x350000000000)); t.start(); t.join()
y = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16); (y @ y).sum().item(); round_("after a matmul", 0x360000000000)
