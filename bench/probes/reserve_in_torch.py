"""Where the driver reserves a range of addresses that it is asked for, in a process with torch: by size, beside pinned memory, with a range taken from the kernel around it."""

import ctypes
import threading

import torch

MIB = 1 << 20
GIB = 1 << 30
PROT_NONE, PROT_READ_WRITE = 0, 3
PRIVATE_ANONYMOUS, NORESERVE, FIXED_NOREPLACE = 0x22, 0x4000, 0x100000

cuda = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(size: int, hint: int) -> tuple[int, int]:
    address = ctypes.c_uint64(0)
    code = cuda.cuMemAddressReserve(
        ctypes.byref(address),
        ctypes.c_size_t(size),
        ctypes.c_size_t(2 * MIB),
        ctypes.c_uint64(hint),
        ctypes.c_uint64(0),
    )
    return code, address.value


def unreserve(address: int, size: int) -> None:
    cuda.cuMemAddressFree(ctypes.c_uint64(address), ctypes.c_size_t(size))


def take(base: int, size: int) -> bool:
    """Takes addresses from the kernel, as a zone for views does."""
    return libc.mmap(base, size, PROT_NONE, PRIVATE_ANONYMOUS | NORESERVE | FIXED_NOREPLACE, -1, 0) == base


def attempt(what: str, at: int, size: int = 64 * MIB, hole: bool = True) -> None:
    if hole:
        libc.munmap(at, size)
    code, got = reserve(size, at)
    verdict = "SAME" if got == at else "other"
    print(f"{what:40s} asked {at:x} rc {code} got {got:x} {verdict}", flush=True)
    if code == 0:
        unreserve(got, size)


def attempts(when: str, base: int) -> None:
    attempt(f"{when} no zone", base, hole=False)
    if not take(base, 4 << 40):
        return print(when, "no zone")
    attempt(f"{when} zone, hole 64M", base)
    attempt(f"{when} zone, hole at 64M", base + 64 * MIB)
    attempt(f"{when} zone, hole at 2G", base + 2 * GIB)
    attempt(f"{when} zone, 1G at 4G", base + 4 * GIB, GIB)
    libc.munmap(base, 4 << 40)


def main() -> None:
    torch.zeros(1, device="cuda")
    print("arena", [hex(part) for part in reserve(1 << 40, 0)])
    attempts("after init", 0x300000000000)
    kept = [torch.empty(32 * MIB, dtype=torch.uint8).pin_memory()]
    attempts("after pin_memory", 0x310000000000)
    memory = libc.mmap(None, 32 * MIB, PROT_READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    print("register", cuda.cuMemHostRegister_v2(ctypes.c_void_p(memory), ctypes.c_size_t(32 * MIB), 3))
    attempts("after register", 0x320000000000)
    kept.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    attempts("after 1 GiB", 0x330000000000)
    kept.append(torch.cuda.Stream())
    attempts("after stream", 0x340000000000)
    _, at = reserve(192 * MIB, 0)
    print("driver likes", hex(at))
    unreserve(at, 192 * MIB)
    print("kept", take(at + 64 * MIB, 128 * MIB))
    attempt("there again", at, hole=False)
    thread = threading.Thread(target=lambda: attempts("in a thread without context", 0x350000000000))
    thread.start()
    thread.join()
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    (square @ square).sum().item()
    attempts("after a matmul", 0x360000000000)


if __name__ == "__main__":
    main()
