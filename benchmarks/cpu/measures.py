"""The measures of the CPU benchmark and their requirements: one `Measure` for each line of the table.

The `check` of a measure compares all its calls with float64; its `run` times them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.failures import Red
from benchmarks.common.gate import REDBLUE
from benchmarks.common.results import Figure, Limit, Row, read
from benchmarks.common.roof import OVER_LAST_CACHE, last_cache_bytes, multiply_adds, reads
from benchmarks.common.timing import THREADS, best_of, race, rate, ratio, seconds_of, spread
from benchmarks.cpu import gate, masked, tiles, training
from benchmarks.cpu.calls import DTYPES, SHORT, Call, on_threads
from benchmarks.cpu.peers import ONNXRUNTIME, OPENVINO, PYTORCH, contender, missing
from redblue.compiled import _core
from redblue.masks import Mask

DIMS = (64, 128, 256, 512)
ODD_DIMS = (40, 72, 80, 96, 160)
TILE_DIMS = (64, 128, 192, 256, 384, 576)
TILE_SIDES = (("forward", "float32"), ("backward", "float32"), ("forward", "bfloat16"), ("backward", "bfloat16"))
PEERS = (PYTORCH, ONNXRUNTIME, OPENVINO)
BEST_PEER, PEAK, DRAM = "best peer", "measured peak", "measured DRAM reads"


@dataclass
class Bench:
    """How to measure, and the errors of contenders that passed the gate. alone: without peers."""

    rounds: int = 15
    seconds: float = 0.1  # for each contender in each round
    alone: bool = False
    errors: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    wrong: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def peers(self) -> list[str]:
        return [] if self.alone else [peer for peer in PEERS if not missing(peer)]

    def check(self, *calls: Call) -> None:
        for call in calls:
            if call.title not in self.errors:
                self.errors[call.title], self.wrong[call.title] = gate.check(call, [REDBLUE, *self.peers])

    def timed(self, call: Call, peers: tuple[str, ...], work: float | None = None) -> dict[str, Callable[[], float]]:
        """Functions that measure the rates of the contenders that passed the gate."""
        runs = {}
        for peer in (REDBLUE, *(peer for peer in peers if peer in self.peers)):
            if peer in self.errors[call.title]:
                runs[peer] = partial(rate, contender(peer, call), work or call.flops / 1e9, self.seconds)
        return runs

    def note(self, call: Call, peers: tuple[str, ...]) -> str:
        """The reasons why peers are missing from a row."""
        if self.alone:
            return ""
        absent = [f"{peer}: not installed" for peer in peers if missing(peer)]
        wrong = self.wrong[call.title]
        return "; ".join([*absent, *(f"{peer}: {wrong[peer]}" for peer in peers if peer in wrong)])


@dataclass(frozen=True)
class Measure:
    """One line of the table. d: the head dimension by which --d selects; None if --d does not apply."""

    title: str
    check: Callable[[Bench], None]
    run: Callable[[Bench], Row]
    d: int | None = None


def _peak(bench: Bench, dtype: str) -> Callable[[], float]:
    """A function that measures the GFLOP/s of independent multiply-adds in the chosen instruction set."""
    measured = multiply_adds(dtype, bench.seconds)
    return lambda: measured() / 1e9


def compare(title: str, call: Call, peers: tuple[str, ...], limits: Mapping[str, Limit]) -> Measure:
    """Compare redblue with peers and the measured peak. limits: keys are BEST_PEER, names of peers, or PEAK."""

    def run(bench: Bench) -> Row:
        contenders = bench.timed(call, peers)
        if PEAK in limits:
            contenders[PEAK] = _peak(bench, call.dtype)
        rates = race(contenders, bench.rounds)
        figures, present = [], [peer for peer in peers if peer in rates]
        if BEST_PEER in limits and present:
            best = best_of(rates, present)
            figures.append(Figure(f"over {best} (best peer)", ratio(rates, REDBLUE, best), limits[BEST_PEER]))
        named = [peer for peer in present if peer in limits]
        figures += [Figure(f"over {peer}", ratio(rates, REDBLUE, peer), limits[peer]) for peer in named]
        if PEAK in limits:
            figures.append(Figure(f"of {PEAK}", ratio(rates, REDBLUE, PEAK), limits[PEAK], "%"))
        parameters = {"d": call.d, "dtype": call.dtype, "direction": call.direction}
        note = bench.note(call, peers)
        return Row(title, f"d {call.d}", figures, rates, note=note, parameters=parameters)

    return Measure(title, lambda bench: bench.check(call), run, call.d)


def causal(d: int) -> Measure:
    """Compare calls with a causal and a full mask: the causal mask removes half of the work."""
    title, full = "fp32 forward, causal", Call(d, n_q=4096, n_k=4096)
    half = Call(d, n_q=4096, n_k=4096, causal=True)

    def run(bench: Bench) -> Row:
        contenders = {}
        for call, name in ((full, "full"), (half, "causal")):
            timed = bench.timed(call, (PYTORCH,), 1)
            contenders |= {f"{peer}, {name}": measured for peer, measured in timed.items()}
        rates = race(contenders, bench.rounds)
        figures = [
            Figure(
                "time of causal / full",
                ratio(rates, "redblue, full", "redblue, causal"),
                Limit(0.58, 0.53),
                at_most=True,
            )
        ]
        if f"{PYTORCH}, causal" in rates:
            over = ratio(rates, "redblue, causal", f"{PYTORCH}, causal")
            figures.append(Figure(f"over {PYTORCH}, causal", over, Limit()))
        return Row(title, f"n 4096, d {d}", figures, rates, "calls/s", bench.note(full, (PYTORCH,)))

    return Measure(title, lambda bench: bench.check(full, half), run, d)


def avx2(d: int) -> Measure:
    """fp32 forward in separate processes in which REDBLUE_ISA selects avx2."""
    title = "avx2, fp32 forward"
    able = any(isa.name == "avx2" and isa.supported for isa in _core.list_isas())

    def in_own_process(*options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.cpu.attention",
            "--alone",
            "--only",
            "forward_fp32",
            "--d",
            str(d),
            *options,
        ]
        done = subprocess.run(command, env=os.environ | {"REDBLUE_ISA": "avx2"}, capture_output=True, text=True)
        if done.returncode:
            raise Red(f"{title}, d {d}: {done.stderr}")

    def run(bench: Bench) -> Row:
        if not able:
            return Row(title, f"d {d}", note="this CPU cannot run it")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "avx2.json"
            in_own_process("--rounds", str(bench.rounds), "--seconds", str(bench.seconds), "--json", str(path))
            _, (row,) = read(path)
        figures = [Figure(f"of its own {PEAK}", each.value, Limit(0.80, 0.90), "%") for each in row.figures]
        return Row(title, row.case, figures, row.rates, row.unit)

    return Measure(title, lambda bench: in_own_process("--check") if able else None, run, d)


def decoding(dtype: str) -> Measure:
    """One query and a long cache: bytes of K and V per second, compared with a loop that only reads the same bytes."""
    title = f"{SHORT[dtype]} decoding"
    bytes_per_head = 2 * 65_536 * 128 * DTYPES[dtype].itemsize
    heads = max(4, -(-OVER_LAST_CACHE * last_cache_bytes() // bytes_per_head))
    call = Call(128, dtype, n_q=1, n_k=65_536, heads=heads)
    moved = heads * bytes_per_head

    def run(bench: Bench) -> Row:
        contenders = bench.timed(call, (PYTORCH,), moved / 1e9)
        measured = reads(moved, bench.seconds)
        contenders[DRAM] = lambda: measured() / 1e9
        rates = race(contenders, bench.rounds)
        figures = [Figure(f"of {DRAM}", ratio(rates, REDBLUE, DRAM), Limit(0.80, 0.95), "%")]
        if PYTORCH in rates:
            figures.append(Figure(f"over {PYTORCH}", ratio(rates, REDBLUE, PYTORCH), Limit()))
        case = f"n_k 65,536, H {call.heads}, d 128"
        return Row(title, case, figures, rates, "GB/s", bench.note(call, (PYTORCH,)))

    return Measure(title, lambda bench: bench.check(call), run)


def scaling() -> Measure:
    """Compare thread counts on one head, backward, so that threads can only divide the work within the head."""
    title, call = "scaling to 2 threads", Call(64, "float32", "backward", 4096, 4096, heads=1)

    def run(bench: Bench) -> Row:
        contenders = {}
        for name, timed in bench.timed(call, (PYTORCH,)).items():
            for threads in (1, THREADS):
                contenders[f"{name}, {threads} thread{'s' * (threads > 1)}"] = partial(on_threads, threads, timed)
        rates = race(contenders, bench.rounds)
        figures = []
        for name, limit in ((REDBLUE, Limit(1.8)), (PYTORCH, Limit())):
            if f"{name}, 1 thread" in rates:
                scaled = ratio(rates, f"{name}, {THREADS} threads", f"{name}, 1 thread")
                figures.append(Figure(f"{name} over 1 thread", scaled, limit))
        return Row(title, "backward, H 1, n 4096", figures, rates, note=bench.note(call, (PYTORCH,)))

    return Measure(title, lambda bench: bench.check(call), run)


def gpt(autocast: bool) -> Measure:
    """Compare training steps of a small GPT with the attention of redblue and of PyTorch."""
    title, case = "GPT training step", "bf16 autocast" if autocast else "fp32"

    def check(bench: Bench) -> None:
        bench.errors[f"{title}, {case}"] = training.check(autocast)

    def run(bench: Bench) -> Row:
        steps = {name: training.trainer(attention, autocast) for name, attention in training.ATTENTION.items()}
        rates = race({name: partial(rate, step, 1, bench.seconds) for name, step in steps.items()}, bench.rounds)
        return Row(
            title, case, [Figure(f"over {PYTORCH}", ratio(rates, REDBLUE, PYTORCH), Limit(1.0))], rates, "steps/s"
        )

    return Measure(title, check, run)


def overhead() -> Measure:
    """Compare the times of calls with almost no arithmetic."""
    title, call, times = "overhead of a call", Call(8, n_q=4, n_k=4, heads=1), 200

    def run(bench: Bench) -> Row:
        contenders = {}
        for name in (REDBLUE, PYTORCH):
            run_once = contender(name, call)

            def many(run_once: Callable[[], object] = run_once) -> None:
                with torch.no_grad():
                    for _ in range(times):
                        run_once()

            contenders[name] = partial(rate, many, times / 1e6, bench.seconds)
        rates = race(contenders, bench.rounds)
        more = spread([1 / a - 1 / b for a, b in zip(rates[REDBLUE], rates[PYTORCH], strict=True)])
        figures = [Figure(f"more than {PYTORCH}", more, Limit(10), "us", at_most=True)]
        return Row(title, "forward, H 1, n 4, d 8", figures, rates, "M calls/s")

    return Measure(title, lambda bench: bench.check(call), run)


NEIGHBOUR = Call(64, n_q=256, n_k=256)


def matmul_after_attention() -> Measure:
    """Time PyTorch's matmul right after attention, to see whether redblue's idle threads slow it down."""
    title = "PyTorch's matmul after attention"

    def run(bench: Bench) -> Row:
        matmul, rates = _matmul(), {}
        runs = {name: contender(name, NEIGHBOUR) for name in (REDBLUE, PYTORCH)}
        contenders = {name: partial(_second, run, matmul, bench.seconds) for name, run in runs.items()}
        rates = race(contenders, bench.rounds)
        slower = ratio(rates, PYTORCH, REDBLUE)
        figures = [Figure("time, over that after SDPA", slower, Limit(1.05), at_most=True)]
        return Row(title, "512 x 512", figures, rates, "calls/s")

    return Measure(title, lambda bench: bench.check(NEIGHBOUR), run)


def attention_after_matmul() -> Measure:
    """Time attention right after PyTorch's matmul, whose threads keep spinning for a while; without requirement."""
    title = "redblue after PyTorch's matmul"

    def run(bench: Bench) -> Row:
        ours = contender(REDBLUE, NEIGHBOUR)
        before = {"after a matmul": _matmul(), "after itself": ours}
        contenders = {name: partial(_second, first, ours, bench.seconds) for name, first in before.items()}
        rates = race(contenders, bench.rounds)
        slower = ratio(rates, "after itself", "after a matmul")
        figures = [Figure("time, over that after itself", slower, Limit(), at_most=True)]
        return Row(title, "forward, n 256", figures, rates, "calls/s")

    return Measure(title, lambda bench: bench.check(NEIGHBOUR), run)


def _matmul() -> Callable[[], object]:
    a, b, c = (torch.randn(512, 512) for _ in range(3))
    return lambda: torch.mm(a, b, out=c)


def _second(first: Callable[[], object], second: Callable[[], object], seconds: float) -> float:
    """Calls per second of `second`. Only `second` is timed, right after a call of `first`."""
    elapsed, count, end = 0.0, 0, perf_counter() + seconds
    while perf_counter() < end:
        first()
        elapsed += seconds_of(second)
        count += 1
    return count / elapsed


def tile(direction: str, dtype: str, d: int) -> Measure:
    """Compare the planned tile with the best tile of a grid."""
    title, call = f"tiles, {SHORT[dtype]} {direction}", Call(d, dtype, direction)

    def run(bench: Bench) -> Row:
        rates, plan, best, tried = tiles.sweep(call, max(3, bench.rounds // 2), bench.seconds)
        rates = {name: [value / 1e9 for value in values] for name, values in rates.items()}
        figures = [Figure(f"plan {plan} of best {best}", ratio(rates, plan, best), Limit(0.95), "%")]
        return Row(title, f"d {d}", figures, rates, parameters={"tiles_tried": tried, "plan": plan, "best": best})

    return Measure(title, lambda bench: bench.check(call), run, d)


def masks() -> dict[str, list[Measure]]:
    by_name: dict[str, list[Measure]] = {}
    for name, title, checked, run in masked.CASES:

        def check(bench: Bench, checked: Callable[[], list[Mask]] = checked) -> None:
            for mask in checked():
                masked.check(mask)

        by_name.setdefault(name, []).append(Measure(title, check, run))
    return by_name


def measures() -> dict[str, list[Measure]]:
    """All measures; the keys are the names that --only takes."""
    bf16 = {PEAK} if _core.choose_isa().has_bfloat16 else set()

    def over_dims(direction: str, dtype: str, peers: tuple[str, ...], limits: dict[str, Limit]) -> list[Measure]:
        kept = {name: limit for name, limit in limits.items() if name != PEAK or dtype == "float32" or bf16}
        return [compare(f"{SHORT[dtype]} {direction}", Call(d, dtype, direction), peers, kept) for d in DIMS]

    all_peers, torch_only = (PYTORCH, ONNXRUNTIME, OPENVINO), (PYTORCH,)
    fp16 = [Call(d, "float16", direction) for direction in ("forward", "backward") for d in DIMS[:2]]
    odd = [Call(d, "float32", direction) for direction in ("forward", "backward") for d in ODD_DIMS]
    half_as_fast_again = {PYTORCH: Limit(1.5)}
    return {
        "forward_fp32": over_dims("forward", "float32", all_peers, {BEST_PEER: Limit(1.15), PEAK: Limit(0.80, 0.90)}),
        "backward_fp32": over_dims("backward", "float32", torch_only, {PYTORCH: Limit(2), PEAK: Limit(0.65, 0.80)}),
        "forward_bf16": over_dims(
            "forward",
            "bfloat16",
            (PYTORCH, OPENVINO),
            {OPENVINO: Limit(1.1), PYTORCH: Limit(3), PEAK: Limit(None, 0.75)},
        ),
        "backward_bf16": over_dims("backward", "bfloat16", torch_only, {PYTORCH: Limit(1.6), PEAK: Limit(None, 0.60)}),
        "causal": [causal(d) for d in DIMS[:2]],
        "avx2": [avx2(d) for d in DIMS],
        "decoding": [decoding(dtype) for dtype in ("float32", "bfloat16")],
        "fp16": [compare(f"fp16 {call.direction}", call, torch_only, half_as_fast_again) for call in fp16],
        "odd": [compare(f"fp32 {call.direction}, odd d", call, torch_only, half_as_fast_again) for call in odd],
        "scaling": [scaling()],
        "training": [gpt(autocast) for autocast in (False, True)],
        "overhead": [overhead()],
        "neighbours": [matmul_after_attention(), attention_after_matmul()],
        "tiles": [tile(*sides, d) for sides in TILE_SIDES for d in TILE_DIMS],
        **masks(),
    }
