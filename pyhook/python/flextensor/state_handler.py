"""The state of a TensorManager: what was learnt and decided, as an object and as profile.json (schema 3, docs/profile.md).

Core checks files (`_native.profile_checked`). Applying a state to a model is left to `tensor_manager`.
"""

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from flextensor import _native
from flextensor.collectors import LayerStatistics, TensorStatistics
from flextensor.model_tensors import Model, tensors_of
from flextensor.strategy.protocol import BlockStrategyData, StrategyResult

FILE_NAME = "profile.json"
"""What a profile is called inside its folder."""


@dataclass
class TensorManagerState:
    """Everything that a later run needs to begin in inference. Fields are the keys of schema 3."""

    SCHEMA_VERSION: ClassVar[int] = 3

    loader_type: str
    tensor_id_to_name_map: dict[int, str]
    allocation_ordered: dict[int, list[str]]
    label_to_size_map: dict[str, int]
    block_sizes: dict[int, int]
    load_strategy: dict[str, list[TensorStatistics]]
    release_strategy: dict[str, list[TensorStatistics]]
    label_to_block_id: dict[str, int]
    stats: list[LayerStatistics]
    transfer_to_compute_map: dict[str, str]
    view_tensors_ids: list[int] = field(default_factory=list)
    view_tensors_names: list[str] = field(default_factory=list)
    gpu_tensors_names: list[str] = field(default_factory=list)
    shm_block_name_map: dict[str, str] | None = None
    managed_tensor_dtypes: dict[str, str] = field(default_factory=dict)
    managed_tensor_layouts: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    additions: dict[str, Any] | None = None
    """What the runtime adds under the key `flextensor`; carried along as it is."""

    def managed_names(self) -> set[str]:
        """Names of the tensors that are streamed."""
        return {tensor.name for tensors in self.load_strategy.values() for tensor in tensors}

    def result(self) -> StrategyResult:
        """What was decided, as a strategy answers it."""
        blocks = BlockStrategyData(
            self.label_to_size_map,
            self.allocation_ordered,
            self.block_sizes,
            self.label_to_block_id,
            self.transfer_to_compute_map,
        )
        return StrategyResult(self.load_strategy, blocks)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: keys are texts."""

        def tensors(given: list[TensorStatistics]) -> list[dict[str, Any]]:
            return [vars(tensor).copy() for tensor in given]

        def by_label(given: dict[str, list[TensorStatistics]]) -> dict[str, Any]:
            return {label: tensors(listed) for label, listed in given.items()}

        made = {
            "version": self.SCHEMA_VERSION,
            "loader_type": self.loader_type,
            "tensor_id_to_name_map": _texts(self.tensor_id_to_name_map),
            "allocation_ordered": _texts(self.allocation_ordered),
            "label_to_size_map": self.label_to_size_map,
            "block_sizes": _texts(self.block_sizes),
            "load_strategy": by_label(self.load_strategy),
            "release_strategy": by_label(self.release_strategy),
            "label_to_block_id": self.label_to_block_id,
            "stats": [
                {"label": stat.label, "tensors": tensors(stat.tensors), "duration": stat.duration}
                for stat in self.stats
            ],
            "transfer_to_compute_map": self.transfer_to_compute_map,
            "view_tensors_ids": self.view_tensors_ids,
            "view_tensors_names": self.view_tensors_names,
            "gpu_tensors_names": self.gpu_tensors_names,
            "shm_block_name_map": self.shm_block_name_map,
            "managed_tensor_dtypes": self.managed_tensor_dtypes,
            "managed_tensor_layouts": self.managed_tensor_layouts,
        }
        if self.additions is not None:
            made["flextensor"] = self.additions
        return made

    @classmethod
    def from_dict(cls, data: dict[str, Any], file: str = FILE_NAME) -> "TensorManagerState":
        """From JSON. ValueError, naming `file`, when it is no profile of version 3, or parts contradict each other."""
        read = json.loads(_native.profile_checked(file, json.dumps(data)))

        def tensors(given: list[dict[str, Any]]) -> list[TensorStatistics]:
            return [TensorStatistics(**{**each, "tensor_id": int(each["tensor_id"])}) for each in given]

        def by_label(given: dict[str, Any]) -> dict[str, list[TensorStatistics]]:
            return {label: tensors(listed) for label, listed in given.items()}

        try:
            return cls(
                loader_type=read["loader_type"],
                tensor_id_to_name_map=_numbers(read["tensor_id_to_name_map"]),
                allocation_ordered=_numbers(read["allocation_ordered"]),
                label_to_size_map=read["label_to_size_map"],
                block_sizes=_numbers(read["block_sizes"]),
                load_strategy=by_label(read["load_strategy"]),
                release_strategy=by_label(read["release_strategy"]),
                label_to_block_id=read["label_to_block_id"],
                stats=[
                    LayerStatistics(stat["label"], tensors(stat["tensors"]), stat["duration"])
                    for stat in read["stats"]
                ],
                transfer_to_compute_map=read["transfer_to_compute_map"],
                view_tensors_ids=[int(each) for each in read["view_tensors_ids"]],
                view_tensors_names=read["view_tensors_names"],
                gpu_tensors_names=read["gpu_tensors_names"],
                shm_block_name_map=read["shm_block_name_map"],
                managed_tensor_dtypes=read["managed_tensor_dtypes"],
                managed_tensor_layouts=read["managed_tensor_layouts"],
                additions=read.get("flextensor"),
            )
        except ValueError as error:
            raise ValueError(
                f"profile `{file}`: ids of tensors and blocks are whole numbers: {error}"
            ) from None

    def check_model(self, model: Model) -> None:
        """ValueError when `model` lacks a tensor that is named here, or has another size, type or layout of it."""
        there = {each.name: each for each in tensors_of(model)}
        sizes = {tensor.name: tensor.size_bytes for stat in self.stats for tensor in stat.tensors}
        for name in (*self.tensor_id_to_name_map.values(), *sizes):
            if name not in there:
                raise ValueError(f"the profile is of another model: this one has no tensor {name!r}")
        for name, size in sizes.items():
            # The runtime counts the bytes of whole storages, which views share.
            whole = max(there[name].nbytes, _storage_bytes(there[name].tensor))
            if size not in (there[name].nbytes, whole):
                raise ValueError(
                    f"the profile is of another model: tensor {name!r} has {there[name].nbytes} bytes, there {size}"
                )
        for name, dtype in self.managed_tensor_dtypes.items():
            if name in there and _dtype(there[name].tensor) != dtype:
                raise ValueError(
                    f"the profile is of another model: tensor {name!r} is {_dtype(there[name].tensor)}, there {dtype}"
                )
        for name, layout in self.managed_tensor_layouts.items():
            if name in there and list(there[name].tensor.shape) != list(layout["shape"]):
                raise ValueError(
                    f"the profile is of another model: tensor {name!r} has shape {list(there[name].tensor.shape)}, "
                    f"there {layout['shape']}"
                )

    def describe_managed(self, model: Model) -> None:
        """Notes types and layouts of the tensors that are streamed."""
        managed = self.managed_names()
        for each in tensors_of(model):
            if each.name in managed:
                self.managed_tensor_dtypes[each.name] = _dtype(each.tensor)
                self.managed_tensor_layouts[each.name] = {
                    "shape": list(each.tensor.shape),
                    "stride": list(each.tensor.stride()),
                }


def save(folder: str | os.PathLike[str], state: TensorManagerState) -> None:
    """Writes profile.json into `folder`, which is made if needed: whole, or not at all."""
    os.makedirs(folder, exist_ok=True)
    text = _native.profile_checked(FILE_NAME, json.dumps(state.to_dict()))
    descriptor, name = tempfile.mkstemp(prefix=f".{FILE_NAME}.", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, os.path.join(folder, FILE_NAME))
    except BaseException:
        os.unlink(name)
        raise


def load(folder: str | os.PathLike[str]) -> TensorManagerState:
    """Reads profile.json from `folder`. FileNotFoundError when there is none, ValueError when it cannot be used."""
    file = Path(folder) / FILE_NAME
    if not file.is_file():
        raise FileNotFoundError(f"there is no profile {file}")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"profile `{file}` is no JSON: {error}") from None
    return TensorManagerState.from_dict(data, str(file))


def _texts(given: dict[int, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in given.items()}


def _numbers(given: dict[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in given.items()}


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _storage_bytes(tensor: Any) -> int:
    try:
        return tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return 0
