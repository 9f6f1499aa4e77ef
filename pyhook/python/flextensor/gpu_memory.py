"""How much GPU memory an offloaded model takes, as programs read it."""

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True)
class GPUMemoryUsage:
    """GPU memory of one model, in bytes: `blocks_bytes` = the ring that weights are streamed through,
    `unmapped_tensors_bytes` = weights that stay, `total_bytes` = both."""

    blocks_bytes: int
    unmapped_tensors_bytes: int
    total_bytes: int

    @property
    def blocks_mb(self) -> float:
        """MiB."""
        return self.blocks_bytes / _MIB

    @property
    def unmapped_tensors_mb(self) -> float:
        """MiB."""
        return self.unmapped_tensors_bytes / _MIB

    @property
    def total_mb(self) -> float:
        """MiB."""
        return self.total_bytes / _MIB
