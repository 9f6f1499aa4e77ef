"""Holds the storage of every named weight, and notices when the program has let one go.

While a weight is streamed its pages are shared with other weights, so its address must not return to
torch's allocator before it has private pages again. The holder's reference keeps it away; asking for
private pages and letting go is done here, at moments that `roots` and `hook` choose.
"""

import sys
from dataclasses import dataclass

import torch

from flextensor import _native

_DRIVER_FAILED = -3
# What sys.getrefcount says of a storage that only `Held`, the loop below and the call itself know.
_OWN_REFERENCES = 3


@dataclass(slots=True)
class Held:
    """One storage, and the models whose weight it is."""

    storage: torch.UntypedStorage
    model: int


class Holding:
    """The storages by address."""

    def __init__(self) -> None:
        self._by_address: dict[int, Held] = {}
        self._queue: list[int] = []

    def __len__(self) -> int:
        return len(self._by_address)

    def model_of(self, address: int) -> int | None:
        """The model under which the weight at `address` was named, if it is still held."""
        held = self._by_address.get(address)
        return held.model if held else None

    def hold(self, address: int, storage: torch.UntypedStorage, model: int) -> None:
        """Keeps `storage` until the program has let it go."""
        self._by_address[address] = Held(storage, model)

    def drop_model(self, model: int) -> None:
        """Lets go of a model's storages. Its ranges must be private already (model_drop)."""
        for address in [address for address, held in self._by_address.items() if held.model == model]:
            del self._by_address[address]

    def sweep(self, limit: int | None = None) -> int:
        """Looks at `limit` storages (None: all), in turns, and lets go of those that only we hold; returns
        their number."""
        if not self._queue or limit is None:
            self._queue = list(self._by_address)
        batch = [self._queue.pop() for _ in range(min(limit or len(self._queue), len(self._queue)))]
        gone = 0
        for address in batch:
            held = self._by_address.get(address)
            if (
                held is not None
                and self._abandoned(held, address)
                and _native.weight_private(address) != _DRIVER_FAILED
            ):
                del self._by_address[address]
                gone += 1
        return gone

    @staticmethod
    def _abandoned(held: Held, address: int) -> bool:
        storage = held.storage
        if storage.data_ptr() != address:  # resized by the program: its memory has gone without us
            return True
        return (
            torch._C._storage_Use_Count(storage._cdata) <= 1 and sys.getrefcount(storage) <= _OWN_REFERENCES
        )
