"""The record of the calls of F.scaled_dot_product_attention that redblue served and refused."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_REASONS = 100  # reasons name shapes, of which a long run may see any number
OTHER = "other reasons"


@dataclass(repr=False)
class Usage:
    """Calls that redblue computed (`served`), and calls that it left to PyTorch, counted by reason (`reasons`).

    A call of a compiled function counts when the function is compiled. Attention that does not call
    F.scaled_dot_product_attention, or calls it on nested tensors or another device, never reaches redblue and does not
    count (docs/guide/attention.md).
    """

    served: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """Calls that PyTorch computed."""
        return sum(self.reasons.values())

    def add(self, reason: str | None) -> None:
        """Count one call. reason: why PyTorch computes it; None if redblue does."""
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
