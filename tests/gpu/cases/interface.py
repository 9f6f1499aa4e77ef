"""Programs that offload their models themselves. Without the library they run the same forwards with the model as it is."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from lab import FORWARDS, WIDTH, Lab, Stack, case
from torch import nn


def library() -> Path | None:
    """The library that is preloaded, or that the program is to load by offloading; None in a run without it."""
    preloaded = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    named = [os.environ["GPU_CASES_LIBRARY"]] if "GPU_CASES_LIBRARY" in os.environ else []
    return next((Path(name) for name in [*preloaded, *named] if "flextensor" in name), None)


def interface():
    """The package beside the library; None in a run without it."""
    if (path := library()) is None:
        return None
    if "flextensor" not in sys.modules:
        sys.path.insert(0, str(path.resolve().parents[1]))
    import flextensor

    return flextensor


def offloaded(model: nn.Module, name: str = "default", compile_fn=None, **options) -> nn.Module:
    """What the program calls instead of its model. The budget comes from the environment."""
    if (ft := interface()) is None:
        return model
    config = ft.OffloadConfig(**{"include_patterns": ["blocks.*"], **options})
    return ft.offload(model, config, name=name, compile_fn=compile_fn)


def forwards(lab: Lab, model: nn.Module, count: int = FORWARDS) -> Iterator[torch.Tensor]:
    for _ in range(count):
        with torch.no_grad():
            yield model(lab.randn(8, WIDTH))


def host_built(lab: Lab) -> nn.Module:
    """A model that lies on the CPU in the run with the library, and on the GPU without it: the same weights in both."""
    model = lab.build(Stack)
    return model.cpu() if interface() is not None else model


@case()
def interface_plain(lab: Lab):
    """A model built on the CPU is offloaded, learnt, and stays at its addresses from then on."""
    model = host_built(lab)
    proxy = offloaded(model)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    yield from forwards(lab, proxy)
    assert addresses == [parameter.data_ptr() for parameter in model.parameters()], "a weight has moved"
    if (ft := interface()) is not None:
        assert ft.get_offload_manager().phase.name == "INFERENCE"
        usage = ft.get_gpu_memory_usage()
        assert 0 < usage.blocks_bytes < usage.total_bytes, usage


@case()
def interface_release_and_again(lab: Lab):
    """Released after INFERENCE and offloaded again: the same bits as if nothing had happened."""
    model = host_built(lab)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(2):
        yield from forwards(lab, offloaded(model, profiling_iters=3), 8)
        if (ft := interface()) is not None:
            ft.release()
            assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.to(lab.device)


@case()
def interface_two_managers(lab: Lab):
    """Two models with managers and patterns of their own, in turns, with suspended warm-up forwards."""
    first, second = host_built(lab), host_built(lab)
    one = offloaded(first, "one", profiling_iters=3)
    two = offloaded(second, "two", profiling_iters=3, include_patterns=["class:Linear"])
    ft = interface()
    if ft is not None:
        ft.suspend_profiling("two")
    for index in range(FORWARDS):
        yield from forwards(lab, one, 1)
        yield from forwards(lab, two, 1)
        if index == 5 and ft is not None:
            assert ft.get_offload_manager("two").phase.name == "PROFILING"
            ft.resume_profiling("two")


@case(streams=None, because="compiled units may be captured in graphs, whose weights stay")
def interface_compiled(lab: Lab):
    """Each unit is compiled by itself when profiling begins; the run without the library compiles them as well."""
    lab.need_cuda()
    model = host_built(lab)

    def compile_fn(unit: nn.Module) -> nn.Module:
        return torch.compile(unit, fullgraph=True)

    if interface() is None:
        yield from forwards(lab, model, 1)
        for name, block in list(model.blocks.named_children()):
            model.blocks[int(name)] = compile_fn(block)
        yield from forwards(lab, model, FORWARDS + 3)
    else:
        yield from forwards(lab, offloaded(model, compile_fn=compile_fn), FORWARDS + 4)


# A quarter of both models: half of one.
@case(budget=0.25)
def interface_profile(lab: Lab):
    """A saved profile starts a second model of the same shape in INFERENCE, without learning."""
    ft = interface()
    with tempfile.TemporaryDirectory() as folder:
        model = host_built(lab)
        yield from forwards(lab, offloaded(model, profiling_iters=3), 6)
        if ft is not None:
            ft.save_profile(folder)
            ft.release()
            model.to("meta")
        again = host_built(lab)
        if ft is not None:
            again = ft.offload_from_profile(again, folder, ft.OffloadConfig(include_patterns=["blocks.*"]))
            assert ft.get_offload_manager().phase.name == "INFERENCE"
        yield from forwards(lab, again, 6)


@case()
def interface_timed(lab: Lab):
    """Times of units: as many passes as there were, and no more waiting than time."""
    proxy = offloaded(host_built(lab), profiling_iters=3, offload_timing="eager")
    yield from forwards(lab, proxy, 6)
    ft = interface()
    if ft is not None:
        ft.reset_offload_timing()
    yield from forwards(lab, proxy, 10)
    if ft is not None:
        report = ft.collect_offload_timing()
        assert report.num_passes == 10 and len(report.per_trap) == len(ft.offload_units())
        assert all(one.compute_min > 0 and one.wait_min >= 0 for one in report.per_trap)


def check_late() -> None:
    """After the first `offload()` of a program that was started without the library: it is there, and came late."""
    if interface() is not None:
        from flextensor import loading

        assert loading.came_late() and not os.environ.get("LD_PRELOAD"), "the library was preloaded"


@case(preload=False)
def interface_without_preload(lab: Lab):
    """A model that lies on the GPU and has run is taken over by `offload()`, which loads the library; views of its weights follow."""
    model = lab.build(Stack)
    view = model.blocks[1].up.weight.view(-1)[:64]
    # Runtimes, kernels and workspaces are all there before the library comes.
    yield from forwards(lab, model, 2)
    proxy = offloaded(model)
    check_late()
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    assert view.data_ptr() == model.blocks[1].up.weight.data_ptr(), "a view has lost its weight"
    yield from forwards(lab, proxy)
    yield view.clone()
    assert addresses == [parameter.data_ptr() for parameter in model.parameters()], "a weight has moved"
    if (ft := interface()) is not None:
        assert ft.get_offload_manager().phase.name == "INFERENCE"
        usage = ft.get_gpu_memory_usage()
        assert 0 < usage.blocks_bytes < usage.total_bytes, usage


@case(preload=False)
def interface_without_preload_from_cpu(lab: Lab):
    """A model on the CPU, in a program that has used the GPU before, with idle memory of torch's from then."""
    other = lab.build(lambda: Stack(2))
    yield from forwards(lab, other, 2)
    lab.models.remove(other)
    del other
    proxy = offloaded(host_built(lab))
    check_late()
    yield from forwards(lab, proxy)


class Seeing(nn.Module):
    """Convolutions in front of a stack: their library is loaded by the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.eyes = nn.ModuleList(nn.Conv2d(512, 2048, 3, padding=1) for _ in range(2))
        self.down = nn.Conv2d(2048, 512, 1)
        self.blocks = Stack(4).blocks
        self.widen = nn.Linear(512, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for eye in self.eyes:
            x = self.down(eye(x).relu())
        x = self.widen(x.flatten(2).mean(2))
        for block in self.blocks:
            x = block(x)
        return x


@case(preload=False)
def interface_without_preload_new_libraries(lab: Lab):
    """Libraries that come after ours: cuDNN's parts are loaded by the first convolution, which is in an offloaded model."""
    lab.need_cuda()
    model = lab.build(Seeing)
    proxy = offloaded(model, include_patterns=["eyes.*", "blocks.*"])
    check_late()
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield proxy(lab.randn(2, 512, 16, 16))


@case(
    preload=False,
    slow=True,
    streams=None,
    because="compiled units may be captured in graphs, whose weights stay",
)
def interface_without_preload_compiled(lab: Lab):
    """torch.compile's launcher has found the driver before the library comes; units are compiled afterwards."""
    lab.need_cuda()
    warm = torch.compile(lambda x: (x * 2 + 1).relu())
    yield warm(lab.randn(8, WIDTH))
    model = lab.build(Stack)

    def compile_fn(unit: nn.Module) -> nn.Module:
        return torch.compile(unit, fullgraph=True)

    if interface() is None:
        yield from forwards(lab, model, 1)
        for name, block in list(model.blocks.named_children()):
            model.blocks[int(name)] = compile_fn(block)
        yield from forwards(lab, model, FORWARDS + 3)
    else:
        proxy = offloaded(model, compile_fn=compile_fn)
        check_late()
        yield from forwards(lab, proxy, FORWARDS + 4)


@case()
def interface_feedback(lab: Lab):
    """Check 28: in every phase each forward reads what the last one gave, so that one wrong bit goes on to the end."""
    proxy = offloaded(host_built(lab), profiling_iters=4)
    x = lab.randn(8, WIDTH)
    for _ in range(FORWARDS):
        with torch.no_grad():
            x = proxy(x)
        yield x


class Tied(Stack):
    """A stack in which two layers far from each other have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[5].up.weight = self.blocks[1].up.weight


MODES = [
    ("allocation_block_transfer", "view"),
    ("allocation_block_transfer", "getter"),
    ("raw_block_transfer", "view"),
    ("strategy", "getter"),
    ("strategy", "torch_function"),
]


@case(limit_s=150)
def interface_modes(lab: Lab):
    """Check 29: all transfer and profile modes give the same bits, with bf16 and tied weights."""
    model = lab.build(Tied)
    ft = interface()
    if ft is not None:
        model.cpu()
    for transfer_mode, profile_mode in MODES:
        proxy = offloaded(model, profiling_iters=2, transfer_mode=transfer_mode, profile_mode=profile_mode)
        assert proxy.blocks[5].up.weight is proxy.blocks[1].up.weight
        yield from forwards(lab, proxy, 7)
        if ft is not None:
            assert ft.get_offload_manager().phase.name == "INFERENCE"
            # The last one stays, so that the report tells of it.
            if (transfer_mode, profile_mode) != MODES[-1]:
                ft.release()


@case(streams=None, keeps_budget=False, because="weights that a graph reads stay")
def interface_graph(lab: Lab):
    """Check 30: a graph that is captured in INFERENCE gives what eager forwards give, replay after replay."""
    lab.need_cuda()
    proxy = offloaded(host_built(lab), profiling_iters=3)
    yield from forwards(lab, proxy, 7)
    static = lab.randn(8, WIDTH)
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside), torch.no_grad():
        proxy(static)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        out = proxy(static)
    for _ in range(6):
        static.copy_(lab.randn(8, WIDTH))
        graph.replay()
        replayed = out.clone()
        with torch.no_grad():
            assert torch.equal(replayed, proxy(static)), "a replay differs from an eager forward"
        yield replayed
