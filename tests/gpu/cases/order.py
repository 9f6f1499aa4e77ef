"""Orders, shapes, streams and threads that differ from what was learnt, and ways of running a model that hide its modules."""

import resource
import threading

import torch
from lab import FORWARDS, STEADY, WIDTH, Block, Lab, Stack, case
from torch import nn


def forward(lab: Lab, model: nn.Module, *inputs, rows: int = 8) -> torch.Tensor:
    with torch.no_grad():
        return model(lab.randn(rows, WIDTH), *inputs)


@case()
def plain(lab: Lab):
    """The simplest program: the same forward again and again."""
    model = lab.build(Stack)
    x = lab.randn(8, WIDTH)
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(x)


def resident_bytes() -> int:
    """Host memory of this process that is in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@case()
def flat_memory(lab: Lab):
    """Sixty forwards of three shapes when the plan stands: host memory stays as it is."""
    model = lab.build(Stack)
    for index in range(STEADY + 20):
        yield forward(lab, model, rows=(8, 64, 200)[index % 3])
    lab.synchronize()
    before = resident_bytes()
    for index in range(60):
        output = forward(lab, model, rows=(8, 64, 200)[index % 3])
    lab.synchronize()
    yield output, resident_bytes() - before < 32 << 20


@case(budget=0.2)
def small_budget(lab: Lab):
    """A budget of one fifth: nearly everything is streamed."""
    model = lab.build(lambda: Stack(12))
    for _ in range(FORWARDS):
        yield forward(lab, model)


@case(budget=2.0, streams=None, because="the budget is larger than the model")
def large_budget(lab: Lab):
    """A budget of twice the model: everything stays, outputs as ever."""
    model = lab.build(Stack)
    for _ in range(FORWARDS):
        yield forward(lab, model)


@case()
def changing_shapes(lab: Lab):
    """Prefill of 512 rows, then single rows, then odd sizes: other kernels and other numbers of launches."""
    model = lab.build(Stack)
    for rows in (512, 1, 1, 1) * 4 + (512, 1, 37, 2048, 1, 512, 3, 1):
        yield forward(lab, model, rows=rows)


class Chosen(Stack):
    """Runs the blocks that it is told to, in that order."""

    def forward(self, x, order):
        for index in order:
            x = self.blocks[index](x)
        return self.norm(x)


@case()
def early_exit(lab: Lab):
    """Blocks skipped at random and passes that end early, from the first forward on."""
    model = lab.build(Chosen)
    for _ in range(FORWARDS + 6):
        last = lab.rng.randrange(1, 9)
        yield forward(lab, model, [index for index in range(last) if lab.rng.random() < 0.7])


@case()
def reversed_order(lab: Lab):
    """Learnt forwards, then now and then backwards, shuffled, or with one block run several times."""
    model = lab.build(Chosen)
    orders = [list(range(8))] * STEADY + [
        list(range(7, -1, -1)),
        list(range(8)),
        [3, 3, 3, 3, 0],
        lab.rng.sample(range(8), 8),
        list(range(8)),
    ]
    for order in orders * 2:
        yield forward(lab, model, order)


class Failing(Block):
    """Raises after its first weight was used, while `fails` is set."""

    fails = False

    def forward(self, x):
        wide = self.up(self.norm(x))
        if self.fails:
            raise ValueError("as asked")
        return x + self.down(nn.functional.gelu(wide))


@case()
def exception_in_forward(lab: Lab):
    """A forward that raises halfway leaves nothing held or half done."""
    model = lab.build(lambda: Stack(8, Failing))
    for index in range(FORWARDS):
        block = model.blocks[(index * 3) % 8]
        block.fails = index % 2 == 1
        try:
            yield forward(lab, model)
        except ValueError as error:
            yield str(error)
        block.fails = False
        yield forward(lab, model)


class Branches(nn.Module):
    """Two branches on two streams, and one shared block that both use at once."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (
            nn.ModuleList(Block() for _ in range(4)),
            nn.ModuleList(Block() for _ in range(4)),
        )
        self.shared = Block()

    def forward(self, x, side):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            right = x
            for block in self.right:
                right = self.shared(block(right))
        left = x
        for block in self.left:
            left = self.shared(block(left))
        main.wait_stream(side)
        x.record_stream(side)
        right.record_stream(main)
        return left + right


@case()
def two_streams(lab: Lab):
    """Work on two streams at once; one block's weights are read by both."""
    lab.need_cuda()
    model = lab.build(Branches)
    side = torch.cuda.Stream()
    for _ in range(FORWARDS):
        yield forward(lab, model, side, rows=64)


@case()
def waits_for_the_device(lab: Lab):
    """Behind a wait for the device all that the program submitted is over, on whatever stream: weights of the next pass are still on their way."""
    lab.need_cuda()
    model = lab.build(Stack)
    streams = torch.cuda.Stream(), torch.cuda.Stream(priority=-1), torch.cuda.default_stream()
    for _ in range(FORWARDS):
        y, ends = forward(lab, model), []
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                ends.append(stream.record_event())
        torch.cuda.synchronize()
        yield (y, *(end.query() for end in ends))


@case()
def two_models(lab: Lab):
    """Two models in one process, alternating and then not."""
    first, second = lab.build(Stack), lab.build(lambda: Stack(5))
    for index in range(FORWARDS + 4):
        yield forward(lab, first)
        if index % 3 != 2:
            yield forward(lab, second)
    for _ in range(4):
        yield forward(lab, second)
    yield forward(lab, first), forward(lab, second)


@case()
def shared_part(lab: Lab):
    """Two models that share half of their blocks, in turns, one of them after a write to a block of both."""
    first, second = lab.build(Stack), lab.build(lambda: Stack(4))
    second.blocks[0], second.blocks[1] = first.blocks[2], first.blocks[3]
    for index in range(FORWARDS + 4):
        yield forward(lab, first)
        if index % 4 == 3:
            first.blocks[2].up.weight.data.mul_(0.99)
        yield forward(lab, second)


@case(limit_s=120)
def threads(lab: Lab):
    """Two threads run one model at the same time, each on a stream of its own, also with different shapes."""
    lab.need_cuda()
    model = lab.build(Stack)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def work(stream, x, out):
        with torch.no_grad(), torch.cuda.stream(stream):
            out.append(model(x))
        stream.synchronize()

    for index in range(FORWARDS):
        inputs = [lab.randn(8, WIDTH), lab.randn(8 if index % 2 else 300, WIDTH)]
        torch.cuda.synchronize()
        outputs: list[list] = [[], []]
        workers = [
            threading.Thread(target=work, args=arguments)
            for arguments in zip(streams, inputs, outputs, strict=True)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        yield outputs[0][0], outputs[1][0]


class Lazy(Stack):
    """Its forward is a generator: one block a step, for as long as somebody asks."""

    def forward(self, x):
        return self.steps(x)

    def steps(self, x):
        for block in self.blocks:
            x = block(x)
            yield x


@case(
    streams=None,
    keeps_budget=False,
    because="the forward returns before its blocks run: what runs outside of forwards is right, and learnt as unused",
)
def generators(lab: Lab):
    """Forwards that are generators: run to their end, closed halfway, and two at a time."""
    model = lab.build(Lazy)
    for index in range(FORWARDS):
        with torch.no_grad():
            steps, others = model(lab.randn(8, WIDTH)), model(lab.randn(8, WIDTH))
            if index % 3 == 0:
                yield list(steps)[-1]
            elif index % 3 == 1:
                yield [next(steps) for _ in range(1 + index % 7)][-1]
                steps.close()
            else:
                yield [(next(steps), next(others)) for _ in range(5)][-1]


class Nested(nn.Module):
    """Calls itself, one level deeper each time; a block of its own on each level, and one that all share."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.shared = Block()

    def forward(self, x, level: int = 0):
        if level == len(self.blocks):
            return x
        return self.shared(self(self.blocks[level](x), level + 1))


@case()
def recursion(lab: Lab):
    """A module whose forward calls the module itself, to another depth now and then."""
    model = lab.build(Nested)
    for index in range(FORWARDS + 6):
        yield forward(lab, model, 3 if index % 6 == 5 else 0)


@case()
def gradient_of_input(lab: Lab):
    """Forwards with and without gradients; the backward pass reads the weights in reverse, outside any forward."""
    model = lab.build(Stack)
    for index in range(FORWARDS):
        x = lab.randn(8, WIDTH).requires_grad_(index % 3 != 0)
        if not x.requires_grad:
            with torch.no_grad():
                yield model(x)
            continue
        y = model(x)
        y.float().square().mean().backward()
        yield y.detach(), x.grad


@case(
    streams=None, keeps_budget=False, because="weights of a captured graph may stay resident in this version"
)
def cuda_graph(lab: Lab):
    """Captured after a warm-up, replayed with new inputs, mixed with eager forwards."""
    lab.need_cuda()
    model = lab.build(Stack)
    for _ in range(STEADY):
        yield forward(lab, model)
    x = lab.randn(8, WIDTH)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(aside):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x)
    for index in range(10):
        x.copy_(lab.randn(8, WIDTH))
        graph.replay()
        yield y.clone()
        if index % 3 == 2:
            yield forward(lab, model)


@case(
    streams=None,
    keeps_budget=False,
    limit_s=300,
    slow=True,
    because="compiled code hides its modules: its weights may stay resident",
)
def compiled(lab: Lab):
    """The whole model through torch.compile."""
    model = lab.build(Stack)
    fast = torch.compile(model)
    for _ in range(FORWARDS):
        yield forward(lab, fast)
    for _ in range(3):
        yield forward(lab, model)


@case(
    streams=None,
    keeps_budget=False,
    limit_s=300,
    slow=True,
    because="compiled code hides its modules: its weights may stay resident",
)
def compiled_blocks(lab: Lab):
    """Each block compiled in place, the model itself eager; a break of the graph inside none of them."""
    model = lab.build(Stack)
    for block in model.blocks:
        block.compile()
    for _ in range(FORWARDS):
        yield forward(lab, model)
