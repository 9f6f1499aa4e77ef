"""What programs do to their weights between forwards: write, read, replace, move, copy, free."""

import copy
import gc
import io

import torch
import torch.nn.functional as F
from lab import FORWARDS, INNER, STEADY, WIDTH, Block, Lab, Stack, case
from torch import nn


def forward(lab: Lab, model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(lab.randn(8, WIDTH))


def warm(lab: Lab, model: nn.Module):
    """Forwards until the plan stands."""
    for _ in range(STEADY):
        yield forward(lab, model)


@case()
def update_in_place(lab: Lab):
    """add_, copy_, addmm_ (a LoRA merge), fill of a slice and a foreach update; each forward must see the newest bytes."""
    model = lab.build(Stack)
    for index in range(FORWARDS + 6):
        yield forward(lab, model)
        block = model.blocks[index % 8]
        with torch.no_grad():
            if index % 5 == 0:
                block.up.weight.add_(lab.randn(INNER, WIDTH) * 0.01)
            elif index % 5 == 1:
                block.down.weight.copy_(lab.randn(WIDTH, INNER) * 0.03)
            elif index % 5 == 2:
                block.up.weight.addmm_(lab.randn(INNER, 16) * 0.05, lab.randn(16, WIDTH) * 0.05)
            elif index % 5 == 3:
                block.down.weight[100:300].mul_(0.5)
            else:
                torch._foreach_mul_([other.up.weight for other in model.blocks], 0.99)


@case()
def load_state_dict(lab: Lab):
    """New values copied from host memory into weights that are being streamed."""
    model = lab.build(Stack)
    yield from warm(lab, model)
    for round_number in range(3):
        fresh = {
            name: (value.cpu() * (0.9 + 0.02 * round_number)).pin_memory() if lab.cuda else value * 0.9
            for name, value in model.state_dict().items()
        }
        yield forward(lab, model)
        model.load_state_dict(fresh)
        del fresh
        yield forward(lab, model)
        yield forward(lab, model)


@case()
def read_outside(lab: Lab):
    """Weights read by no module's forward: reductions, slices, .cpu(), state_dict, torch.save; addresses stay."""
    model = lab.build(Stack)
    before = {name: value.cpu() for name, value in model.state_dict().items()}
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    for index in range(FORWARDS):
        yield forward(lab, model)
        weight = model.blocks[index % 8].up.weight
        yield weight.float().sum(), weight[7:19], torch.cat([weight[0], weight[-1]]), weight.amax(1)
        yield model.blocks[(3 * index + 1) % 8].down.weight.cpu()
    everything = model.state_dict()
    yield all(torch.equal(everything[name].cpu(), before[name]) for name in before)
    yield all(torch.equal(everything[name], before[name].to(lab.device)) for name in before)
    stored = io.BytesIO()
    torch.save(everything, stored)
    stored.seek(0)
    loaded = torch.load(stored, map_location="cpu")
    yield all(torch.equal(loaded[name], before[name]) for name in before)
    yield [parameter.data_ptr() for parameter in model.parameters()] == addresses
    yield forward(lab, model)


@case()
def used_without_module(lab: Lab):
    """Weights passed to functions directly, submodules called on their own, slices of a weight as operands."""
    model = lab.build(Stack)
    yield from warm(lab, model)
    for index in range(8):
        x = lab.randn(8, WIDTH)
        block, other = model.blocks[index], model.blocks[(index + 5) % 8]
        with torch.no_grad():
            yield block(x), model.blocks[2](x), other.up(x)
            yield F.linear(x, other.up.weight[: INNER // 2]), x @ block.down.weight[:, :WIDTH]
            yield F.linear(x, block.up.weight + other.up.weight)
        yield forward(lab, model)


@case()
def replace_weights(lab: Lab):
    """Weights dropped and made anew; torch hands the old memory to activations, which must not be overwritten by streaming."""
    model = lab.build(Stack)
    yield from warm(lab, model)
    for index in range(6):
        block = model.blocks[(index * 3) % 8]
        del block.up.weight
        scratch = lab.randn(INNER, WIDTH)
        kept = scratch.clone()
        block.up.weight = nn.Parameter(lab.randn(INNER, WIDTH) * 0.03, requires_grad=False)
        block.down.weight.data = lab.randn(WIDTH, INNER) * 0.03
        yield forward(lab, model)
        scratch.mul_(2)
        yield forward(lab, model)
        yield scratch.float().sum(), torch.equal(scratch, kept * 2)
        if index == 3:
            del scratch, kept
            gc.collect()
            if lab.cuda:
                torch.cuda.empty_cache()
            yield forward(lab, model)
    for _ in range(4):
        yield forward(lab, model)


@case(budget=0.6)
def drop_model(lab: Lab):
    """A second model is deleted while the first goes on; its memory comes back as activations."""
    model = lab.build(Stack)
    second = lab.build(lambda: Stack(4))
    for _ in range(STEADY):
        yield forward(lab, model), forward(lab, second)
    lab.models.remove(second)
    del second
    gc.collect()
    held = []
    for _ in range(8):
        held.append(lab.randn(INNER, WIDTH))
        yield forward(lab, model)
    yield [tensor.float().sum() for tensor in held]


@case()
def to_cpu_and_back(lab: Lab):
    """model.to("cpu") and back: the bytes on the host are right, and the new weights stream again."""
    model = lab.build(Stack)
    yield from warm(lab, model)
    model.to("cpu")
    if lab.cuda:
        torch.cuda.empty_cache()
    yield [parameter for parameter in model.parameters()]
    model.to(lab.device)
    for _ in range(FORWARDS):
        yield forward(lab, model)


class Convolutions(nn.Module):
    """Convolutions of 9 MiB and more, so that a change of the memory format moves all weights."""

    def __init__(self, layers: int = 6, channels: int = 1024) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = x + 0.1 * block(x).tanh()
        return x


@case(streams=None, because="weights that changed their format are named anew, and learnt again")
def memory_format(lab: Lab):
    """A model that is moved to where it is already, and then to channels_last, when the plan stands."""
    model = lab.build(Convolutions)

    def run():
        with torch.no_grad():
            return model(lab.randn(1, 1024, 16, 16))

    for _ in range(STEADY):
        yield run()
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    model.to(lab.device)
    yield run(), [parameter.data_ptr() for parameter in model.parameters()] == addresses
    model.to(memory_format=torch.channels_last)
    for _ in range(FORWARDS):
        yield run()


@case(budget=0.5)
def deep_copy(lab: Lab):
    """deepcopy of a model whose weights are being streamed; the copy lives its own life."""
    model = lab.build(Stack)
    yield from warm(lab, model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.blocks[3].up.weight.mul_(0.5)
    for _ in range(STEADY):
        x = lab.randn(8, WIDTH)
        with torch.no_grad():
            yield model(x), twin(x)


@case(budget=0.6, streams=None, because="weights that an optimizer writes in every step may stay resident")
def train_steps(lab: Lab):
    """Gradients for the weights and a fused-list optimizer: weights are read backwards and written outside any forward."""
    model = lab.build(lambda: Stack(5))
    model.train().requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    for _ in range(FORWARDS):
        loss = model(lab.randn(8, WIDTH)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach(), model.blocks[2].up.weight.detach()
    model.eval().requires_grad_(False)
    yield forward(lab, model)


@case()
def in_all_modes(lab: Lab):
    """One model without gradients, in inference mode, and with gradients of its input, in turns."""
    model = lab.build(Stack)
    for index in range(FORWARDS + 6):
        x = lab.randn(8, WIDTH)
        if index % 3 == 0:
            with torch.inference_mode():
                yield model(x).clone()
        elif index % 3 == 1:
            with torch.no_grad():
                yield model(x)
        else:
            x.requires_grad_(True)
            model(x).float().sum().backward()
            yield x.grad


@case(streams=None, because="modules that come late are resident until the model is named anew")
def late_modules(lab: Lab):
    """Blocks that are put in when the plan stands, and one that is taken out."""
    model = lab.build(lambda: Stack(6))
    yield from warm(lab, model)
    late = lab.build(Block)
    model.blocks.append(late)
    for _ in range(3):
        yield forward(lab, model)
    del model.blocks[2]
    for _ in range(3):
        yield forward(lab, model)
    model.blocks[0].up = lab.build(lambda: nn.Linear(WIDTH, INNER))
    for _ in range(FORWARDS):
        yield forward(lab, model)


class WithEmpty(Stack):
    """Has a parameter and a buffer of no elements."""

    def __init__(self) -> None:
        super().__init__(6)
        self.nothing = nn.Parameter(torch.empty(0, WIDTH))
        self.register_buffer("none", torch.empty(0))

    def forward(self, x):
        return super().forward(torch.cat([x, self.nothing]))


@case()
def empty_tensors(lab: Lab):
    """A parameter and a buffer without an element."""
    model = lab.build(WithEmpty)
    for _ in range(FORWARDS):
        yield forward(lab, model)
