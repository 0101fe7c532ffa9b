"""One call of the compiled CPU kernel: its arrays, the call itself, what float64 says of some rows, and PyTorch's time.

bfloat16, which NumPy lacks, is held as the upper halves of float32's bits.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from redblue.kernels.cpu import call as cpu
from redblue.kernels.cpu import plan
from redblue.kernels.cpu.arrays import described
from redblue.kernels.cpu.mask_form import attended
from redblue.lab import reference
from redblue.masks import Mask
from redblue.op import api
from redblue.op.checks import check_dtypes, check_shapes, check_widths_on_cpu
from redblue.problem import Problem

# Largest error of a result's checked rows against float64, relative in the Frobenius norm; results of 16 bits carry
# one rounding, and those of bfloat16 that of P and dS before it. PyTorch's may be some times as far from ours.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
PYTORCH_TOLERANCE = 4

CHECKED = 5  # rows, and keys, that are held against float64
TURNS, TURN_SECONDS = 3, 0.02  # the best turn counts; each is as many calls as take so long
ENOUGH_SECONDS = 0.5  # of a first call, not to be repeated

FORWARD = ("q", "k", "v", "out", "lse")
BACKWARD = (*FORWARD, "dout", "dq", "dk", "dv", "delta")
LOWEST = -1e4  # stands for -inf: the log-sum-exp of a row that attends nothing


def pytorch() -> Any:
    """The module, or None where it cannot be imported. Once it is loaded, kernels use as many threads as it does."""
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError):
        return None


def sizes_of(problem: Problem) -> cpu.Sizes:
    """As the kernel is told, for problems of one batch. Raises RedblueError, saying why, for what it cannot take."""
    p = problem
    check_dtypes({"the arrays": p.dtype})
    sizes = check_shapes((p.heads, p.n_q, p.d), (p.kv_heads, p.n_k, p.d), (p.kv_heads, p.n_k, p.d_v))
    check_widths_on_cpu(sizes)
    return sizes


def computed_in(dtype: str) -> str:
    """The type of the numbers that the kernel multiplies."""
    return plan.DTYPES[cpu.isa().packed_bytes(cpu.NUMBERS[dtype])]


class Call:
    """A problem of one batch, forward or backward, on random numbers. Raises RedblueError where no kernel takes it."""

    def __init__(self, problem: Problem) -> None:
        pytorch()  # before the threads are counted
        self.problem, self.sizes, self.threads = problem, sizes_of(problem), api.default_threads()
        self.backward = problem.direction == "backward"
        self.tile = cpu.plan_tile(problem.direction, self.sizes, problem.dtype)
        self.scale = problem.d**-0.5
        p, rng = problem, np.random.default_rng(0)
        sums = np.float64 if p.dtype == "float64" else np.float32
        widths = {"q": p.d, "dq": p.d, "k": p.d, "dk": p.d} | dict.fromkeys(("v", "dv", "out", "dout"), p.d_v)
        self.arrays: dict[str, np.ndarray] = {}
        for name in BACKWARD if self.backward else FORWARD:
            heads, n = (p.kv_heads, p.n_k) if name in ("k", "v", "dk", "dv") else (p.heads, p.n_q)
            if name in ("lse", "delta"):
                self.arrays[name] = np.full((heads, n, 1), np.nan, sums)
            elif name in ("q", "k", "v", "dout"):
                self.arrays[name] = rounded(rng.standard_normal((heads, n, widths[name]), np.float32), p.dtype)
            else:  # whatever is not written stays NaN, and is found
                self.arrays[name] = rounded(np.full((heads, n, widths[name]), np.nan, np.float32), p.dtype)
        if self.backward:
            self._pass(cpu.forward, FORWARD, cpu.plan_tile("forward", self.sizes, p.dtype))

    def run(self) -> tuple[int, int]:
        """Once; returns the words read and written."""
        if self.backward:
            return self._pass(cpu.backward, BACKWARD, self.tile)
        return self._pass(cpu.forward, FORWARD, self.tile)

    def _pass(self, kernel: Callable[..., tuple[int, int]], names: tuple[str, ...], tile: cpu.Tile) -> tuple[int, int]:
        p = self.problem
        arrays = (described(self.arrays[name]) for name in names)
        mask = attended(p.mask, self.sizes, p.dtype, p.direction)
        return kernel(self.sizes, p.dtype, *arrays, mask=mask, scale=self.scale, threads=self.threads, tile=tile)

    @property
    def results(self) -> tuple[str, ...]:
        return ("dq", "dk", "dv") if self.backward else ("out", "lse")

    def errors(self) -> dict[str, float]:
        """Of each result's checked rows, against float64; infinite where anything at all is NaN.

        Gradients are held against those that follow from the out and lse that the backward pass is given.
        """
        rows, keys = _some(self.problem.n_q), _some(self.problem.n_k)
        q, k, v = (widened(self.arrays[name]) for name in ("q", "k", "v"))
        if not self.backward:
            attends = self.attends(rows, np.arange(self.problem.n_k))
            found = reference.forward(q[:, rows], k, v, attends)
            wanted = {"out": found.out, "lse": found.lse[..., None]}
        else:
            p, ds = self._tile(rows, np.arange(self.problem.n_k), q, k, v)
            wanted = {"dq": ds @ k * self.scale}
            p, ds = self._tile(np.arange(self.problem.n_q), keys, q, k, v)
            dout = widened(self.arrays["dout"])
            # Query heads that share a key head add up.
            of_key = {"dk": ds.swapaxes(-1, -2) @ q * self.scale, "dv": p.swapaxes(-1, -2) @ dout}
            wanted |= {name: x.reshape(len(k), -1, *x.shape[1:]).sum(axis=1) for name, x in of_key.items()}
        checked = {"dk": keys, "dv": keys}
        return {
            name: _error(self.arrays[name][:, checked.get(name, rows)], exact)
            if not _has_nan(self.arrays[name])
            else np.inf
            for name, exact in wanted.items()
        }

    def _tile(self, rows: np.ndarray, keys: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Any:
        """P and dS of some queries and some keys."""
        lse, out, dout = (widened(self.arrays[name][:, rows]) for name in ("lse", "out", "dout"))
        scores = q[:, rows] @ k[:, keys].swapaxes(-1, -2) * self.scale
        with np.errstate(over="ignore", invalid="ignore"):
            p = np.where(self.attends(rows, keys), np.exp(scores - lse), 0.0)
        return p, p * (dout @ v[:, keys].swapaxes(-1, -2) - (dout * out).sum(axis=-1, keepdims=True))

    def attends(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Boolean (rows, keys)."""
        pairs = self.problem.mask.on(self.problem.n_q, self.problem.n_k)
        return np.concatenate([pairs.dense(range(row, row + 1), range(self.problem.n_k)) for row in rows])[:, keys]

    def wrong(self) -> str:
        """What is too far from float64; "" if nothing is."""
        allowed = TOLERANCE[self.problem.dtype]
        far = [f"{name} {error:.1e}" for name, error in self.errors().items() if not error <= allowed]
        return f"relative errors against float64 of {', '.join(far)}, at most {allowed:.0e} is allowed" if far else ""

    def pytorch_seconds(self) -> tuple[float | None, str]:
        """Of scaled_dot_product_attention on the same numbers; or None and why there are none."""
        torch = pytorch()
        if torch is None:
            return None, "not installed"
        try:
            run = self._pytorch(torch)
            start = time.perf_counter()
            found = run()
            first_seconds = time.perf_counter() - start
            most = PYTORCH_TOLERANCE * TOLERANCE[self.problem.dtype]
            for name, array in zip(self.results, found, strict=False):  # it gives no lse
                if not _error(array[0].detach().double().numpy(), widened(self.arrays[name])) <= most:
                    return None, "another result"
            return best_seconds(run, first_seconds), ""
        except RuntimeError as error:
            return None, f"refused: {str(error).splitlines()[0]}"

    def _pytorch(self, torch: Any) -> Callable[[], tuple[Any, ...]]:
        """PyTorch's pass on these arrays; the backward one without the forward one."""

        def tensor(name: str) -> Any:
            array = self.arrays[name][None]
            if array.dtype == np.uint16:
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
    """Of one call, in the best of a few turns. It has run once before; if that took long, it is the measurement."""
    if first_seconds > ENOUGH_SECONDS:
        return first_seconds
    turns = []
    for _ in range(TURNS):
        calls, start = 0, time.perf_counter()
        while not calls or time.perf_counter() - start < TURN_SECONDS:
            run()
            calls += 1
        turns.append((time.perf_counter() - start) / calls)
    return min(turns)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 numbers in the type, to nearest."""
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(array: np.ndarray) -> np.ndarray:
    """In float64."""
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _some(n: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, CHECKED).astype(int))


def _has_nan(array: np.ndarray) -> bool:
    return bool(((array & 0x7FFF) > 0x7F80).any() if array.dtype == np.uint16 else np.isnan(array).any())


def _error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Relative, in the Frobenius norm; infinite for NaN."""
    got, wanted = (np.where(np.isneginf(x), LOWEST, x) for x in (widened(got), wanted))
    size = float(np.linalg.norm(wanted))
    error = float(np.linalg.norm(got - wanted)) / (size or 1.0)
    return error if error < np.inf else np.inf
