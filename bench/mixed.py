"""A Llama whose work changes between forwards: prefills of 4096 tokens, 200 decode steps on the cache of the last one, then batches of 1, 64 and 1.

Segments follow one another in one process; each step is timed by itself and its output hashed. A segment's `ms` is the median of its steps after the first
ten, the first segment's after those in which a library below may still learn: what is left is how the changed work runs, not the change itself. What
all measured programs share is left to `program.py`.
"""

import dataclasses
import hashlib
import time
from typing import ClassVar

import llama
import program

PROMPT, DECODE_STEPS = 4096, 200
# Steps after a change of shape that do not count, and those at the start of the process.
SETTLING, LEARNING = 10, 28


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps of one shape in a row; `kind`: prefill (fills a fresh cache), decode (extends it), plain (no cache)."""

    kind: str
    batch: int
    steps: int


class Mixed(program.Program):
    """Segments instead of cases; each follows the ones before it, so that all up to the last one named by --cases are run."""

    name = "mixed"
    cases: ClassVar[dict] = {
        "prefill4096": Segment("prefill", 1, 40),
        "decode200": Segment("decode", 1, DECODE_STEPS),
        "batch1": Segment("plain", 1, 24),
        "batch64": Segment("plain", 64, 24),
        "batch1again": Segment("plain", 1, 24),
    }
    layers = 16
    blocks = llama.Llama.blocks
    needs = llama.Llama.needs

    def add_options(self, parser):
        parser.add_argument(
            "--cache", choices=("dynamic", "static"), default="dynamic", help="class of the KV cache"
        )
        parser.add_argument("--decode-steps", type=int, default=DECODE_STEPS)

    def build(self, options):
        import torch

        # For one query on a cache that grows it is prepared anew at each length, and does not give the same bits twice.
        torch.backends.cuda.enable_cudnn_sdp(False)
        return llama.build_llama(options)

    def measure(self, model, options, passes):
        work = Work(model, options)
        wanted = list(self.cases)[: max(list(self.cases).index(case) for case in options.cases) + 1]
        for index, case in enumerate(wanted):
            segment = self.cases[case]
            steps = options.decode_steps if segment.kind == "decode" else segment.steps
            skipped = max(SETTLING, LEARNING, passes + program.LEAST_FORWARDS) if index == 0 else SETTLING
            run_segment(
                case,
                work.step(segment),
                options,
                max(steps, skipped + program.LEAST_FORWARDS),
                skipped,
                index == 0,
            )


class Work:
    """The forwards of all segments, with the cache that carries over from prefill to decode."""

    def __init__(self, model, options):
        self.model, self.options = model, options
        self.prompt = llama.TINY_TOKENS if options.tiny else PROMPT
        self.cache = self.next_token = None

    def tokens(self, batch: int, length: int):
        import torch

        return torch.randint(
            0,
            self.model.config.vocab_size,
            (batch, length),
            device=self.options.device,
            generator=program.seeded(self.options),
        )

    def fresh_cache(self):
        from transformers import DynamicCache, StaticCache

        config = self.model.config
        if self.options.cache == "dynamic":
            return DynamicCache(config=config)
        return StaticCache(
            config=config, max_cache_len=self.prompt + max(self.options.decode_steps, SETTLING) + 8
        )

    def step(self, segment: Segment):
        """A function that runs the segment's next forward and returns its logits."""
        if segment.kind == "decode":
            return lambda: self.advance(self.next_token)
        if segment.kind == "plain":
            tokens = self.tokens(segment.batch, 1)
            return lambda: self.model(input_ids=tokens, use_cache=False).logits
        prompt = self.tokens(segment.batch, self.prompt)

        def prefill():
            # The old one is let go first: two would be more memory than any one pass needs.
            self.cache = None
            self.cache = self.fresh_cache()
            return self.advance(prompt)

        return prefill

    def advance(self, tokens):
        """One forward on the cache; the likeliest token is the next step's input."""
        logits = self.model(
            input_ids=tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        ).logits
        self.next_token = logits[:, -1:].argmax(-1)
        return logits


def run_segment(case: str, forward, options, steps: int, skipped: int, first: bool) -> None:
    """Runs and prints one segment. `steps` digests let a comparison say which step is the first that differs."""
    meter = program.Meter(options.device)
    times, ended_s, digests, finite = [], [], [], True
    began = time.monotonic()
    for index in range(steps):
        if index == skipped:
            meter.reset_peak()
            began = time.monotonic()
        elif index >= skipped + program.LEAST_FORWARDS and program.spends(options, time.monotonic() - began):
            break
        output, ms = meter.timed(forward)
        times.append(ms)
        ended_s.append(meter.program_s())
        digests.append(meter.digest(output))
        finite = finite and bool(output.isfinite().all())
        del output
    program.say_case(
        case,
        meter,
        checked_ms=times[:skipped],
        ended_s=ended_s[:skipped],
        timed_ms=times[skipped:],
        timed_window=[began, time.monotonic()],
        first=first,
        digest=hashlib.sha256("".join(digests).encode()).hexdigest(),
        # Inputs differ from step to step, so that steps are compared with those of other runs, not with each other.
        agree=True,
        differing=[],
        step_digests=[digest[:16] for digest in digests],
        finite=finite,
    )


PROGRAM = Mixed()

if __name__ == "__main__":
    program.main(PROGRAM)
