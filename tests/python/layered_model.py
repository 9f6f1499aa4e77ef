"""A small model of layers, a strategy, and its way through a TensorManager on the CPU: what tests of the class share."""

import itertools

import torch
from flextensor import TensorManager, strategy
from torch import nn

WIDTH = 256


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    """Four layers between an embedding and a head that shares its weight."""

    def __init__(self, layers=4):
        super().__init__()
        self.embed = nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1))


class AllButFirst:
    """Streams every layer but the first whole; remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
        self.asked.append((layer_stats, memory_stats, max_gpu_mem_bytes))
        pairs = itertools.pairwise(layer_stats)
        return strategy.StrategyResult({one.label: other.tensors for one, other in pairs if other.tensors})


def seeded():
    """The same weights every time."""
    torch.manual_seed(0)
    return Net().eval()


def manager(way=None, **options):
    options = {"pinned_memory": False, "include_patterns": ["layers.*"], **options}
    return TensorManager("cpu", way or AllButFirst(), **options)


def forward(tensor_manager, model, tokens=None):
    """One pass with a trap around each layer."""
    tokens = torch.zeros(1, 3, dtype=torch.long) if tokens is None else tokens
    with torch.no_grad():
        x = model.embed(tokens) * model.scale
        for at, layer in enumerate(model.layers):
            with tensor_manager.trap(f"layers.{at}"):
                x = layer(x)
        return model.head(x)


def learn(tensor_manager, model, passes=3):
    """All phases."""
    tensor_manager.set_model(model)
    assert tensor_manager.initialize_warmup() is model
    forward(tensor_manager, model)
    assert tensor_manager.initialize_profile() is model
    for _ in range(passes):
        forward(tensor_manager, model)
    assert tensor_manager.initialize_inference() is model
    return tensor_manager


def run(model):
    """The same pass without a manager, up to the head."""
    x = model.embed(torch.zeros(1, 3, dtype=torch.long))
    for layer in model.layers:
        x = layer(x)
    return x
