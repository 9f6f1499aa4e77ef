"""OffloadModelProxy: what `offload()` returns, in the place of the model.

It is the model in every respect that Python lets one object be another: type, attributes, calls, copies. Whether the
model is still managed is known to the `Binding` that it looks through; managing is left to `offload_manager`.
"""

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn


class Binding:
    """The model behind the proxies of one `offload()`; none after its release."""

    __slots__ = ("__weakref__", "model")

    def __init__(self, model: nn.Module) -> None:
        self.model: nn.Module | None = model


class OffloadModelProxy:
    """Stands for an offloaded model: `isinstance(proxy, type(model))` holds, and every attribute, method and call is
    the model's own. A copy or a pickle of it is one of the model, unmanaged.

    RuntimeError at any use after `release()`.
    """

    __slots__ = ("__binding", "__weakref__")

    def __init__(self, binding: Binding) -> None:
        object.__setattr__(self, "_OffloadModelProxy__binding", binding)

    @property
    def __class__(self) -> type:
        return type(subject(self))

    @property
    def __dict__(self) -> dict[str, Any]:
        return subject(self).__dict__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return subject(self)(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(subject(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(subject(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(subject(self), name)

    def __dir__(self) -> list[str]:
        return dir(subject(self))

    def __repr__(self) -> str:
        return repr(subject(self))

    def __eq__(self, other: object) -> bool:
        return subject(self) == (subject(other) if is_proxy(other) else other)

    def __hash__(self) -> int:
        return hash(subject(self))

    def __bool__(self) -> bool:
        return bool(subject(self))

    def __len__(self) -> int:
        return len(subject(self))

    def __iter__(self) -> Iterator[Any]:
        return iter(subject(self))

    def __contains__(self, item: Any) -> bool:
        return item in subject(self)

    def __getitem__(self, key: Any) -> Any:
        return subject(self)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        subject(self)[key] = value

    def __delitem__(self, key: Any) -> None:
        del subject(self)[key]

    def __copy__(self) -> nn.Module:
        return copy.copy(subject(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return copy.deepcopy(subject(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return subject(self).__reduce_ex__(protocol)


def is_proxy(value: object) -> bool:
    """Whether `value` itself is a proxy, which its class does not tell."""
    return type(value) is OffloadModelProxy


def subject_or_none(proxy: Any) -> nn.Module | None:
    """The model behind a proxy; None when it was released."""
    return object.__getattribute__(proxy, "_OffloadModelProxy__binding").model


def subject(proxy: OffloadModelProxy) -> nn.Module:
    """The model behind a proxy; RuntimeError when it was released."""
    model = subject_or_none(proxy)
    if model is None:
        raise RuntimeError(
            "the model of this proxy is not offloaded any more: it was released, offload() it again"
        )
    return model
