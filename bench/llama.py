"""A transformers Llama with random weights: the measured program, which knows of nothing that runs beneath it.

Builds a `LlamaForCausalLM` (70B layer shape, bf16, seeded Gaussian weights), runs each case, and prints JSON lines: one "built", one "case" for each
case, one "end". A case is two loops over the same input: a checked one, where the raw bytes of every forward's logits are hashed, and a timed one,
back to back as a serving loop would be. Comparing runs, and every figure that needs more than one process, is left to `run.py`.
"""

import argparse
import gc
import hashlib
import json
import os
import statistics
import time

# Parts of a weight are drawn one after the other, so that both builds draw the same numbers and neither needs a second copy on the GPU.
DRAW_ELEMENTS = 1 << 26
WEIGHT_SCALE = 0.01
CASES = {"prefill4096": (1, 4096), "batch64": (64, 1), "decode1": (1, 1)}
# A forward counts as steady when it takes at most this multiple of the timed median.
STEADY = 1.2


def since_process_start() -> float:
    """Seconds since the kernel started this process (10 ms resolution)."""
    with open("/proc/self/stat") as file:
        started_ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def host_bytes() -> dict[str, int]:
    """This process's resident, peak resident and locked host bytes, from the kernel."""
    names = {
        "VmRSS": "rss_bytes",
        "VmHWM": "rss_peak_bytes",
        "VmLck": "locked_bytes",
        "VmPin": "pinned_bytes",
    }
    found = {}
    with open("/proc/self/status") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key in names:
                found[names[key]] = int(value.split()[0]) * 1024
    return found


def say(event: str, **values) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--build",
        choices=("gpu", "cpu"),
        default="gpu",
        help="where the weights are made; cpu: made there, then model.to(device)",
    )
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--forwards", type=int, default=20, help="checked forwards of each case")
    parser.add_argument("--timed", type=int, default=12, help="timed forwards of each case")
    parser.add_argument(
        "--cases", default=",".join(CASES), help=f"comma separated, in order: {', '.join(CASES)}"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a very small shape, to try the script itself")
    options = parser.parse_args()
    options.cases = [name.strip() for name in options.cases.split(",") if name.strip()]
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; allowed: {', '.join(CASES)}")
    if options.layers < 1 or options.forwards < 1 or options.timed < 1:
        parser.error("--layers, --forwards and --timed must be at least 1")
    return options


def shape(options: argparse.Namespace):
    from transformers import LlamaConfig

    size = dict(
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=32000,
    )
    if options.tiny:
        size = dict(
            hidden_size=256,
            intermediate_size=512,
            num_attention_heads=8,
            num_key_value_heads=2,
            vocab_size=512,
        )
    return LlamaConfig(num_hidden_layers=options.layers, max_position_embeddings=8192, **size)


def build(options: argparse.Namespace):
    """The model on its device, its weights the same to the bit for both values of --build."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = shape(options)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    on_device = options.build == "gpu"
    model = model.to_empty(device=options.device if on_device else "cpu").eval().requires_grad_(False)
    # Its buffers are computed, not drawn, and to_empty() left them without values.
    model.model.rotary_emb = LlamaRotaryEmbedding(config=config)
    generator = torch.Generator(device=options.device).manual_seed(1)
    draw = None if on_device else torch.empty(DRAW_ELEMENTS, dtype=torch.bfloat16, device=options.device)
    for parameter in model.parameters():
        if parameter.dim() < 2:
            parameter.fill_(1.0)
            continue
        flat = parameter.view(-1)
        for part in flat.split(DRAW_ELEMENTS):
            if on_device:
                part.normal_(0.0, WEIGHT_SCALE, generator=generator)
            else:
                part.copy_(draw[: part.numel()].normal_(0.0, WEIGHT_SCALE, generator=generator))
    del draw
    model = model.to(options.device)
    if options.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    gc.collect()
    return model


class Meter:
    """Times forwards of one case and hashes their outputs."""

    def __init__(self, model, options: argparse.Namespace, case: str):
        import torch

        self.torch, self.model = torch, model
        self.cuda = options.device == "cuda"
        batch, length = CASES[case]
        if options.tiny:
            length = min(length, 64)
        generator = torch.Generator(device=options.device).manual_seed(7)
        self.tokens = torch.randint(
            0, model.config.vocab_size, (batch, length), device=options.device, generator=generator
        )
        # Reused, so that checking neither grows the process nor pays for fresh pages.
        self.landing = None

    def synchronize(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def forward(self):
        """One forward: its logits and its milliseconds between two synchronisations."""
        self.synchronize()
        began = time.perf_counter()
        logits = self.model(input_ids=self.tokens, use_cache=False).logits
        self.synchronize()
        return logits, (time.perf_counter() - began) * 1e3

    def digest(self, logits) -> str:
        """SHA-256 of the logits' raw bytes: equal digests are what torch.equal would say across processes (and stricter for NaN and -0)."""
        raw = logits.contiguous().view(self.torch.uint8).reshape(-1)
        if self.landing is None:
            self.landing = self.torch.empty(raw.numel(), dtype=self.torch.uint8)
        self.landing.copy_(raw)
        return hashlib.sha256(memoryview(self.landing.numpy())).hexdigest()


def run_case(model, options: argparse.Namespace, case: str, first: bool) -> None:
    """Prints one "case" line. Only the process's first case can say when forwards became steady."""
    import torch

    meter = Meter(model, options, case)
    if meter.cuda:
        torch.cuda.reset_peak_memory_stats()
    checked_ms, digests, ended_s, hashing_s = [], [], [], 0.0
    for _ in range(options.forwards):
        logits, ms = meter.forward()
        checked_ms.append(ms)
        # The seconds spent on hashing are the measurement's, not the program's.
        ended_s.append(since_process_start() - hashing_s)
        began = time.perf_counter()
        digests.append(meter.digest(logits))
        hashing_s += time.perf_counter() - began
        del logits
    timed_began = time.monotonic()
    timed_ms = []
    for _ in range(options.timed):
        logits, ms = meter.forward()
        timed_ms.append(ms)
    timed_ended = time.monotonic()
    digests.append(meter.digest(logits))
    finite = bool(torch.isfinite(logits).all())
    del logits
    median = statistics.median(timed_ms)
    steady = next((index for index, ms in enumerate(checked_ms) if ms <= STEADY * median), None)
    values = dict(
        case=case,
        ms=round(median, 3),
        min_ms=round(min(timed_ms), 3),
        first_ms=round(checked_ms[0], 3),
        checked_ms=[round(ms, 3) for ms in checked_ms],
        timed_ms=[round(ms, 3) for ms in timed_ms],
        # Of every forward, the last timed one included.
        digest=digests[0],
        agree=len(set(digests)) == 1,
        differing=[index for index, digest in enumerate(digests) if digest != digests[0]],
        finite=finite,
        steady_forward=steady,
        first_steady_s=round(ended_s[steady], 2) if first and steady is not None else None,
        timed_window=[timed_began, timed_ended],
        **host_bytes(),
    )
    if meter.cuda:
        free, total = torch.cuda.mem_get_info()
        values.update(
            device_used_bytes=total - free,
            torch_peak_bytes=torch.cuda.max_memory_allocated(),
            torch_reserved_bytes=torch.cuda.memory_reserved(),
        )
    say("case", **values)


def main() -> None:
    options = arguments()
    import torch

    imported_s = since_process_start()
    torch.manual_seed(0)
    with torch.no_grad():
        model = build(options)
        weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        say(
            "built",
            build=options.build,
            layers=options.layers,
            weights_bytes=weights,
            imported_s=round(imported_s, 2),
            built_s=round(since_process_start(), 2),
            **host_bytes(),
        )
        for index, case in enumerate(options.cases):
            run_case(model, options, case, first=index == 0)
    say("end", wall_s=round(since_process_start(), 2))


if __name__ == "__main__":
    main()
