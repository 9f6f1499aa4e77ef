"""Two GPUs: a model on each, one over both, copies and peer reads between them, and an all-reduce of two processes.

    python tests/gpu/two_gpus.py --lib libflextensor.so

Each part runs in a process of its own, natively and under the library, and every output must be the same to the bit. Parts run at the same time. Prints a line for
each; exit code 1 if one failed. Needs two GPUs, and about 2 GiB on each of them for a part.
"""

import argparse
import hashlib
import json
import os
import socket
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "bench")]

import child  # noqa: E402
import judging  # noqa: E402

MIB = 1 << 20
FORWARDS = 18
# Of each GPU's weights in each part.
BUDGET = 90 * MIB


def say(event: str = "output", **values) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def digest(*tensors) -> str:
    import torch

    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()


def stack(device: str, blocks: int, seed: int):
    """Blocks of 24 MiB on a device, with the same weights in every process."""
    import lab as room
    import torch

    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = room.Stack(blocks)
    finally:
        torch.set_default_dtype(before)
    return model.to(device).eval().requires_grad_(False)


def inputs(seed: int, rows: int = 8):
    import lab as room
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, room.WIDTH, generator=generator, dtype=torch.float32).bfloat16()


def a_model_on_each():
    """Two models, one for each GPU, in turns and in two threads."""
    import torch

    models = [stack(f"cuda:{at}", 6, at) for at in range(2)]

    def run(at: int, seed: int, into: dict) -> None:
        with torch.no_grad(), torch.cuda.device(at):
            into[at] = models[at](inputs(seed).to(f"cuda:{at}"))

    for index in range(FORWARDS):
        outputs: dict = {}
        if index % 3 == 2:
            threads = [threading.Thread(target=run, args=(at, index, outputs)) for at in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            for at in range(2):
                run(at, index, outputs)
        say(digest=digest(outputs[0], outputs[1]))
    return models


def a_model_over_both():
    """One module whose first half lies on GPU 0 and whose second half lies on GPU 1."""
    import torch
    from torch import nn

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = stack("cuda:0", 6, 0), stack("cuda:1", 6, 1)

        def forward(self, x):
            return self.second(self.first(x).to("cuda:1"))

    model = Halves()
    for index in range(FORWARDS):
        with torch.no_grad():
            say(digest=digest(model(inputs(index, 8 if index % 4 else 2000).to("cuda:0"))))
    return model


def copies_and_peers():
    """Weights and large tensors copied between the GPUs, plain and strided, by torch and by a kernel that reads the other GPU's memory."""
    import torch

    model = stack("cuda:0", 6, 0)
    say(peers=int(torch.cuda.can_device_access_peer(0, 1)), digest="")
    for index in range(FORWARDS):
        with torch.no_grad():
            output = model(inputs(index).to("cuda:0"))
        weight = model.blocks[index % 6].up.weight
        there = weight.to("cuda:1")
        # Rows with holes are copied by a kernel where one GPU reaches the other, through a buffer where not.
        holes = torch.empty(2048, 4096, dtype=torch.bfloat16, device="cuda:1")[:, ::2]
        holes.copy_(weight.new_full((2048, 2048), float(index)))
        back = there.to("cuda:0")
        large = inputs(index, 6000).to("cuda:0")
        assert torch.equal(back, weight), "a copy there and back is another one"
        say(digest=digest(output, there, holes, large.to("cuda:1"), large.to("cuda:1").to("cuda:0")))
    return model


def all_reduce():
    """Two processes of torchrun, a model in each, and an all-reduce of outputs, of a large tensor and of a weight."""
    import torch
    import torch.distributed as distributed

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl")
    model = stack(f"cuda:{rank}", 6, rank)
    for index in range(FORWARDS):
        with torch.no_grad():
            output = model(inputs(index + 100 * rank).to(f"cuda:{rank}"))
            distributed.all_reduce(output)
            large = inputs(index + 100 * rank, 6000).to(f"cuda:{rank}")
            distributed.all_reduce(large)
            weight = model.blocks[index % 6].down.weight
            gathered = [torch.empty_like(weight) for _ in range(2)]
            distributed.all_gather(gathered, weight)
            if index == FORWARDS - 3:
                distributed.broadcast(weight, 0)
        if rank == 0:
            say(digest=digest(output, large, *gathered))
    distributed.barrier()
    distributed.destroy_process_group()
    return model


def run_part(name: str) -> None:
    """Runs one part in this process, and says what was streamed while its models are still there."""
    import lab as room
    import program

    room.settle()
    kept = PARTS[name]()
    if (report := program.own_report()) is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        say("streamed", bytes=[plan.get("streamed_bytes", 0) for plan in report.get("plans") or []])
    del kept


PARTS = {part.__name__: part for part in (a_model_on_each, a_model_over_both, copies_and_peers, all_reduce)}


def command(name: str) -> list[str]:
    program = [str(Path(__file__).resolve()), "--part", name]
    if name != "all_reduce":
        return [sys.executable, *program]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    return [sys.executable, *torchrun, *program]


def judge(name: str, native: child.Outcome, ours: child.Outcome) -> str:
    """What is wrong, or nothing."""
    wrong = judging.wrong_outputs(native, ours)
    streamed = [count for line in ours.events("streamed") for count in line["bytes"]]
    wanted = 2 if name.startswith("a_model") else 1
    if sum(count > 0 for count in streamed) < wanted:
        wrong.append(f"streamed, by GPU: {streamed}; wanted on {wanted}")
    return "; ".join(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path)
    parser.add_argument("--part", choices=sorted(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=sorted(PARTS), action="append")
    parser.add_argument("--limit", type=float, default=80, help="seconds for each run of a part")
    options = parser.parse_args()
    if options.part:
        run_part(options.part)
        return 0
    if options.lib is None or not options.lib.is_file():
        parser.error(f"--lib {options.lib}: not a file")
    names = options.only or list(PARTS)
    outcomes: dict[tuple[str, bool], child.Outcome] = {}
    extra = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

    def run(name: str, ours: bool) -> None:
        settings = {"FT_MAX_GPU_MEM": str(BUDGET)}
        env = child.environment(options.lib if ours else None, settings, extra)
        outcomes[name, ours] = child.run(command(name), limit_s=options.limit, env=env)

    threads = [threading.Thread(target=run, args=(name, ours)) for name in names for ours in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = 0
    for name in names:
        native, ours = outcomes[name, False], outcomes[name, True]
        wrong = judge(name, native, ours)
        failed += bool(wrong)
        judging.tell(name, native, ours, "", wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
