"""What a program under test prints: JSON lines with digests of its outputs, and the run report of a library in its process, if one keeps any.

Reading these lines and judging them is left to `run.py`; nothing here switches a library on or off.
"""

import ctypes
import hashlib
import json

import torch

REPORT_BYTES = 1 << 20


def say(event: str, **values) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def flatten(value) -> list:
    """Tensors and plain values of one output, in order."""
    if isinstance(value, (tuple, list)):
        return [part for item in value for part in flatten(item)]
    return [value]


def describe(output) -> dict:
    """The digest of an output's raw bytes with types and shapes, its plain values, and whether its numbers are finite and not all zero."""
    digest, plain, finite, lively = hashlib.sha256(), [], True, False
    for part in flatten(output):
        if not isinstance(part, torch.Tensor):
            plain.append(part)
            digest.update(repr(part).encode())
            lively = True
            continue
        host = part.detach().cpu().contiguous()
        digest.update(f"{host.dtype}{tuple(host.shape)}".encode())
        digest.update(host.reshape(-1).view(torch.uint8).numpy())
        if host.is_floating_point():
            finite = finite and bool(torch.isfinite(host).all())
        lively = lively or bool(host.any())
    return {"digest": digest.hexdigest(), "plain": plain, "finite": finite, "lively": lively}


def own_report() -> dict | None:
    """The report of a library in this process that keeps one."""
    try:
        function = ctypes.CDLL(None).ft_report_json
    except AttributeError:
        return None
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_char_p, ctypes.c_size_t]
    size = REPORT_BYTES
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = function(buffer, size)
        if length < 0:
            return None
        if length < size:
            try:
                return json.loads(buffer.value)
            except ValueError:
                return None
        size = length + 1
