"""What components were made with: their arguments, kept in a registry and written as JSON on request.

For looking at how a run was set up (`enable_instrumentation`); what it decided is in the run report.
"""

import dataclasses
import functools
import inspect
import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)
_LONGEST = 200


@dataclass
class ComponentRecord:
    """One object that was made: its class, when (local time), and its arguments as texts or plain values."""

    class_name: str
    module_path: str
    init_timestamp: str
    args: dict[str, Any] = field(default_factory=dict)


class InstrumentationRegistry:
    """The records of a process, oldest first. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: list[ComponentRecord] = []

    def add(self, record: ComponentRecord) -> None:
        """Keeps one record."""
        with self._lock:
            self._records.append(record)

    def records(self) -> list[ComponentRecord]:
        """A copy of the list."""
        with self._lock:
            return list(self._records)

    def clear(self) -> None:
        """Forgets all records."""
        with self._lock:
            self._records.clear()


_REGISTRY = InstrumentationRegistry()


def get_registry() -> InstrumentationRegistry:
    """The one registry of this process."""
    return _REGISTRY


def instrumentable(cls: _Class) -> _Class:
    """Class decorator: every new object leaves a record of its arguments."""
    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def recording(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        if type(self) is cls:
            bound = signature.bind(self, *arguments, **keywords)
            bound.apply_defaults()
            given = {name: plain(value) for name, value in list(bound.arguments.items())[1:]}
            _REGISTRY.add(ComponentRecord(cls.__qualname__, cls.__module__, _now(), given))

    cls.__init__ = recording
    return cls


def plain(value: Any) -> Any:
    """A value as JSON takes it: numbers and texts as they are, containers of them, everything else as short text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump())
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def capture_host_resources() -> dict[str, int]:
    """Host memory in bytes: `total_bytes`, `available_bytes`; empty where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return {
            name: int(lines[key].split()[0]) * 1024
            for name, key in (("total_bytes", "MemTotal"), ("available_bytes", "MemAvailable"))
        }
    except (OSError, KeyError, ValueError):
        return {}


def dump_to_file(output_path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
    """Writes version, components, host memory and `extra` as JSON; OSError where that fails."""
    from flextensor import __version__

    content = {
        "version": __version__,
        "components": [dataclasses.asdict(record) for record in _REGISTRY.records()],
        "host": capture_host_resources(),
        **(extra or {}),
    }
    Path(output_path).write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")


def dump_to_directory(output_dir: str | Path, *, extra: dict[str, Any] | None = None) -> Path:
    """Writes `{output_dir}/{timestamp}/components.{timestamp}_pid{pid}.json` and returns its path."""
    stamp = time.strftime("%Y%m%d_%H%M%S")
    folder = Path(output_dir) / stamp
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"components.{stamp}_pid{os.getpid()}.json"
    dump_to_file(path, extra=extra)
    return path


def dump_instrumentation(output_dir: str, *, extra: dict[str, Any] | None = None) -> None:
    """As `dump_to_directory`, without an answer."""
    dump_to_directory(output_dir, extra=extra)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")
