"""Programs that offload their models themselves. Without the library they run the same forwards with the model as it is."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from lab import FORWARDS, WIDTH, Lab, Stack, case
from torch import nn


def interface():
    """The package beside the preloaded library; None in a run without it."""
    libraries = [
        name for name in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if "flextensor" in name
    ]
    if not libraries:
        return None
    if "flextensor" not in sys.modules:
        sys.path.insert(0, str(Path(libraries[0]).resolve().parents[1]))
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
