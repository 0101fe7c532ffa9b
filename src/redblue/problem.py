"""The attention problem: its sizes, its mask, its direction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from redblue.base.dtypes import BYTES_PER_WORD, check_dtype
from redblue.base.errors import RedblueError
from redblue.base.integers import LARGEST, whole_number
from redblue.masks import Mask

DIRECTIONS = ("forward", "backward", "gradient_x")


@dataclass(frozen=True)
class Problem:
    """softmax(Q K^T / sqrt(d)) V for `batch` x `heads` heads, or its gradient.

    Shapes: Q (batch, heads, n_q, d), K (batch, kv_heads, n_k, d), V (batch, kv_heads, n_k, d_v).
    Forward produces O (batch, heads, n_q, d_v) and the log-sum-exp (batch, heads, n_q); backward reads
    Q, K, V, O, lse and dO and produces dQ, dK, dV. "gradient_x" is the problem of arXiv 2410.09397: the gradient,
    with respect to X (d, d), of 1/2 || softmax(A1 X A2^T / d) A3 Y - E ||^2, where A1 and E have n_q rows, A2 and A3
    n_k, and Y (d, d_v). Each head has weights of its own.

    Raises RedblueError, naming the argument, for sizes below 1 or above 2^60 (n_q times heads / kv_heads, too), `heads`
    no multiple of `kv_heads` (or, for gradient_x, not equal to it), an unknown dtype or direction, or a mask that does
    not fit n_q and n_k.
    """

    n_q: int
    n_k: int
    d: int
    d_v: int = cast(int, None)  # d if None
    batch: int = 1
    heads: int = 1
    kv_heads: int = cast(int, None)  # heads if None
    dtype: str = "float16"
    mask: Mask = field(default_factory=Mask.full)
    direction: str = "forward"

    def __post_init__(self) -> None:
        if self.d_v is None:
            object.__setattr__(self, "d_v", self.d)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        for name in ("n_q", "n_k", "d", "d_v", "batch", "heads", "kv_heads"):
            size = whole_number(name, getattr(self, name))
            object.__setattr__(self, name, size)
        if self.heads % self.kv_heads:
            raise RedblueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.group * self.n_q > LARGEST:
            raise RedblueError(
                f"n_q ({self.n_q:,}) times the query heads per key/value head ({self.group:,}), which become rows of "
                f"one attention, must be at most {LARGEST:,} (2^60): give a smaller n_q, or more kv_heads"
            )
        check_dtype("dtype", self.dtype)
        if self.direction not in DIRECTIONS:
            raise RedblueError(f"direction must be one of {', '.join(DIRECTIONS)}, got {self.direction!r}")
        if self.direction == "gradient_x" and self.heads != self.kv_heads:
            raise RedblueError(
                f"gradient_x has one X per head: kv_heads ({self.kv_heads}) must equal heads ({self.heads})"
            )
        if not isinstance(self.mask, Mask):
            raise RedblueError(f"mask must be a redblue.Mask, such as Mask.causal(), got {self.mask!r}")
        self.mask.on(self.n_q, self.n_k)  # raises where it does not fit

    @property
    def group(self) -> int:
        """Query heads per key/value head (1 without grouped-query attention)."""
        return self.heads // self.kv_heads

    @property
    def streams(self) -> int:
        """Independent attentions in the problem: they share nothing, so their words add up."""
        return self.batch * self.kv_heads

    @property
    def bytes_per_word(self) -> int:
        return BYTES_PER_WORD[self.dtype]

    def one_stream(self) -> Problem:
        """The single-head problem that a schedule runs, once for each of `streams`.

        The g query heads that share one K and V are one attention with g n_q rows: row i belongs to
        query i // g, so a row block needs the same keys whichever of its heads it holds.
        """
        return replace(
            self, n_q=self.group * self.n_q, batch=1, heads=1, kv_heads=1, mask=self.mask.for_group(self.group)
        )
