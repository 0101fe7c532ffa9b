"""Measure the cost of masks: compare each masked call with the call without a mask, and with other implementations.

Every pattern is first checked against the textbook expression in float64, at a length that fits in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # noqa: N812  # pyright: ignore[reportMissingImports]

import redblue as rb
from benchmarks.common.gate import REDBLUE, gate_of, scores
from benchmarks.common.results import Figure, Limit, Row
from benchmarks.common.timing import Spread, race, rate, ratio, seconds_of, with_seconds
from redblue import Mask
from redblue.base.dtypes import DTYPE_CODES
from redblue.kernels.cpu import mask_form
from redblue.kernels.sizes import Sizes

N, D, HEADS = 8192, 64, 4
CHECKED_N = 1024
MIN_CHECKED_DENSITY = 0.02  # dQ of a row with one key is 0 except for rounding, so its relative error means nothing
WINDOW = Mask.sliding_window(256, 256)
DENSITIES = (0.5, 0.2, 0.1, 0.05)
PAIR_DENSITIES = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0)
NODES, EDGES = 100_000, 10_000_000
COMPOSITION_BYTES = 16 << 30  # memory of one head of `composition` with its gradients

Run = Callable[[], object]


def inputs(n: int, heads: int = HEADS, d: int = D, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, n, d, generator=generator).to(dtype) for _ in range(4)]


def forward(mask: Mask | None, x: Sequence[torch.Tensor]) -> Run:
    return lambda: rb.attention(*x[:3], mask=mask)


def both(attention: Callable[..., torch.Tensor], x: Sequence[torch.Tensor]) -> Run:
    """A run of the forward and the backward pass."""
    *leaves, dout = (a.detach().clone() for a in x)
    for leaf in leaves:
        leaf.requires_grad_()
    return lambda: torch.autograd.grad(attention(*leaves), leaves, dout)


def check(mask: Mask, n: int = CHECKED_N) -> None:
    """Compare outputs and gradients with float64. Raises Red if they are wrong."""
    dense = torch.from_numpy(mask.to_dense(n, n))

    def textbook(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scores(q, k, attends=dense).softmax(-1).nan_to_num() @ v

    def results(attention: Callable[..., torch.Tensor], x: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        gradients: Any = both(attention, x)()
        return [attention(*x[:3]), *gradients]

    x = inputs(n, 1)
    gate = gate_of(str(mask), lambda dtype: results(textbook, [a.to(dtype) for a in x]), torch.float32)
    gate.check(REDBLUE, results(partial(rb.attention, mask=mask), x))


def timed(bench: Any, runs: dict[str, Run]) -> dict[str, list[float]]:
    return race({name: partial(rate, run, 1, bench.seconds) for name, run in runs.items()}, bench.rounds)


def over(rates: dict[str, list[float]], slow: str, fast: str, times: float = 1.0) -> Spread:
    """The time of `slow` over the time of `fast`, multiplied by `times`."""
    return Spread(*(value * times for value in ratio(rates, fast, slow)))


def window(bench: Any) -> Row:
    x, density = inputs(N), WINDOW.density(N, N)
    runs = {
        "window": both(partial(rb.attention, mask=WINDOW), x),
        "dense": both(rb.attention, x),
        "window, forward": forward(WINDOW, x),
    }
    note = ""
    if not bench.alone:
        flex, note = flex_attention(x)
        if flex:
            runs["FlexAttention, forward"] = flex
    rates = timed(bench, runs)
    figures = [
        Figure("time / (density x dense)", over(rates, "window", "dense", 1 / density), Limit(1.4), at_most=True)
    ]
    if "FlexAttention, forward" in rates:
        faster = ratio(rates, "window, forward", "FlexAttention, forward")
        figures.append(Figure("forward over compiled FlexAttention", faster, Limit(3)))
    return Row("window of 256 to both sides", f"n {N}, d {D}, H {HEADS}", figures, rates, "calls/s", note)


def flex_attention(x: Sequence[torch.Tensor]) -> tuple[Run | None, str]:
    """(a run of compiled FlexAttention, a note on its compile time), or (None, the reason why it does not run)."""
    from torch.nn.attention.flex_attention import (  # pyright: ignore[reportMissingImports]
        create_block_mask,
        flex_attention,
    )

    mask = create_block_mask(lambda b, h, i, j: (i - j).abs() <= 256, None, None, N, N, device="cpu")
    q, k, v = x[:3]
    compiled: Any = torch.compile(flex_attention)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return compiled(q, k, v, block_mask=mask)

    try:
        out, seconds = with_seconds(run)
    except Exception as failure:  # no failure of a peer may end the run
        return None, f"FlexAttention: {type(failure).__name__}: {str(failure).splitlines()[0]}"
    if (out - rb.attention(q, k, v, mask=WINDOW)).abs().max() > 1e-4:
        return None, "FlexAttention: the result differs"
    return run, f"FlexAttention compiled for {seconds:.0f} s before its first result"


@cache
def document_lengths() -> list[int]:
    """16 lengths that add up to N; the longest is about eight times the shortest."""
    share = np.geomspace(1, 8, 16)
    lengths = np.floor(share / share.sum() * N).astype(int)
    lengths[-1] += N - lengths.sum()
    return np.random.default_rng(0).permutation(lengths).tolist()


def documents(bench: Any) -> Row:
    x, lengths = inputs(N), document_lengths()
    parts = [[a[:, :, end - n : end] for a in x] for n, end in zip(lengths, np.cumsum(lengths), strict=True)]
    separate = [both(partial(rb.attention, mask=Mask.causal()), part) for part in parts]
    padded = [torch.zeros(len(lengths), HEADS, max(lengths), D) for _ in x]
    for i, part in enumerate(parts):
        for target, source in zip(padded, part, strict=True):
            target[i, :, : lengths[i]] = source[0]
    runs: dict[str, Run] = {
        "packed": both(partial(rb.attention, mask=Mask.documents(lengths, within=Mask.causal())), x),
        "separate calls": lambda: [run() for run in separate],
    }
    if not bench.alone:
        runs["padded SDPA"] = both(partial(F.scaled_dot_product_attention, is_causal=True), padded)
    rates = timed(bench, runs)
    figures = [Figure("time over separate calls", over(rates, "packed", "separate calls"), Limit(1.3), at_most=True)]
    if "padded SDPA" in rates:
        figures.append(Figure("over padded SDPA", ratio(rates, "packed", "padded SDPA"), Limit()))
    return Row("16 documents, causal", f"n {N}, d {D}, H {HEADS}", figures, rates, "calls/s")


def blocks(density: float, bench: Any) -> Row:
    mask, x = Mask.random_blocks(density, seed=1, block=64), inputs(N, 1)
    kept = mask.density(N, N)
    runs = {
        "forward": forward(mask, x),
        "forward, dense": forward(None, x),
        "both": both(partial(rb.attention, mask=mask), x),
        "both, dense": both(rb.attention, x),
    }
    rates = timed(bench, runs)
    limit = Limit(round(1.15 * kept + 0.03, 4))
    figures = [
        Figure(f"{name} / dense", over(rates, short, f"{short}, dense"), limit, "%", at_most=True)
        for name, short in (("forward", "forward"), ("forward + backward", "both"))
    ]
    return Row(f"blocks of 64, {density:.0%}", f"n {N}, d {D}, H 1, density {kept:.3f}", figures, rates, "calls/s")


@cache
def graph() -> Mask:
    """Directed edges without repetition; their targets follow a power law."""
    rng = np.random.default_rng(0)
    weights = np.arange(1, NODES + 1) ** -0.7
    targets = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(EDGES)).clip(max=NODES - 1)
    code = np.unique(rng.integers(0, NODES, EDGES) * NODES + targets)
    return Mask.from_coo(code // NODES, code % NODES, (NODES, NODES))


def composition(rows: torch.Tensor, cols: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Graph attention as PyTorch users write it: gather, softmax by scatter, scatter."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x[0, 0] for x in (q, k, v))
        scores = (q[rows] * k[cols]).sum(-1) * q.shape[-1] ** -0.5
        top = torch.full((len(q),), -torch.inf).scatter_reduce(0, rows, scores.detach(), "amax")
        weights = (scores - top[rows]).exp()
        total = torch.zeros(len(q)).scatter_add(0, rows, weights)
        out = torch.zeros(len(q), v.shape[-1]).index_add(0, rows, (weights / total[rows])[:, None] * v[cols])
        return out[None, None]

    return attention


def of_graph(bench: Any) -> Row:
    """Compare redblue on all heads with the composition on one head, which already takes gigabytes."""
    mask, x = graph(), inputs(NODES)
    run = both(partial(rb.attention, mask=mask), x)
    run()  # builds the lists, which later calls reuse
    rates = {"redblue": [_heads_per_second(run, HEADS) for _ in range(max(2, min(5, bench.rounds)))]}
    figures, note = [], ""
    if bench.alone or free_bytes() < COMPOSITION_BYTES:
        note = "" if bench.alone else f"the composition needs {COMPOSITION_BYTES >> 30} GiB of free memory"
    else:
        starts, keys = mask.to_csr(NODES, NODES)
        rows = torch.from_numpy(np.repeat(np.arange(NODES), np.diff(starts)))
        one_head = both(composition(rows, torch.from_numpy(keys)), [a[:, :1] for a in x])
        rates["gather and scatter"] = [_heads_per_second(one_head, 1)] * len(rates["redblue"])
        figures.append(Figure("over gather and scatter", ratio(rates, "redblue", "gather and scatter"), Limit(3)))
        note = "the composition ran once, on one head"
    case = f"{NODES:,} nodes, {mask.nnz(NODES, NODES):,} edges, d {D}, H {HEADS}, forward + backward"
    return Row("graph, power law", case, figures, rates, "heads/s", note)


def _heads_per_second(run: Run, heads: int) -> float:
    return heads / seconds_of(run)


def free_bytes() -> int:
    """Free memory on Linux; 0 on other systems, where it is unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 0


def choice(density: float, bench: Any) -> Row:
    """Compare the planned form, tiles or pairs, with the faster one."""
    n = N // 2
    mask = Mask.from_dense(np.random.default_rng(0).random((n, n)) < density)
    x = inputs(n, 1)
    *leaves, dout = (a.detach().clone() for a in x)
    for leaf in leaves:
        leaf.requires_grad_()
    out = rb.attention(*leaves, mask=mask)
    passes: dict[str, Run] = {
        "forward": forward(mask, x),
        "backward": lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True),
    }
    runs = {}
    for name, run in passes.items():
        runs[f"{name}, tiles"], runs[f"{name}, pairs"] = _forced(run, False), _forced(run, True)
    rates = timed(bench, runs)
    figures = []
    sizes = Sizes((1,), 1, 1, n, n, D, D)
    lanes = mask_form.cpu.isa().lanes(DTYPE_CODES["float32"])
    for name in passes:
        planned = "pairs" if mask_form.gathers(mask, sizes, lanes, name) else "tiles"
        best = max(("tiles", "pairs"), key=lambda form: np.median(rates[f"{name}, {form}"]))
        worse = over(rates, f"{name}, {planned}", f"{name}, {best}")
        figures.append(Figure(f"{name}: planned {planned}, best {best}", worse, Limit(1.1), at_most=True))
    return Row(f"tiles or pairs, density {density:g}", f"n {n}, d {D}, H 1", figures, rates, "calls/s")


def _forced(run: Run, pairs: bool) -> Run:
    def forced() -> object:
        with _form(pairs):
            return run()

    return forced


@contextmanager
def _form(pairs: bool):
    planned = mask_form.gathers
    mask_form.gathers = lambda *_: pairs  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        mask_form.gathers = planned


# (name for --only, title, masks to check, function that measures)
CASES: tuple[tuple[str, str, Callable[[], list[Mask]], Callable[[Any], Row]], ...] = (
    ("window", "window", lambda: [WINDOW], window),
    ("documents", "documents", lambda: [Mask.documents([100, 0, 924], within=Mask.causal())], documents),
    *(
        ("blocks", f"blocks, {p:.0%}", lambda p=p: [Mask.random_blocks(p, seed=1, block=64)], partial(blocks, p))
        for p in DENSITIES
    ),
    *(
        (
            "choice",
            f"tiles or pairs, {p:g}",
            lambda p=p: [
                Mask.from_dense(np.random.default_rng(0).random((CHECKED_N, CHECKED_N)) < max(p, MIN_CHECKED_DENSITY))
            ],
            partial(choice, p),
        )
        for p in PAIR_DENSITIES
    ),
    (
        "graph",
        "graph",
        lambda: [Mask.from_dense(np.random.default_rng(0).random((CHECKED_N, CHECKED_N)) < 1e-3)],
        of_graph,
    ),
)
