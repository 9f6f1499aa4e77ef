"""What a TensorManager records while a model is learnt, and whether it records now.

Which tensors a label uses is always recorded; how long it takes, only while nobody has suspended that.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator

from flextensor.collectors import LayerStatistics, LayerStatisticsCollector, TensorStatistics


class Recording:
    """Samples by label, and a counted suspension."""

    def __init__(self) -> None:
        self.collector = LayerStatisticsCollector()
        self._suspensions = 0

    def suspend_profiling(self) -> None:
        """Records no times until the matching `resume_profiling`; calls are counted."""
        self._suspensions += 1

    def resume_profiling(self) -> None:
        """Takes one suspension back. RuntimeError when there is none."""
        if not self._suspensions:
            raise RuntimeError("resume_profiling without a suspend_profiling before it")
        self._suspensions -= 1

    @contextlib.contextmanager
    def pause_profiling(self) -> Iterator[None]:
        """Suspends for a block, whatever happens in it."""
        self.suspend_profiling()
        try:
            yield
        finally:
            self.resume_profiling()

    def is_profiling_suspended(self) -> bool:
        """Whether anybody has suspended recording."""
        return self._suspensions > 0

    def clear_profiling_durations(self) -> None:
        """Forgets all times; which tensors a label uses is kept, and so are suspensions."""
        self.collector.clear_duration_measurements()

    def record_tensors(self, label: str, tensor_ids: Iterable[int]) -> None:
        """The label uses these tensors; recorded while suspended, too."""
        self.collector.add_tensors(label, tensor_ids)

    def record_duration(self, label: str, duration_ms: float) -> None:
        """The label took so many milliseconds once; nothing happens while suspended."""
        if not self.is_profiling_suspended():
            self.collector.add_duration(label, duration_ms)

    def record_all(self, label: str, tensor_ids: Iterable[int], duration_ms: float) -> None:
        """Both; nothing happens while suspended."""
        if not self.is_profiling_suspended():
            self.collector.add_tensors(label, tensor_ids)
            self.collector.add_duration(label, duration_ms)

    def layer_stats(self, tensors: dict[int, TensorStatistics]) -> tuple[list[LayerStatistics], list[str]]:
        """The labels that were timed, in order, and those that never were."""
        durations = self.collector.durations()
        stats = self.collector.get_layer_stats(tensors)
        timed = [stat for stat in stats if durations[stat.label]]
        return timed, [stat.label for stat in stats if not durations[stat.label]]


def view_buffer_bytes(collector: LayerStatisticsCollector, sizes: dict[int, int]) -> int:
    """Bytes of the largest label's own tensors, and of all that several labels use. `sizes`: bytes by tensor."""
    layers = collector.get_layer_stats(
        {number: TensorStatistics(number, str(number), nbytes, 0.0) for number, nbytes in sizes.items()}
    )
    users = Counter(tensor.tensor_id for layer in layers for tensor in layer.tensors)
    shared = {number for number, count in users.items() if count > 1}
    own = (sum(t.size_bytes for t in layer.tensors if t.tensor_id not in shared) for layer in layers)
    return max(own, default=0) + sum(sizes[number] for number in shared)
