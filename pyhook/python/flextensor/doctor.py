"""`flextensor doctor`: says what this machine offers to flextensor, what is missing, and what to do about
it.

It asks the driver itself, by ctypes and without the preload; only the hook routes are tried in a preloaded
child. Nothing is changed.
"""

import ctypes
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flextensor import __version__, launch, left_out

_MIB = 1 << 20
_COPY_BYTES = 256 * _MIB
_COPIES = 5
_PROBE_SECONDS = 120
# Page-locking less than this is refused by default limits in containers; weights need far more.
_ENOUGH_MEMLOCK = 64 * _MIB

# cuDeviceGetAttribute
_INTEGRATED = 18
_CAN_USE_HOST_REGISTER = 99
_VMM_SUPPORTED = 102
_HOST_NUMA_VMM = 141
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76

_ROUTES_PROBE = """
import ctypes, json
every = ctypes.CDLL(None)
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
every.ft_report_json.restype = ctypes.c_int64
buffer = ctypes.create_string_buffer(1 << 22)
every.ft_report_json(buffer, ctypes.c_size_t(len(buffer)))
print(json.dumps({"status": every.ft_status() if hasattr(every, "ft_status") else None, "report": json.loads(buffer.value or b"{}")}))
"""
_STAGES = ("inert", "starting", "active", "off by configuration", "could not start", "forked child")


class Findings:
    """The lines of the answer, and whether anything is missing or switched off."""

    def __init__(self) -> None:
        self.missing = False
        self.disabled = False

    def good(self, text: str) -> None:
        """Something is as it should be."""
        print(f"  ok       {text}")

    def note(self, text: str) -> None:
        """Something worth knowing."""
        print(f"  note     {text}")

    def off(self, text: str) -> None:
        """Something is switched off, by the user's own word."""
        self.disabled = True
        print(f"  disabled {text}")

    def bad(self, text: str) -> None:
        """Something is missing."""
        self.missing = True
        print(f"  missing  {text}")


def main() -> int:
    """Prints all findings; 0 if nothing is missing, else 1."""
    found = Findings()
    print(
        f"flextensor {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    print("installation")
    preloadable = _installation(found)
    print("host")
    _host(found)
    print("GPU")
    driver = _driver(found)
    if driver is not None:
        for device in range(_integer(driver, "cuDeviceGetCount")):
            _device(found, driver, device)
    if driver is not None and preloadable and not found.disabled:
        print("hook routes")
        _routes(found)
    _programs(found)
    if found.missing:
        print("something is missing, see above")
    else:
        print("all well, but flextensor is switched off here" if found.disabled else "all well")
    return 1 if found.missing else 0


def _installation(found: Findings) -> bool:
    try:
        from flextensor import _native
    except ImportError as error:
        found.bad(f"the native module cannot be loaded: {error}")
        return False
    try:
        configuration = json.loads(_native.check_configuration(dict(os.environ)))
        if configuration.get("enabled", True):
            found.good("configuration")
        else:
            origin = configuration.get("origins", {}).get("enabled", "the configuration")
            found.off(
                f"{origin} switches flextensor off: programs run as without it, and hooks are not tried"
            )
    except ValueError as error:
        found.bad(f"configuration: {error}")
    try:
        launch.check_preload(launch.preloaded(dict(os.environ)))
    except launch.CannotPreload as error:
        found.bad(str(error))
        return False
    found.good(f"{launch.library()} can be preloaded")
    return True


def _host(found: Findings) -> None:
    release = platform.release().lower()
    if "microsoft" in release:
        found.note(
            "this is WSL: page-locked memory is limited and slower there; expect less than the link's speed"
        )
    try:
        memory = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
        available, total = int(memory["MemAvailable"]) >> 20, int(memory["MemTotal"]) >> 20
    except (OSError, KeyError):
        found.note("host memory: /proc/meminfo cannot be read")
    else:
        found.good(f"host memory: {available} of {total} GiB available")
    import resource

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit not in (-1, resource.RLIM_INFINITY) and limit < _ENOUGH_MEMLOCK:
        found.note(
            f"locked memory is limited to {limit >> 10} KiB: if pinning fails, raise it (ulimit -l unlimited)"
        )


def _driver(found: Findings) -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        found.bad("no GPU driver found: libcuda.so.1 cannot be loaded")
        return None
    code = driver.cuInit(0)
    if code != 0:
        found.bad(f"the GPU driver cannot start: cuInit gives {code} ({_error_name(driver, code)})")
        return None
    version = _integer(driver, "cuDriverGetVersion")
    found.good(f"GPU driver for CUDA {version // 1000}.{version % 1000 // 10}")
    if _integer(driver, "cuDeviceGetCount") == 0:
        found.bad("the driver sees no GPU (CUDA_VISIBLE_DEVICES?)")
    return driver


def _device(found: Findings, driver: ctypes.CDLL, device: int) -> None:
    name, total = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGetName(name, 256, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    title = name.value.decode(errors="replace")
    capability = f"{_attribute(driver, device, _COMPUTE_MAJOR)}.{_attribute(driver, device, _COMPUTE_MINOR)}"
    found.good(
        f"GPU {device}: {title}, {total.value / (1 << 30):.1f} GiB, compute capability {capability}{_link(driver, device)}"
    )
    if "MIG" in title:
        found.note(
            f"GPU {device} is a MIG slice: its memory is the slice's, its link is shared with the other slices"
        )
    if re.search(r"GRID|-\d+[ABCQ]$", title):
        found.note(f"GPU {device} looks like a vGPU: page mapping may be switched off there")
    if _attribute(driver, device, _INTEGRATED):
        found.note(
            f"GPU {device} is integrated and has no memory but the host's: programs run there as without flextensor"
        )
        return
    if _attribute(driver, device, _VMM_SUPPORTED):
        found.good(f"GPU {device}: virtual memory management")
    else:
        found.bad(f"GPU {device} has no virtual memory management: no weight can be streamed on it")
    if not _attribute(driver, device, _CAN_USE_HOST_REGISTER):
        found.note(f"GPU {device} cannot register host memory: copies go through slower staging")
    if not _attribute(driver, device, _HOST_NUMA_VMM):
        found.note(f"GPU {device} cannot map host memory at a weight's address")
    try:
        found.good(f"GPU {device}: {_copy_speed(driver, device):.1f} GB/s from page-locked host memory")
    except OSError as error:
        found.bad(f"GPU {device}: a test copy failed: {error}")


def _link(driver: ctypes.CDLL, device: int) -> str:
    """What the system says about a device's PCI link, as a part of a sentence."""
    text = ctypes.create_string_buffer(32)
    if driver.cuDeviceGetPCIBusId(text, 32, device) != 0:
        return ""
    folder = Path("/sys/bus/pci/devices") / text.value.decode().lower()
    try:
        return f", PCI {(folder / 'current_link_speed').read_text().strip()} x{(folder / 'current_link_width').read_text().strip()}"
    except OSError:
        return ""


def _copy_speed(driver: ctypes.CDLL, device: int) -> float:
    """GB/s of host-to-device copies out of page-locked memory, the best of a few. OSError names the call
    that failed."""
    context, host, target = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    with _released() as cleanup:
        _checked(
            driver, driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain"
        )
        cleanup.append(lambda: driver.cuDevicePrimaryCtxRelease_v2(device))
        _checked(driver, driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        _checked(
            driver,
            driver.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(_COPY_BYTES), 0),
            "cuMemHostAlloc",
        )
        cleanup.append(lambda: driver.cuMemFreeHost(host))
        _checked(
            driver, driver.cuMemAlloc_v2(ctypes.byref(target), ctypes.c_size_t(_COPY_BYTES)), "cuMemAlloc"
        )
        cleanup.append(lambda: driver.cuMemFree_v2(target))
        best = float("inf")
        for _ in range(_COPIES):
            start = time.perf_counter()
            _checked(
                driver, driver.cuMemcpyHtoD_v2(target, host, ctypes.c_size_t(_COPY_BYTES)), "cuMemcpyHtoD"
            )
            _checked(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize")
            best = min(best, time.perf_counter() - start)
    return _COPY_BYTES / best / 1e9


class _released:
    """Runs what was appended, last first, at the end of a block."""

    def __enter__(self) -> list[Any]:
        self._actions: list[Any] = []
        return self._actions

    def __exit__(self, *_: object) -> None:
        for action in reversed(self._actions):
            action()


def _routes(found: Findings) -> None:
    try:
        result = launch.ask_child(_ROUTES_PROBE, launch.preloaded(dict(os.environ)), _PROBE_SECONDS)
    except launch.CannotPreload as error:
        found.bad(str(error))
        return
    try:
        answer = json.loads(result.stdout) if result.returncode == 0 else None
    except ValueError:
        answer = None
    if answer is None:
        said = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        found.bad(f"a preloaded child that starts the driver failed: {said[-1]}")
        return
    for text in _stage(answer.get("status")):
        found.bad(text)
    for route, works in ((answer.get("report") or {}).get("hooks") or {}).get("routes", {}).items():
        if works:
            found.good(route)
        elif works is None:
            found.note(f"{route} was not tested")
        else:
            found.bad(f"{route}: driver calls by this way pass us by")


def _programs(found: Findings) -> None:
    """Names running programs that use the GPU driver past us although they were started under us."""
    try:
        from flextensor import _native
    except ImportError:
        return
    options = frozenset(name for _, name, *_ in _native.option_table())
    without = [each for each in left_out.processes(options) if each.process != os.getpid()]
    if without:
        print("running programs")
    for each in without:
        preload = f"LD_PRELOAD={each.preload}" if each.preload else "no LD_PRELOAD"
        found.note(
            f"process {each.process} ({each.name}) uses the GPU driver without flextensor, although it was started under it: "
            f"it was given {preload}; set LD_PRELOAD={launch.library()} where it is started"
        )


def _stage(status: Any) -> Iterator[str]:
    """What is wrong with the interposer's stage, if anything (the low bits of ft_status)."""
    if not isinstance(status, int):
        return
    stage = status & 0xFF
    name = _STAGES[stage] if stage < len(_STAGES) else f"unknown ({stage})"
    if name != "active":
        yield f"the library did not become active in a child that started the driver: {name}"


def _integer(driver: ctypes.CDLL, function: str) -> int:
    value = ctypes.c_int()
    getattr(driver, function)(ctypes.byref(value))
    return value.value


def _attribute(driver: ctypes.CDLL, device: int, number: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _error_name(driver: ctypes.CDLL, code: int) -> str:
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    return (name.value or b"unknown error").decode()


def _checked(driver: ctypes.CDLL, code: int, call: str) -> None:
    if code != 0:
        raise OSError(f"{call} gives {code} ({_error_name(driver, code)})")
