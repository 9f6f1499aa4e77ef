"""A saved profile before it is used: is it there, can it be read, does it belong to the model.

What of it a run may take is decided in the library (docs/profile.md).
"""

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from flextensor import _native

_FILE = "profile.json"
# Missing names that an error lists.
_LISTED = 5


def check(folder: str, model: nn.Module) -> None:
    """FileNotFoundError if the folder holds no profile; ValueError if it cannot be read, is of another version, or
    names tensors that the model does not have."""
    path = Path(folder) / _FILE
    if not path.is_file():
        raise FileNotFoundError(f"no profile at {path}")
    saved = json.loads(_native.profile_checked(str(path), path.read_text(encoding="utf-8")))
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    known |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    missing = min((sorted(names - known) for names in _names_by_model(saved)), key=len, default=[])
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        raise ValueError(
            f"profile {path} is of another model: {type(model).__name__} has no tensor "
            f"{', '.join(missing[:_LISTED])}{more}"
        )


def _names_by_model(saved: dict[str, Any]) -> list[set[str]]:
    """Names of tensors; in a file of several models those of each, without the prefix that tells them apart there."""
    names = set(saved["tensor_id_to_name_map"].values())
    models = (saved.get("flextensor") or {}).get("models") or []
    if len(models) < 2:
        return [names]
    prefixes = [f"model{at}." for at in range(len(models))]
    return [{name.removeprefix(of) for name in names if name.startswith(of)} for of in prefixes]


@contextlib.contextmanager
def as_folder(state: Any) -> Iterator[str]:
    """A folder with the state as profile.json, gone again at the end."""
    with tempfile.TemporaryDirectory(prefix="flextensor-") as folder:
        (Path(folder) / _FILE).write_text(_text(state), encoding="utf-8")
        yield folder


def _text(state: Any) -> str:
    if isinstance(state, str):
        return state
    for name in ("to_json", "to_dict", "model_dump"):
        if callable(made := getattr(state, name, None)):
            return _text(made())
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return json.dumps(dataclasses.asdict(state))
    if isinstance(state, Mapping):
        return json.dumps(dict(state))
    raise TypeError(
        f"a saved state is a mapping, a text or an object with to_dict, not {type(state).__name__}"
    )
