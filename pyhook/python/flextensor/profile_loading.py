"""A model straight from safetensors, into the placement of a profile: one tensor at a time, never a second copy of the whole.

Parameters are made on the meta device; what the profile streams is read into (pinned) host memory, all others onto the device.
"""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flextensor import _native
from flextensor.model_tensors import become, tensors_of, unique_tensors
from flextensor.tensor_manager import TensorManager

_LOG = logging.getLogger("flextensor")
_INDEX = ".index.json"


def load_model_from_profile(
    tensor_manager: TensorManager,
    profile_directory: str,
    model_class: type[nn.Module],
    model_args: tuple = (),
    safetensor_path: str | None = None,
    model_kwargs: dict[str, Any] | None = None,
    buffer_device: str | None = None,
    diagnose: bool = False,
    strict: bool = False,
) -> nn.Module:
    """Builds `model_class(*model_args, **model_kwargs)` and fills it from `safetensor_path` (required): a file, the index of several
    (`*.safetensors.index.json`), or a folder that holds either. The profile goes to `tensor_manager`, whose three `initialize_` calls follow. Returns the
    model in eval mode.

    `buffer_device`: where buffers are made; None: the manager's device. A persistent buffer that the file has is filled from it. `diagnose`: logs
    where every parameter went. Types are the file's. Parameters that the file lacks stay on the meta device, where no kernel can
    read them, with a WARNING; `strict`: KeyError instead.

    ValueError without `safetensor_path`, or when the profile is of another model; FileNotFoundError when a file is missing; ImportError
    without the package safetensors."""
    if safetensor_path is None:
        raise ValueError("safetensor_path is required: a .safetensors file, its index, or a folder with one")
    state = tensor_manager.load_state(profile_directory)
    files = _files(Path(safetensor_path))
    device = tensor_manager.device_gpu
    model = _on_meta(model_class, model_args, model_kwargs or {}, torch.device(buffer_device or device))
    managed = state.managed_names()
    with _opened(files) as where:
        missing = _fill(model, where, managed, tensor_manager, diagnose)
    if missing:
        if strict:
            raise KeyError(f"{safetensor_path} lacks {len(missing)} parameters, the first is {missing[0]!r}")
        _LOG.warning(
            "%s lacks %d parameters, which stay on the meta device: %s",
            safetensor_path,
            len(missing),
            ", ".join(missing),
        )
    tensor_manager.load_profile(profile_directory, model)
    return model.eval()


def _files(path: Path) -> list[Path]:
    """The safetensors files that `path` stands for."""
    if path.is_dir():
        indices = sorted(path.glob(f"*.safetensors{_INDEX}"))
        files = sorted(path.glob("*.safetensors"))
        if not indices and not files:
            raise FileNotFoundError(f"there is no .safetensors file in {path}")
        if not indices:
            return files
        path = indices[0]
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.name.endswith(_INDEX):
        return [path]
    names = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    for name in names:
        if not (path.parent / name).is_file():
            raise FileNotFoundError(f"{path} names {name}, which is not there")
    return [path.parent / name for name in names]


@contextlib.contextmanager
def _opened(files: list[Path]) -> Iterator[dict[str, Any]]:
    """By tensor name: the open file that has it."""
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ImportError(
            "load_model_from_profile reads files by the package safetensors, which is not installed: pip install safetensors"
        ) from error
    with contextlib.ExitStack() as stack:
        where: dict[str, Any] = {}
        for file in files:
            opened = stack.enter_context(safe_open(str(file), framework="pt", device="cpu"))
            where.update(dict.fromkeys(opened.keys(), opened))
        yield where


def _fill(
    model: nn.Module, where: dict[str, Any], managed: set[str], manager: TensorManager, diagnose: bool
) -> list[str]:
    """Reads every tensor, one at a time. Returns the parameters that no file has."""
    names: dict[int, list[str]] = {}
    for each in tensors_of(model):
        names.setdefault(id(each.tensor), []).append(each.name)
    streamed_to = _streamed_to(manager)
    missing = []
    for each in unique_tensors(model):
        # A tied tensor may stand in the file under any of its names.
        known = [name for name in names[id(each.tensor)] if name in where]
        if not known:
            if not each.is_buffer:
                missing.append(each.name)
            continue
        tensor = where[known[0]].get_tensor(known[0])
        if tensor.shape != each.tensor.shape:
            raise ValueError(
                f"tensor {each.name!r} has shape {list(tensor.shape)} in the file, {list(each.tensor.shape)} in the model"
            )
        streams = not managed.isdisjoint(names[id(each.tensor)])
        device = streamed_to if streams else manager.device_gpu
        if each.is_buffer and not streams:
            device = each.tensor.device
        tensor = tensor.to(device)
        if streams and device.type == "cpu":
            tensor = manager.pin(tensor)
        if diagnose:
            _LOG.info("%s: %s on %s", each.name, "streamed" if streams else "resident", tensor.device)
        become(each.tensor, tensor)
    return missing


def _streamed_to(manager: TensorManager) -> torch.device:
    """Where streamed weights are read to. The runtime backs addresses on the GPU by host memory itself; without it they wait
    in host memory."""
    if manager.device_gpu.type == "cuda" and _native.phase() >= 0:
        return manager.device_gpu
    return torch.device("cpu")


def _on_meta(
    model_class: type[nn.Module], args: tuple, kwargs: dict[str, Any], buffer_device: torch.device
) -> nn.Module:
    """The model with its parameters on the meta device from the moment each is registered, and its buffers on `buffer_device`. No two
    threads may build models meanwhile."""
    register, register_buffer = nn.Module.register_parameter, nn.Module.register_buffer

    def on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            become(param, torch.empty_like(param, device="meta"))

    def on_device(self: nn.Module, name: str, tensor: Any, *rest: Any, **more: Any) -> None:
        register_buffer(self, name, tensor if tensor is None else tensor.to(buffer_device), *rest, **more)

    nn.Module.register_parameter, nn.Module.register_buffer = on_meta, on_device
    try:
        return model_class(*args, **kwargs)
    finally:
        nn.Module.register_parameter, nn.Module.register_buffer = register, register_buffer
