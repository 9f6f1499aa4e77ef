"""What else lives in and beside the process: profilers, workers, children, queues."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.multiprocessing as multiprocessing
from lab import FORWARDS, STEADY, WIDTH, Lab, Stack, case

HERE = Path(__file__).resolve().parent


def forward(lab: Lab, model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(lab.randn(8, WIDTH))


@case(limit_s=120)
def profiled(lab: Lab):
    """torch.profiler around single forwards, while the model is learnt and when it is streamed."""
    lab.need_cuda()
    from torch.profiler import ProfilerActivity, profile

    model = lab.build(Stack)
    for index in range(FORWARDS):
        if index % 5:
            yield forward(lab, model)
            continue
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
            output = forward(lab, model)
            torch.cuda.synchronize()
        kernels = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        yield output, len(kernels) > 0


class Numbers(torch.utils.data.Dataset):
    """Rows that a worker makes."""

    def __len__(self) -> int:
        return FORWARDS * 8

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(at), dtype=torch.bfloat16)


def batches(**options):
    return torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, **options)


@case(limit_s=120)
def data_loader(lab: Lab):
    """Forked workers and pinned batches; the workers come when weights are streamed already, and again in each epoch."""
    lab.need_cuda()
    model = lab.build(Stack)
    for _ in range(STEADY):
        yield forward(lab, model)
    for _ in range(2):
        for at, batch in enumerate(batches(pin_memory=True)):
            with torch.no_grad():
                output = model(batch.to(lab.device, non_blocking=True))
            if at % 6 == 0:
                yield output


def double(inbox, outbox) -> None:
    """A child: doubles what comes, on its own GPU context, until None comes."""
    while (tensor := inbox.get()) is not None:
        outbox.put((tensor * 2).cpu())
        del tensor


@case(limit_s=150)
def spawned_worker(lab: Lab):
    """A spawned child that gets small CUDA tensors through a queue and answers on the CPU."""
    lab.need_cuda()
    model = lab.build(lambda: Stack(6))
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=double, args=(inbox, outbox), daemon=True)
    child.start()
    for index in range(FORWARDS):
        output = forward(lab, model)
        if index % 6 == 0:
            # The queue's file descriptors are one process's business at a time.
            inbox.put(output)
            yield output, outbox.get(timeout=100)
        else:
            yield output
    inbox.put(None)
    child.join(30)
    yield child.exitcode


@case(limit_s=150)
def forking_server(lab: Lab):
    """A server that forks two workers before it touches the GPU; each has a model of its own there."""
    lab.need_cuda()
    model = lab.build(lambda: Stack(4))
    yield forward(lab, model)
    program = [sys.executable, str(HERE.parent / "prefork.py")]
    told = subprocess.run(program, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    workers = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    answers = sorted((worker["worker"], worker["digest"]) for worker in workers)
    if not answers:
        raise RuntimeError(f"no worker answered: {told.stderr[-400:]}")
    yield told.returncode, answers
    for _ in range(FORWARDS):
        yield forward(lab, model)
