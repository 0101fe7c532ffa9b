"""The attention problem: its sizes, its number type, its mask and its direction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from redblue.base.dtypes import BYTES_PER_WORD, DEFAULT_DTYPE, check_dtype
from redblue.base.errors import RedblueError
from redblue.base.integers import LARGEST, whole_number
from redblue.masks import Mask

DIRECTIONS = ("forward", "backward", "gradient_x")


@dataclass(frozen=True)
class Problem:
    """softmax(Q K^T / sqrt(d)) V for `batch` x `heads` heads, or its gradient.

    Shapes: Q (batch, heads, n_q, d), K (batch, kv_heads, n_k, d), V (batch, kv_heads, n_k, d_v).

    d_v, kv_heads: `d` and `heads` by default. With fewer key/value heads, consecutive query heads share one.
    mask: the pairs that attend; all by default.
    direction: "forward" produces O (batch, heads, n_q, d_v) and the log-sum-exp, lse (batch, heads, n_q). "backward"
        reads Q, K, V, O, lse and dO, and produces dQ, dK and dV. "gradient_x" is the problem of arXiv 2410.09397: the
        gradient of 1/2 || softmax(A1 X A2^T / d) A3 Y - E ||^2 with respect to X (d, d), where A1 and E have n_q rows,
        A2 and A3 have n_k rows, and Y is (d, d_v). Each head has its own weights X and Y.
    dtype: the number type, one of the names in BYTES_PER_WORD.

    Raises RedblueError, which names the argument, in these cases:
    - a size is below 1 or above 2^60, or n_q times heads / kv_heads is above 2^60;
    - `heads` is not a multiple of `kv_heads` (for gradient_x, not equal to `kv_heads`);
    - the dtype or the direction is unknown;
    - the mask does not fit n_q and n_k.
    """

    n_q: int
    n_k: int
    d: int
    d_v: int = cast(int, None)  # None becomes d
    batch: int = 1
    heads: int = 1
    kv_heads: int = cast(int, None)  # None becomes heads
    dtype: str = DEFAULT_DTYPE
    mask: Mask = field(default_factory=Mask.full)
    direction: str = "forward"

    def __post_init__(self) -> None:
        if self.d_v is None:
            object.__setattr__(self, "d_v", self.d)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        for name in ("n_q", "n_k", "d", "d_v", "batch", "heads", "kv_heads"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.heads % self.kv_heads:
            raise RedblueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.group * self.n_q > LARGEST:
            raise RedblueError(
                f"n_q ({self.n_q:,}) times the query heads per key/value head ({self.group:,}), which become rows of "
                f"one attention, must be at most {LARGEST:,} (2^60): give a smaller n_q, or more kv_heads"
            )
        check_dtype("dtype", self.dtype)
        if not isinstance(self.direction, str) or self.direction not in DIRECTIONS:
            raise RedblueError(f"direction must be one of {', '.join(DIRECTIONS)}, got {self.direction!r}")
        if self.direction == "gradient_x" and self.heads != self.kv_heads:
            raise RedblueError(
                f"gradient_x has one X per head: kv_heads ({self.kv_heads}) must equal heads ({self.heads})"
            )
        if not isinstance(self.mask, Mask):
            raise RedblueError(f"mask must be a redblue.Mask, such as Mask.causal(), got {self.mask!r}")
        self.mask.on(self.n_q, self.n_k)  # raises if the mask does not fit

    @property
    def group(self) -> int:
        """Query heads per key/value head (1 without grouped-query attention)."""
        return self.heads // self.kv_heads

    @property
    def streams(self) -> int:
        """Number of independent attentions in the problem, one per batch entry and key/value head.

        Streams share no data, so the words of a problem are the sum of its streams' words.
        """
        return self.batch * self.kv_heads

    @property
    def bytes_per_word(self) -> int:
        """Bytes of one number."""
        return BYTES_PER_WORD[self.dtype]

    def one_stream(self) -> Problem:
        """Return the single-head problem of one stream, which a schedule runs once per stream.

        The g query heads that share one K and V form one attention with g n_q rows. Row i belongs to query i // g: the
        g rows of a query, one per head, are neighbours, because they attend the same keys.
        """
        if self.batch == self.heads == 1:
            return self
        return replace(
            self, n_q=self.group * self.n_q, batch=1, heads=1, kv_heads=1, mask=self.mask.for_group(self.group)
        )
