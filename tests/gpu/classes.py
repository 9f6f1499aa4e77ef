"""The classes behind the manager on a GPU: pinning, measuring, TensorManager with a strategy of the program's own, a model straight from safetensors.

    flextensor run --max-gpu-mem 1GiB -- python tests/gpu/classes.py

Prints a line for each part, and exits 1 if one failed. What needs no GPU is tried by tests/python/test_api_*.py.
"""

import json
import sys
import tempfile
import traceback
from pathlib import Path

import flextensor
import torch
from flextensor.host_pinning import HostPinner, HostPinRegistry, is_available, make_host_pinner
from flextensor.memory_transfer_benchmark import copy_ms
from flextensor.strategy import StrategyResult
from torch import nn

GPU = torch.device("cuda", 0)
WIDTH, LAYERS = 4096, 24  # 64 MiB a layer in float32, 1.5 GiB in all
MIB = 1 << 20


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu() * self.scale
        return x


class EveryOther:
    """Streams layers 1, 3, 5 and so on."""

    def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
        odd = range(1, len(layer_stats), 2)
        return StrategyResult({layer_stats[at - 1].label: layer_stats[at].tensors for at in odd})


def forward(manager, model, x):
    with torch.no_grad():
        for at, layer in enumerate(model.layers):
            with manager.trap(f"layers.{at}"):
                x = layer(x).relu() * model.scale
    return x


def manager_for(way=None, **options):
    options = {"include_patterns": ["layers.*"], **options}
    return flextensor.TensorManager(GPU, way or EveryOther(), **options)


def pinning_in_place():
    assert is_available()
    registry = HostPinRegistry()
    tensor = torch.arange(64 * MIB, dtype=torch.uint8)
    for _ in range(2):
        assert registry.pin_in_place(tensor) is tensor and tensor.is_pinned()
        assert registry.pin_in_place(tensor[5:9]) is not None, "the storage is one"
        copied = tensor.to(GPU, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(copied.cpu(), tensor)
        assert registry.release(tensor.data_ptr()) and not tensor.is_pinned()
    assert make_host_pinner(True, "host_register").registry is not None


def copies_are_as_fast_as_the_link():
    pageable = torch.zeros(256 * MIB, dtype=torch.uint8)
    pinned = HostPinner().pin(pageable)
    slow, fast = copy_ms(pageable, GPU), copy_ms(pinned, GPU)
    print(f"    256 MiB: pageable {slow:.2f} ms, pinned {fast:.2f} ms")
    assert fast < slow


def a_strategy_of_the_programs_own():
    torch.manual_seed(0)
    model = Net().eval()
    x = torch.randn(8, WIDTH)
    expected = model.to(GPU)(x.to(GPU)).cpu()
    model = model.cpu()
    torch.cuda.empty_cache()
    manager = manager_for()
    manager.set_model(model)
    model = manager.initialize_warmup()
    x = x.to(GPU)
    outputs = [forward(manager, model, x)]
    manager.initialize_profile()
    outputs += [forward(manager, model, x) for _ in range(5)]
    model = manager.initialize_inference()
    for _ in range(50):
        outputs.append(forward(manager, model, x))
    assert all(torch.equal(output.cpu(), expected) for output in outputs)
    streamed = {
        unit["name"]
        for unit in flextensor.report()["placements"]
        if unit["streamed_bytes"] and "weight" in unit["name"]
    }
    print(f"    streamed: {sorted(streamed)}")
    assert streamed == {f"layers.{at}.weight" for at in range(1, LAYERS, 2)}
    usage = manager.get_gpu_memory_usage()
    print(f"    {usage.blocks_mb:.0f} MiB ring, {usage.unmapped_tensors_mb:.0f} MiB resident")
    with tempfile.TemporaryDirectory() as folder:
        manager.save_profile(folder)
        assert "flextensor" in json.loads((Path(folder) / "profile.json").read_text())
    manager.shutdown()
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert torch.equal(model.to(GPU)(x).cpu(), expected)


def adoption_moves_what_stays_to_the_gpu():
    torch.manual_seed(0)
    model = Net().eval()
    manager = manager_for()
    manager.set_model(model)
    model = manager.initialize_warmup()
    x = torch.randn(8, WIDTH, device=GPU)
    forward(manager, model, x)
    manager.initialize_profile()
    expected = forward(manager, model, x).cpu()
    manager.initialize_inference()
    state = manager.export_state()
    manager.shutdown()
    for mode in ("torch", "host_register"):
        other = manager_for(pinned_memory_mode=mode)
        plan = other.plan_state_adoption(model, state, host_reserve_bytes=0)
        other.execute_state_adoption(model, plan)
        assert model.layers[0].weight.is_cuda and not model.layers[1].weight.is_cuda
        assert model.layers[1].weight.is_pinned()
        other.restore_adopted_state(model, state)
        model = other.initialize_warmup()
        other.initialize_profile()
        other.initialize_inference()
        assert torch.equal(forward(other, model, x).cpu(), expected)
        other.shutdown()


def a_model_straight_from_safetensors():
    import safetensors.torch

    torch.manual_seed(0)
    model = Net().eval()
    with tempfile.TemporaryDirectory() as folder:
        safetensors.torch.save_file(model.state_dict(), f"{folder}/model.safetensors")
        manager = manager_for()
        manager.set_model(model)
        model = manager.initialize_warmup()
        x = torch.randn(8, WIDTH, device=GPU)
        forward(manager, model, x)
        manager.initialize_profile()
        expected = forward(manager, model, x).cpu()
        manager.initialize_inference()
        manager.save_profile(folder)
        manager.shutdown()
        del model
        other = manager_for()
        loaded = flextensor.load_model_from_profile(
            other, folder, Net, safetensor_path=f"{folder}/model.safetensors"
        )
        loaded = other.initialize_warmup()
        other.initialize_profile()
        other.initialize_inference()
        assert torch.equal(forward(other, loaded, x).cpu(), expected)
        other.shutdown()


def main():
    parts = [
        pinning_in_place,
        copies_are_as_fast_as_the_link,
        a_strategy_of_the_programs_own,
        adoption_moves_what_stays_to_the_gpu,
        a_model_straight_from_safetensors,
    ]
    failed = 0
    for part in parts:
        name = part.__name__.replace("_", " ")
        try:
            part()
            print(f"ok      {name}")
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
