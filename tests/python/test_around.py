"""What stands around the forwards of an offloaded model's modules: it is no hook, goes with no copy, and gives way to compiled code."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from torch import nn  # noqa: E402


class Doubles(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]), requires_grad=False)

    def forward(self, x, *, plus=0):
        if x is None:
            raise KeyError("the program's")
        return x * self.weight + plus


class KeepsItsState(Doubles):
    """Pickles everything that it has."""

    def __getstate__(self):
        return vars(self).copy()


def told(module, name, said):
    """Stands around `module`; what happens is added to `said`."""
    from flextensor.around import stand_around

    return stand_around(
        module, lambda: said.append(f"into {name}"), lambda raised: said.append(f"out of {name}, {raised!r}")
    )


def test_a_pair_is_told_outside_of_hooks_and_of_what_stood_there_before():
    module, said = Doubles(), []
    module.register_forward_pre_hook(lambda *_: said.append("hook"))
    told(module, "inner", said)
    told(module, "outer", said)
    assert module(torch.ones(1), plus=1).item() == 3
    assert said == ["into outer", "into inner", "hook", "out of inner, None", "out of outer, None"]


def test_what_a_forward_raises_is_told_and_is_the_programs():
    module, said = Doubles(), []
    told(module, "it", said)
    with pytest.raises(KeyError, match="the program's"):
        module(None)
    assert said == ["into it", 'out of it, KeyError("the program\'s")']


def test_who_refuses_to_enter_is_not_left_and_the_forward_does_not_run():
    from flextensor.around import stand_around

    def refuses():
        raise RuntimeError("not now")

    module, said = Doubles(), []
    stand_around(module, refuses, lambda _: said.append("never"))
    told(module, "outer", said)
    with pytest.raises(RuntimeError, match="not now"):
        module(torch.ones(1))
    assert said == ["into outer", "out of outer, RuntimeError('not now')"]


def test_each_pair_goes_by_itself_and_nothing_is_left_behind():
    module, said = Doubles(), []
    before = dict(vars(module))
    inner, outer = told(module, "inner", said), told(module, "outer", said)
    inner.remove()
    module(torch.ones(1))
    assert said == ["into outer", "out of outer, None"]
    outer.remove()
    inner.remove()
    assert vars(module) == before


@pytest.mark.parametrize("kind", [Doubles, KeepsItsState])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_tells_nothing_and_computes_by_itself(kind, copied):
    module, said = kind(), []
    told(module, "it", said)
    other = copied(module)
    other.weight = nn.Parameter(torch.tensor([5.0]), requires_grad=False)
    assert other(torch.ones(1)).item() == 5 and module(torch.ones(1)).item() == 2
    assert said == ["into it", "out of it, None"]


def test_a_replica_that_takes_over_all_attributes_computes_with_its_own_weights():
    module, said = Doubles(), []
    told(module, "it", said)
    replica = module._replicate_for_data_parallel()
    replica.weight = torch.tensor([7.0])
    assert replica(torch.ones(1)).item() == 7 and module(torch.ones(1)).item() == 2


def test_a_module_that_is_compiled_meanwhile_keeps_its_compiled_code():
    from flextensor import naming

    module, said = Doubles(), []
    standing = told(module, "it", said)
    assert not naming.is_compiled(module)
    module.compile(backend="eager")
    compiled = module._compiled_call_impl
    standing.remove()
    assert module._compiled_call_impl is compiled and naming.is_compiled(module)
    assert module(torch.ones(1)).item() == 2 and said == []


def test_a_module_dies_with_its_last_reference():
    import weakref

    module = Doubles()
    told(module, "it", [])
    reference = weakref.ref(module)
    del module
    assert reference() is None


def test_compiled_modules_and_those_with_a_call_of_their_own_are_left_to_hooks():
    from flextensor.around import can_stand_around

    class Own(Doubles):
        def __call__(self, *arguments):
            return super().__call__(*arguments)

    compiled = Doubles()
    compiled.compile(backend="eager")
    assert can_stand_around(Doubles()) and not can_stand_around(Own()) and not can_stand_around(compiled)
