"""A model's tensors by number: what is recorded and saved speaks of numbers, which hold for one process only."""

import dataclasses

from flextensor.collectors import NANOSECONDS, TensorStatistics
from flextensor.memory_transfer_interpolator import MemoryTransferInterpolator
from flextensor.model_tensors import Model, NamedTensor, modules_of, storage_of, tensors_of, unique_tensors
from flextensor.state_handler import TensorManagerState


class LearntModel:
    """Numbers the tensors of a model in the order of its modules. To be made anew when tensors were replaced."""

    def __init__(self, model: Model) -> None:
        unique = unique_tensors(model)
        self.model = model
        self.unique: list[tuple[int, NamedTensor]] = list(enumerate(unique))
        self.names = {each.name: number for number, each in self.unique}
        """Numbers by first name."""
        self.number_of = {id(each.tensor): number for number, each in self.unique}
        """Numbers by `id` of the tensor, which this object keeps alive."""
        self.labels = {
            path: [self.number_of[id(tensor)] for tensor in (*module.parameters(), *module.buffers())]
            for path, module in modules_of(model)
        }
        """Numbers of all tensors in the module at each path."""

    def sizes(self) -> dict[int, int]:
        """Bytes by number."""
        return {number: each.nbytes for number, each in self.unique}

    def statistics(
        self,
        may_stream: set[str],
        memory_stats: dict[int, float] | None,
        measured: dict[int, TensorStatistics],
    ) -> dict[int, TensorStatistics]:
        """The tensors with these names. The time of a copy is the one in `measured` (by address of the storage), else it follows from
        `memory_stats` (milliseconds by bytes), else it is 0."""
        times = MemoryTransferInterpolator(memory_stats) if memory_stats else None

        def load_ms(each: NamedTensor) -> float:
            known = measured.get(storage_of(each.tensor))
            if known is not None and known.size_bytes == each.nbytes:
                return round(known.load_time_ms, NANOSECONDS)
            return round(times.bytes_to_duration(max(each.nbytes, 1)), NANOSECONDS) if times else 0.0

        return {
            number: TensorStatistics(number, each.name, each.nbytes, load_ms(each))
            for number, each in self.unique
            if each.name in may_stream
        }

    def renumbered(self, state: TensorManagerState) -> TensorManagerState:
        """A state of this model under this process's numbers."""
        of = {each.name: self.number_of[id(each.tensor)] for each in tensors_of(self.model)}

        def tensors(given: list[TensorStatistics]) -> list[TensorStatistics]:
            return [dataclasses.replace(each, tensor_id=of[each.name]) for each in given]

        def by_label(given: dict[str, list[TensorStatistics]]) -> dict[str, list[TensorStatistics]]:
            return {label: tensors(listed) for label, listed in given.items()}

        views = [name for name in state.view_tensors_names if name in of]
        return dataclasses.replace(
            state,
            tensor_id_to_name_map={number: name for name, number in self.names.items()},
            view_tensors_names=views,
            view_tensors_ids=[of[name] for name in views],
            load_strategy=by_label(state.load_strategy),
            release_strategy=by_label(state.release_strategy),
            stats=[dataclasses.replace(stat, tensors=tensors(stat.tensors)) for stat in state.stats],
        )
