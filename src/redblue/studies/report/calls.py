"""One call of the compiled CPU kernel on random arrays: run it, check some rows against float64, and time PyTorch."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from redblue.base.dtypes import DTYPE_CODES, DTYPE_OF_BYTES
from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu.arrays import described
from redblue.kernels.cpu.mask_form import attended
from redblue.kernels.sizes import Sizes, array_forms
from redblue.lab import reference
from redblue.masks import Mask
from redblue.op import api
from redblue.op.checks import check_dtypes, check_shapes, check_widths_on_cpu
from redblue.problem import Problem

# The largest allowed error of the checked rows against float64, relative in the Frobenius norm. Results of 16 bits are
# rounded once; with bfloat16, P and dS are rounded, too. PyTorch's result may differ from ours by
# PYTORCH_TOLERANCE times as much.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
PYTORCH_TOLERANCE = 4

CHECKED = 5  # the number of rows, and of keys, that are checked against float64
ROUNDS, ROUND_SECONDS = 3, 0.02  # the time is the best round's; a round repeats the call for ROUND_SECONDS
ENOUGH_SECONDS = 0.5  # a first call that takes longer is not repeated

LOWEST = -1e4  # replaces -inf, the log-sum-exp of a row that attends no key


def pytorch() -> Any:
    """Import PyTorch; return None if it cannot be imported. The kernels then use as many threads as PyTorch does."""
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError):
        return None


def sizes_of(problem: Problem) -> Sizes:
    """The sizes of a problem of one batch, in the form for the kernel.

    Raises RedblueError, with the reason, if no kernel supports the problem.
    """
    p = problem
    check_dtypes({"the arrays": p.dtype})
    sizes = check_shapes((p.heads, p.n_q, p.d), (p.kv_heads, p.n_k, p.d), (p.kv_heads, p.n_k, p.d_v))
    check_widths_on_cpu(sizes)
    return sizes


def computed_in(dtype: str) -> str:
    """The number type in which the kernel multiplies, for arrays of type `dtype`."""
    return DTYPE_OF_BYTES[cpu.isa().packed_bytes(DTYPE_CODES[dtype])]


class Call:
    """One call of the kernel, forward or backward, for a problem of one batch on random numbers.

    Raises RedblueError if no kernel supports the problem.
    """

    def __init__(self, problem: Problem) -> None:
        pytorch()  # load PyTorch first, because the number of threads depends on it
        self.problem, self.sizes, self.threads = problem, sizes_of(problem), api.default_threads()
        self.backward = problem.direction == "backward"
        self.tile = cpu.plan_tile(problem.direction, self.sizes, problem.dtype)
        self.scale = problem.d**-0.5
        rng = np.random.default_rng(0)
        self.arrays: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in array_forms(self.sizes, problem.dtype, problem.direction).items():
            if name in ("q", "k", "v", "dout"):
                self.arrays[name] = rounded(rng.standard_normal(shape, np.float32), dtype)
            else:  # an element that the kernel does not write stays NaN, and fails the check
                self.arrays[name] = rounded(np.full(shape, np.nan, np.float32), dtype)
        if self.backward:
            self._pass("forward", cpu.plan_tile("forward", self.sizes, problem.dtype))

    def run(self) -> tuple[int, int]:
        """Run the kernel once; return the words read and written."""
        return self._pass(self.problem.direction, self.tile)

    def _pass(self, direction: str, tile: cpu.Tile) -> tuple[int, int]:
        p, kernel = self.problem, cpu.backward if direction == "backward" else cpu.forward
        arrays = (described(self.arrays[name]) for name in array_forms(self.sizes, p.dtype, direction))
        mask = attended(p.mask, self.sizes, p.dtype, p.direction)
        return kernel(self.sizes, p.dtype, *arrays, mask=mask, scale=self.scale, threads=self.threads, tile=tile)

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the arrays that the kernel computes."""
        return ("dq", "dk", "dv") if self.backward else ("out", "lse")

    def errors(self) -> dict[str, float]:
        """The error of each result's checked rows against float64; infinite if any element of the result is NaN.

        The gradients' reference is computed from the `out` and `lse` that the backward pass reads.
        """
        rows, keys = _checked_indices(self.problem.n_q), _checked_indices(self.problem.n_k)
        q, k, v = (widened(self.arrays[name]) for name in ("q", "k", "v"))
        if not self.backward:
            attends = self.attends(rows, np.arange(self.problem.n_k))
            exact = reference.forward(q[:, rows], k, v, attends)
            expected = {"out": exact.out, "lse": exact.lse[..., None]}
        else:
            p, ds = self._tile(rows, np.arange(self.problem.n_k), q, k, v)
            expected = {"dq": ds @ k * self.scale}
            p, ds = self._tile(np.arange(self.problem.n_q), keys, q, k, v)
            dout = widened(self.arrays["dout"])
            # The gradients of a key head are sums over its query heads.
            by_query_head = {"dk": ds.swapaxes(-1, -2) @ q * self.scale, "dv": p.swapaxes(-1, -2) @ dout}
            expected |= {name: x.reshape(len(k), -1, *x.shape[1:]).sum(axis=1) for name, x in by_query_head.items()}
        checked = {"dk": keys, "dv": keys}
        return {
            name: _error(self.arrays[name][:, checked.get(name, rows)], exact)
            if not np.isnan(self.arrays[name]).any()
            else np.inf
            for name, exact in expected.items()
        }

    def _tile(self, rows: np.ndarray, keys: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Any:
        """P and dS for some queries and some keys, in float64."""
        lse, out, dout = (widened(self.arrays[name][:, rows]) for name in ("lse", "out", "dout"))
        scores = q[:, rows] @ k[:, keys].swapaxes(-1, -2) * self.scale
        with np.errstate(over="ignore", invalid="ignore"):
            p = np.where(self.attends(rows, keys), np.exp(scores - lse), 0.0)
        return p, p * (dout @ v[:, keys].swapaxes(-1, -2) - (dout * out).sum(axis=-1, keepdims=True))

    def attends(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Boolean (rows, keys): whether a query attends a key."""
        pairs = self.problem.mask.on(self.problem.n_q, self.problem.n_k)
        return np.concatenate([pairs.dense(range(row, row + 1), range(self.problem.n_k)) for row in rows])[:, keys]

    def wrong(self) -> str:
        """Name the results that are too far from float64; "" if there are none."""
        allowed = TOLERANCE[self.problem.dtype]
        faults = [f"{name} {error:.1e}" for name, error in self.errors().items() if not error <= allowed]
        if not faults:
            return ""
        return f"relative errors against float64 of {', '.join(faults)}, at most {allowed:.0e} is allowed"

    def pytorch_seconds(self) -> tuple[float | None, str]:
        """Time scaled_dot_product_attention on the same arrays; return (None, reason) if it cannot be compared."""
        torch = pytorch()
        if torch is None:
            return None, "not installed"
        try:
            run = self._pytorch(torch)
            start = time.perf_counter()
            results = run()
            first_seconds = time.perf_counter() - start
            allowed = PYTORCH_TOLERANCE * TOLERANCE[self.problem.dtype]
            for name, array in zip(self.results, results, strict=False):  # PyTorch returns no lse
                if not _error(array[0].detach().double().numpy(), widened(self.arrays[name])) <= allowed:
                    return None, "another result"
            return best_seconds(run, first_seconds), ""
        except RuntimeError as error:
            return None, f"refused: {str(error).splitlines()[0]}"

    def _pytorch(self, torch: Any) -> Callable[[], tuple[Any, ...]]:
        """PyTorch's pass on these arrays; the backward pass excludes the forward pass."""

        def tensor(name: str) -> Any:
            array = self.arrays[name][None]
            if array.dtype == bfloat16:  # torch.from_numpy does not support this type
                return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            return torch.from_numpy(array)

        p, leaves = self.problem, [tensor(name) for name in ("q", "k", "v")]
        options: dict[str, Any] = {"enable_gqa": True} if p.group > 1 else {}
        if p.mask == Mask.causal():
            options["is_causal"] = True
        elif not p.mask.on(p.n_q, p.n_k).is_full:
            options["attn_mask"] = torch.from_numpy(self.attends(np.arange(p.n_q), np.arange(p.n_k)))

        def forward() -> tuple[Any, ...]:
            return (torch.nn.functional.scaled_dot_product_attention(*leaves, **options),)

        if not self.backward:
            return forward
        for leaf in leaves:
            leaf.requires_grad_()
        out, dout = forward(), tensor("dout")
        return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def best_seconds(run: Callable[[], object], first_seconds: float) -> float:
    """The time of one call, the best of a few measurements.

    first_seconds: the time of an earlier call, which is returned if it was long.
    """
    if first_seconds > ENOUGH_SECONDS:
        return first_seconds
    seconds = []
    for _ in range(ROUNDS):
        calls, start = 0, time.perf_counter()
        while not calls or time.perf_counter() - start < ROUND_SECONDS:
            run()
            calls += 1
        seconds.append((time.perf_counter() - start) / calls)
    return min(seconds)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Round float32 numbers to the nearest numbers of a type."""
    return array.astype(bfloat16 if dtype == "bfloat16" else dtype)


def widened(array: np.ndarray) -> np.ndarray:
    """Convert to float64."""
    return array.astype(np.float64)


def _checked_indices(n: int) -> np.ndarray:
    """CHECKED indices, evenly spaced over 0 .. n - 1."""
    return np.unique(np.linspace(0, n - 1, CHECKED).astype(int))


def _error(result: np.ndarray, expected: np.ndarray) -> float:
    """The relative error in the Frobenius norm; infinite if it is NaN."""
    result, expected = (np.where(np.isneginf(x), LOWEST, x) for x in (widened(result), expected))
    size = float(np.linalg.norm(expected))
    error = float(np.linalg.norm(result - expected)) / (size or 1.0)
    return error if error < np.inf else np.inf
