"""Host pinning and the benchmark modes, with a stand-in for the CUDA runtime: no GPU is needed."""

import logging
import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")

from flextensor import BenchmarkReplace, PinnedMemoryMode, PreloadToDevice, TensorBenchmarkMode, host_pinning  # noqa: E402
from flextensor.collectors import LayerStatistics, TensorStatistics  # noqa: E402
from flextensor.host_pinning import (  # noqa: E402
    HostPinner,
    HostPinRegistry,
    NoOpHostPinner,
    is_available,
    make_host_pinner,
)
from flextensor.memory_transfer_benchmark import benchmark_memory_transfers, sizes_to_measure  # noqa: E402

CPU = torch.device("cpu")


class Cudart:
    """Records registrations; `refuse` makes calls fail with that code."""

    def __init__(self):
        self.registered = {}
        self.calls = []
        self.refuse = 0

    def cudaHostRegister(self, address, nbytes, flags):
        self.calls.append(("register", address, nbytes, flags))
        assert address not in self.registered, "registered twice"
        if not self.refuse:
            self.registered[address] = nbytes
        return self.refuse

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        if not self.refuse:
            del self.registered[address]
        return self.refuse


@pytest.fixture
def cudart(monkeypatch):
    """A GPU, as far as host pinning asks for one."""
    runtime = Cudart()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return runtime


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_a_tensor_and_its_views_are_one_registration_with_the_first_size(cudart):
    registry = HostPinRegistry()
    whole = torch.zeros(64)
    view = whole[8:16]
    assert registry.pin_in_place(view) is view
    assert registry.pin_in_place(whole) is whole
    assert cudart.calls == [("register", address(whole), 256, 1)], "the whole storage, portable, once"
    assert registry.is_registered(address(view))


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(0), torch.empty(4, device="meta"), torch.nn.Parameter(torch.empty(0, 3))],
    ids=["empty", "meta", "no elements"],
)
def test_tensors_without_host_memory_are_left_alone(cudart, tensor):
    assert HostPinRegistry().pin_in_place(tensor) is tensor
    assert HostPinner().pin(tensor) is tensor
    assert cudart.calls == []


def test_what_is_pinned_already_is_not_pinned_again(cudart, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    tensor = torch.zeros(4)
    assert HostPinRegistry().pin_in_place(tensor) is tensor
    assert HostPinner().pin(tensor) is tensor
    assert cudart.calls == []


def test_the_registry_keeps_memory_alive_until_it_is_released(cudart):
    registry = HostPinRegistry()
    where = address(registry.pin_in_place(torch.zeros(1 << 16)))
    assert address(torch.zeros(1 << 16)) != where, "the memory is still taken"
    assert registry.release(where)
    assert not registry.is_registered(where)
    assert not registry.release(where), "nothing is tracked there any more"


def test_a_failed_release_says_so_and_can_be_tried_again(cudart, caplog, monkeypatch):
    registry = HostPinRegistry()
    first, second = torch.zeros(4), torch.zeros(4)
    registry.pin_in_place(first)
    registry.pin_in_place(second)
    cudart.refuse = 713
    with caplog.at_level(logging.WARNING, "flextensor"):
        assert not registry.release(address(first))
        registry.release_all()
    assert [
        f"{address(tensor):#x}" in caplog.text and "713" in caplog.text for tensor in (first, second)
    ] == [
        True,
        True,
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    caplog.clear()
    assert not registry.release(address(first))
    registry.release_all()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert registry.is_registered(address(first)) and registry.is_registered(address(second))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cudart.refuse = 0
    registry.release_all()
    assert cudart.registered == {}
    assert not registry.is_registered(address(first))


def test_a_refused_registration_is_an_error_and_is_not_tracked(cudart):
    registry, tensor = HostPinRegistry(), torch.zeros(4)
    cudart.refuse = 2
    with pytest.raises(RuntimeError, match=r"16 bytes .* code 2"):
        registry.pin_in_place(tensor)
    assert not registry.is_registered(address(tensor))


def test_threads_never_register_an_address_twice(cudart):
    registry, tensors = HostPinRegistry(), [torch.zeros(8) for _ in range(50)]
    start = threading.Barrier(4)

    def pin():
        start.wait()
        for tensor in tensors:
            registry.pin_in_place(tensor)

    threads = [threading.Thread(target=pin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cudart.calls) == len(tensors)


def test_a_pinner_with_a_registry_pins_in_place_and_one_without_copies(cudart, monkeypatch):
    copied = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: copied.append(self) or self.clone())
    tensor = torch.zeros(4)
    in_place = HostPinner(HostPinRegistry())
    assert in_place.pin(tensor) is tensor and in_place.is_pinned(tensor) and not copied
    by_torch = HostPinner()
    assert by_torch.registry is None
    assert by_torch.pin(tensor) is not tensor and len(copied) == 1
    in_place.release_all()
    assert not in_place.is_pinned(tensor)
    by_torch.release_all()


def test_a_pinner_says_false_of_a_tensor_without_storage():
    assert HostPinner(HostPinRegistry()).is_pinned(torch.eye(3).to_sparse()) is False
    assert HostPinner().is_pinned(torch.empty(3, device="meta")) is False


def test_the_pinner_for_a_configuration(cudart, monkeypatch, caplog):
    assert isinstance(make_host_pinner(True, "host_register").registry, HostPinRegistry)
    assert make_host_pinner(True, "torch").registry is None
    assert isinstance(make_host_pinner(False, "torch"), NoOpHostPinner)
    assert is_available() and not caplog.records
    assert isinstance(make_host_pinner(False, "host_register"), NoOpHostPinner)
    assert "'host_register'" in caplog.text and "pinned_memory is False" in caplog.text
    caplog.clear()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace())
    pinner = make_host_pinner(True, "host_register")
    assert type(pinner) is HostPinner and pinner.registry is None
    assert caplog.records[0].levelname == "WARNING" and "cudaHostRegister" in caplog.text
    assert not is_available()
    with pytest.raises(ValueError, match="torch, host_register"):
        make_host_pinner(True, "elsewhere")
    assert PinnedMemoryMode == host_pinning.PinnedMemoryMode


def test_without_a_gpu_pinning_is_an_error_and_not_pinning_is_fine():
    with pytest.raises(RuntimeError, match="pinned_memory=False"):
        make_host_pinner(True, "torch")
    with pytest.raises(RuntimeError, match="is_available"):
        HostPinRegistry().pin_in_place(torch.zeros(2))
    tensor = torch.zeros(2)
    assert make_host_pinner(False, "torch").pin(tensor) is tensor
    assert not is_available()


def test_a_benchmark_measures_every_tensor_that_comes_up():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4, bias=False))
    with BenchmarkReplace(CPU, pinned_memory=False, iterations=2, host_pinner=NoOpHostPinner()) as mode:
        halves = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    results = mode.get_results()
    assert set(results) == {"tensor_statistics_map", "tensors_map"}
    for tensor in halves.values():
        assert results["tensors_map"][id(tensor)] is tensor
        found = results["tensor_statistics_map"][id(tensor)]
        assert (found.tensor_id, found.size_bytes) == (id(tensor), tensor.numel() * 2)
        assert found.load_time_ms > 0


def test_a_benchmark_hands_on_pinned_tensors_below_the_limit():
    class Pinner(HostPinner):
        def pin(self, tensor):
            return tensor.clone().requires_grad_(False)

    pinned = {}

    class Watching(Pinner):
        def pin(self, tensor):
            copy = super().pin(tensor)
            pinned[id(copy)] = copy
            return copy

    limit = 100 * 4 / (1 << 20)
    with BenchmarkReplace(CPU, iterations=1, pinned_memory_limit_mb=limit, host_pinner=Watching()):
        small, large = torch.ones(100) * 2, torch.ones(101) * 2
    assert id(small) in pinned and id(large) not in pinned
    assert small.tolist() == [2.0] * 100


def test_preloading_moves_and_does_not_measure():
    with PreloadToDevice(torch.device("meta"), iterations=3) as mode:
        moved = torch.zeros(3)
    assert moved.is_meta
    results = mode.get_results()
    assert results["tensor_statistics_map"] == {} and id(moved) in results["tensors_map"]


def test_modes_are_what_they_say():
    with pytest.raises(TypeError):
        TensorBenchmarkMode(CPU)
    with pytest.raises(TypeError, match="host_pinner"):
        BenchmarkReplace(CPU)
    with pytest.raises(ValueError, match="iterations"):
        PreloadToDevice(CPU, iterations=0)


def test_copies_are_measured_from_the_largest_layer_down():
    tensors = [TensorStatistics(0, "a", 40 << 10, 0.0), TensorStatistics(1, "b", 24 << 10, 0.0)]
    stats = [LayerStatistics("x", tensors, 1.0), LayerStatistics("y", [], 1.0)]
    assert sizes_to_measure(stats) == [65536, 32768, 16384, 8192]
    assert sizes_to_measure(stats, max_depth=2, max_size_bytes=4096) == [4096, 2048]
    assert sizes_to_measure([]) == []
    times = benchmark_memory_transfers(stats, "cpu", pin_memory=False)
    assert sorted(times, reverse=True) == [65536, 32768, 16384, 8192]
    assert all(ms > 0 for ms in times.values())
