"""The record of the calls of PyTorch's functions that redblue served and refused."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_REASONS = 100  # limit of stored reasons: they name shapes, and a long run may see any number of shapes
OTHER = "other reasons"


@dataclass(repr=False)
class Usage:
    """Calls that redblue computed (`served`), and calls that it refused, counted by reason (`reasons`).

    PyTorch computes a refused F.scaled_dot_product_attention; a refused flash op raises the reason. A call of a
    compiled function counts when the function is compiled. Attention that does not call these functions never reaches
    redblue and does not count: nn.MultiheadAttention with need_weights=True, nested tensors, other devices
    (docs/guide/pytorch.md).
    """

    served: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """Calls that redblue did not compute."""
        return sum(self.reasons.values())

    def add(self, reason: str | None) -> None:
        """Count one call. reason: why redblue does not compute it; None if it does."""
        if reason is None:
            self.served += 1
            return
        if reason not in self.reasons and len(self.reasons) >= MAX_REASONS:
            reason = OTHER
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def __repr__(self) -> str:
        refusals = sorted(self.reasons.items(), key=lambda item: -item[1])
        lines = [f"{self.served:,} calls served, {self.refused:,} refused"]
        return "\n".join(lines + [f"  {count:,} x {reason}" for reason, count in refusals])
