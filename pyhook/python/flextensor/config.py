"""OffloadConfig and its loaders: keywords, `FT_` variables, a file.

Every option, with its type, default, rule and message, comes from the one option table (docs/options.md); nothing
about an option is written here but two exceptions that only Python can know: `load_strategy` may be an object,
and a folder may be a path. What the options do is left to `offload_manager` and to the library.
"""

import copy
import inspect
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flextensor import _native
from flextensor.option_fields import OptionFields

__all__ = [
    "BLOCK_TRANSFER_MODES",
    "OffloadConfig",
    "ValidationError",
    "load_config",
    "load_config_from_env",
    "load_config_from_file",
]

_LOG = logging.getLogger("flextensor")
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
BLOCK_TRANSFER_MODES = frozenset({"allocation_block_transfer", "raw_block_transfer"})
"""The values of `transfer_mode` that name blocks."""

_ENVIRONMENT = "environment variable "
_STRATEGY = "load_strategy"


class ValidationError(ValueError):
    """A configuration that cannot be used; the text names the option, the value given and what is allowed."""


def _resolve(
    keywords: Mapping[str, Any], variables: dict[str, str] | None = None, file: str | None = None
) -> dict[str, Any]:
    """The values of all options, their origins and warnings. A strategy that is an object is put in last."""
    strategy = keywords.get(_STRATEGY)
    is_object = strategy is not None and not isinstance(strategy, str)
    if is_object and not callable(getattr(strategy, "compute", None)):
        raise ValidationError(
            f"keyword: {_STRATEGY} = {strategy!r} is not allowed; allowed: an object with a method compute, "
            "the name of a strategy, or None"
        )
    given = [
        (key, os.fspath(value) if isinstance(value, os.PathLike) else value)
        for key, value in keywords.items()
        if not (is_object and key == _STRATEGY)
    ]
    try:
        values = json.loads(_native.resolve_configuration(given, variables, file))
    except ValueError as error:
        raise ValidationError(str(error)) from None
    if is_object:
        values[_STRATEGY] = strategy
        values["origins"][_STRATEGY] = "keyword"
    return values


_DEFAULTS = _resolve({})


def config_defaults() -> dict[str, Any]:
    """The default of every option by name; lists are copies."""
    return {key: copy.copy(_DEFAULTS[key]) for key in _FIELDS}


_FIELDS = tuple(key for key in _DEFAULTS if key not in ("origins", "warnings"))


class OffloadConfig(OptionFields):
    """How a model is offloaded: one attribute for each option of docs/options.md.

    `OffloadConfig(profiling_iters=5, include_patterns=["layers.*"])`: keywords over defaults; variables and
    files are not looked at (`load_config` does that). Sizes may be given as bytes or as text ("8GiB"), folders as
    text or path, `load_strategy` as an object with `compute` or by name.

    Raises ValidationError (a ValueError) for a value that is not allowed, for values that do not go together, and
    for names of options that were dropped. A name that is no option is ignored with a UserWarning.

    Attributes may be changed until the configuration is given to `offload()`, which checks them again.
    """

    def __init__(self, **options: Any) -> None:
        self._take(_resolve(options))

    @classmethod
    def _of(cls, values: dict[str, Any]) -> "OffloadConfig":
        made = cls.__new__(cls)
        made._take(values)
        return made

    def _take(self, values: dict[str, Any]) -> None:
        for warning in values["warnings"]:
            _say(warning)
        origins = values["origins"]
        own = self.__dict__
        for key in _FIELDS:
            own[key] = values[key]
        own["_set"] = {key for key in _FIELDS if origins.get(key, "default") != "default"}

    @property
    def model_fields_set(self) -> set[str]:
        """Names of the options that somebody set: a keyword, a variable, a file, or an assignment."""
        return set(self._set)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            raise AttributeError(f"{name!r} is no option of OffloadConfig; docs/options.md lists them")
        self.__dict__[name] = value
        self._set.add(name)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"options of OffloadConfig cannot be deleted: {name!r}")

    def model_dump(self) -> dict[str, Any]:
        """All options by name; lists are copies."""
        return {key: copy.copy(self.__dict__[key]) for key in _FIELDS}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "OffloadConfig":
        """A copy, with the options of `update` changed unchecked, as by assignment."""
        made = copy.deepcopy(self) if deep else copy.copy(self)
        for key, value in (update or {}).items():
            setattr(made, key, value)
        return made

    def checked(self) -> "OffloadConfig":
        """An independent configuration with the same values; ValidationError if assignments made them wrong."""
        return OffloadConfig(**{key: self.__dict__[key] for key in _FIELDS if key in self._set})

    def __copy__(self) -> "OffloadConfig":
        return self._duplicate({key: copy.copy(self.__dict__[key]) for key in _FIELDS if key != _STRATEGY})

    def __deepcopy__(self, memo: dict[int, Any]) -> "OffloadConfig":
        return self._duplicate({key: copy.deepcopy(self.__dict__[key], memo) for key in _FIELDS})

    def _duplicate(self, values: dict[str, Any]) -> "OffloadConfig":
        made = type(self).__new__(type(self))
        made.__dict__.update({_STRATEGY: self.load_strategy, **values, "_set": set(self._set)})
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffloadConfig):
            return NotImplemented
        return all(self.__dict__[key] == other.__dict__[key] for key in _FIELDS)

    __hash__ = None

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.model_dump().items())

    def __repr__(self) -> str:
        return f"OffloadConfig({', '.join(f'{key}={self.__dict__[key]!r}' for key in _FIELDS)})"


OffloadConfig.__signature__ = inspect.Signature(
    [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[key]) for key in _FIELDS]
)


def load_config(
    config_path: str | Path | None = None,
    env_prefix: str = "FT_",
    use_env: bool = True,
    config_file_env_var: str = "FT_CONFIG_FILE",
    **kwargs: Any,
) -> OffloadConfig:
    """Keywords over variables over file over defaults.

    The file is `config_path`, or the one that the variable `config_file_env_var` names (not with
    `use_env=False`). `enabled` is False if there is no file and neither a variable nor a keyword sets it: variables
    alone do not switch offloading on. With `use_env=False` and no file this is the constructor.

    Raises FileNotFoundError for a missing file, ValidationError (a ValueError) for anything that is wrong.
    """
    if not use_env:
        return OffloadConfig._of(_resolve(kwargs, None, _text(config_path)))
    path = config_path if config_path is not None else os.environ.get(config_file_env_var)
    return _load(kwargs, env_prefix, path or None, config_file_env_var)


def load_config_from_file(
    config_path: str | Path | None = None, env_var: str = "FT_CONFIG_FILE", **kwargs: Any
) -> OffloadConfig:
    """Keywords over a file (`.toml`, `.json`, `.yaml`, `.yml`, `.ini`, `.conf`) over defaults.

    The file is `config_path`, or the one that the variable `env_var` names; FileNotFoundError if there is none.
    """
    path = config_path if config_path is not None else os.environ.get(env_var)
    if not path:
        raise FileNotFoundError(f"no configuration file is named: pass config_path or set {env_var}")
    return OffloadConfig._of(_resolve(kwargs, None, _text(path)))


def load_config_from_env(prefix: str = "FT_", **kwargs: Any) -> OffloadConfig:
    """Keywords over variables that begin with `prefix` over defaults; `enabled` is False unless one of them sets it."""
    return _load(kwargs, prefix, None, "FT_CONFIG_FILE")


def _load(
    keywords: Mapping[str, Any], prefix: str, path: str | Path | None, file_variable: str
) -> OffloadConfig:
    variables = {
        f"FT_{name[len(prefix) :]}": value
        for name, value in os.environ.items()
        if name.startswith(prefix) and name not in (file_variable, f"{prefix}CONFIG_FILE")
    }
    try:
        return OffloadConfig._of(_resolve(keywords, variables, _text(path)))
    except ValidationError as error:
        if prefix == "FT_":
            raise
        raise ValidationError(str(error).replace("FT_", prefix)) from None


def _text(path: str | Path | None) -> str | None:
    return None if path is None else os.fspath(path)


def _say(warning: str) -> None:
    """Variables are the operator's, so their lines go to the log; the program's own mistakes are warnings."""
    if warning.startswith(_ENVIRONMENT):
        _LOG.warning("%s", warning)
    else:
        warnings.warn(warning, UserWarning, stacklevel=callers_level())


def callers_level() -> int:
    """The `stacklevel` that points a warning, raised by the calling function, at the first frame outside this
    package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level
