"""Run every kernel once, at d 64 and 512, and compare the first and the last head with float64: `.ci/gpu once`.

Each case runs in a worker process, so that a crash or a hang costs one case. Then the cases run again under
compute-sanitizer, if it is installed, which detects accesses outside of arrays. It gets a third of the time. Kernels
are compiled beforehand on all cores. If the time ends early, the last cases do not run, and their titles are printed.
Sizes are odd, heads share key heads, and each array is allocated directly by the driver, so that the sanitizer
knows its bounds.

--dry needs no GPU: it makes smaller calls under Triton's interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
os.environ["REDBLUE_TUNE"] = "0"

import torch  # pyright: ignore[reportMissingImports]
from rich.console import Console

import redblue as rb
from benchmarks.common.failures import Red
from benchmarks.common.gate import relative_errors
from benchmarks.common.options import console, parser_of
from benchmarks.common.places import RESULTS
from benchmarks.gpu.ahead import candidate, side_by_side, warm
from benchmarks.gpu.worker import Failed, Here, Late, Worker
from redblue.base.files import replace_whole
from redblue.kernels.gpu.planning.card import card_of, planning_for
from redblue.kernels.table import tiled_kernels

KEPT = RESULTS / "once.json"
MAX_ERROR = {"float16": 5e-3, "bfloat16": 3e-2}  # relative, in the Frobenius norm
BUDGET_SECONDS = 90.0
COMPILING, WATCHED = 0.4, 1 / 3  # parts of the budget: at most for compiling, and for the sanitizer
# A call that occupies the whole card, which the kernels for Hopper GPUs require
BUSY: dict[str, Any] = {"n_q": 601, "n_k": 777, "heads": 24, "kv_heads": 12}
CANDIDATES = 3  # of each plan that run, because tuning may choose any
CASE_SECONDS = 20.0
SILENT_SECONDS = 40  # of a silent sanitizer, which also starts slowly
SANITIZERS = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
DRY_WIDTHS = {64: 16, 512: 24}  # from d to the width of dry calls
FAULT = re.compile(r"^=+ (Invalid|Misaligned|Program hit|.*[Oo]ut of bounds)")


@dataclass(frozen=True)
class Case:
    """A call of redblue.

    options: names of arrays in `arrays_of`; "causal", "window", "late window" or "blocks" (a mask given as a list of
    tiles); "nan" (NaN in the keys that no query attends).
    """

    d: int
    schedule: str = "auto"
    options: tuple[str, ...] = ()
    d_v: int = 0
    n_q: int = 301
    n_k: int = 333
    heads: int = 6
    kv_heads: int = 3
    page: int = 0  # 0: no pages; else forward only
    dtype: str = "bfloat16"
    candidate: int = 0  # the index of the plan's launch that runs; the last launch if there are fewer

    @property
    def title(self) -> str:
        width = f"d {self.d}" + f"/{self.d_v}" * bool(self.d_v)
        more = "pages" * bool(self.page), f"candidate {self.candidate}" * bool(self.candidate)
        return ", ".join((self.schedule, width, f"n {self.n_q} x {self.n_k}", *self.options, *filter(None, more)))


def cases() -> Iterator[Case]:
    """Different cases for every kernel. The first ones launch each kernel once."""
    yield from dict.fromkeys((*first_cases(), *_more_cases()))


def first_cases() -> Iterator[Case]:
    """Few cases that launch each kernel once, most used kernels first."""
    yield Case(64, options=("causal",), **BUSY)
    yield Case(512, options=("causal",), **BUSY)
    yield Case(64, n_q=1, n_k=999, page=16)
    for schedule in tiled_kernels("gpu", "forward"):
        yield Case(64, schedule, ("causal",))
    yield Case(64, options=("bias", "softcap", "sinks", "alibi"), dtype="float16")


def _more_cases() -> Iterator[Case]:
    for d in (64, 512):
        for schedule in tiled_kernels("gpu", "forward"):
            yield Case(d, schedule, ("causal",))
    for d in (64, 128, 256, 512):
        for options in ((), ("causal",)):
            yield Case(d, options=options, **BUSY)
    yield Case(128, options=("window",), **BUSY)
    yield Case(64, options=("late window", "nan"), **BUSY)
    for d in (64, 512):
        yield Case(d)
        yield Case(d, n_q=1, n_k=4999)
        yield Case(d, n_q=1, n_k=999, page=16)
        yield Case(d, options=("blocks",))
    yield Case(128, options=("causal",))
    yield Case(256, options=("causal",))
    yield Case(576, d_v=512, options=("causal",))
    yield Case(576, d_v=512, n_q=1, n_k=999, kv_heads=1, page=16)
    yield Case(40, options=("causal",))
    for d in (64, 512):
        yield Case(d, options=("bias", "softcap", "sinks", "alibi"), dtype="float16")
    yield Case(64, options=("dropout",), dtype="float16")
    for number in range(1, CANDIDATES):
        for d in (64, 128, 256, 512):
            yield Case(d, options=("causal",), candidate=number, **BUSY)


@dataclass
class Outcome:
    """errors: by result, the larger error of the first and the last head. faults: the sanitizer's messages."""

    case: Case
    tool: str  # "none" or "memcheck"
    errors: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not self.failure and not self.faults


def arrays_of(case: Case, device: str, like: Callable[..., torch.Tensor] = torch.randn) -> dict[str, torch.Tensor]:
    """q, k, v and the options that are arrays."""
    if like is torch.randn:
        torch.manual_seed(case.d)
    kind: dict[str, Any] = {"dtype": getattr(torch, case.dtype), "device": device}
    d_v = case.d_v or case.d
    arrays = {
        "q": like(2, case.heads, case.n_q, case.d, **kind),
        "k": like(2, case.kv_heads, case.n_k, case.d, **kind),
        "v": like(2, case.kv_heads, case.n_k, d_v, **kind),
    }
    sums = kind | {"dtype": torch.float32}
    if "bias" in case.options:
        arrays["bias"] = like(case.heads, 1, case.n_k, **sums)
    if "sinks" in case.options:
        arrays["sinks"] = like(case.heads, **sums)
    return arrays


def options_of(case: Case, device: str) -> dict[str, Any]:
    """The options that are not arrays with gradients."""
    options: dict[str, Any] = {}
    if "causal" in case.options:
        options["mask"] = rb.Mask.causal()
    if "window" in case.options:
        options["mask"] = rb.Mask.sliding_window(100, 20)
    if "late window" in case.options:
        options["mask"] = _late_window(case)
    if "blocks" in case.options:
        block = max(8, case.n_k // 10)
        layout = [[(3 * i + j) % 4 < 2 for j in range(-(-case.n_k // block))] for i in range(-(-case.n_q // block))]
        options["mask"] = rb.Mask.blocks(layout, block)
    if "softcap" in case.options:
        options["softcap"] = 5.0
    if "alibi" in case.options:
        options["alibi"] = torch.linspace(0.01, 0.1, case.heads, device=device)
    if "dropout" in case.options:
        options |= {"dropout": 0.3, "seed": 11}
    return options


def _late_window(case: Case) -> rb.Mask:
    """A window that leaves out the first keys: half of those that exceed the queries."""
    return rb.Mask.sliding_window((case.n_k - case.n_q) // 2, 0, align="bottom-right")


def attended(case: Case, arrays: dict[str, torch.Tensor], schedule: str, backward: bool) -> dict[str, torch.Tensor]:
    """The output and, unless there are pages, the gradients of its weighted sum with fixed weights."""
    leaves = {name: x.detach().requires_grad_(backward) for name, x in arrays.items()}
    device = arrays["q"].device
    out = rb.attention(**leaves, **options_of(case, str(device)), **({"schedule": schedule} if schedule else {}))
    results = {"out": out.detach()}
    if backward:
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(device, out.dtype)
        grads = torch.autograd.grad(out, list(leaves.values()), weights)
        results |= {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return results


def paged(case: Case, arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The output on keys and values in pages, in reverse order."""
    q, per_sequence = arrays["q"], -(-case.n_k // case.page)
    pages = torch.arange(2 * per_sequence).flip(0).view(2, per_sequence)

    def in_pages(x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.pad(x, (0, 0, 0, -case.n_k % case.page)).view(
            2, case.kv_heads, per_sequence, case.page, -1
        )
        return x.permute(0, 2, 3, 1, 4).reshape(2 * per_sequence, case.page, case.kv_heads, -1).flip(0).contiguous()

    keys, values, lengths = in_pages(arrays["k"]), in_pages(arrays["v"]), torch.full((2,), case.n_k)
    out = rb.attention_paged(q.transpose(1, 2).contiguous(), keys, values, pages, lengths)
    return {"out": out.transpose(1, 2)}


def worst_error(name: str, result: torch.Tensor, exact: torch.Tensor) -> float:
    """The larger error of the first head of the first sequence and the last head of the last one."""
    if result.dim() < 4:  # gradients of options are compared as a whole
        return relative_errors([result.cpu()], [exact])[0]
    return max(relative_errors([result[i, i].cpu()], [exact[i, i]])[0] for i in (0, -1))


class Cases:
    """Makes cases on one device and compares them with float64 on the CPU."""

    def __init__(self, device: str) -> None:
        self.device = device

    def make(self, case: Case) -> dict[str, float]:
        """The errors of a case. Raises Red if they are too large."""
        arrays = arrays_of(case, "cpu")
        if "nan" in case.options:
            unattended = torch.from_numpy(~options_of(case, "cpu")["mask"].to_dense(case.n_q, case.n_k).any(0))
            arrays["k"][:, :, unattended] = arrays["v"][:, :, unattended] = torch.nan
        with torch.random.fork_rng(devices=[]):
            exact = attended(case, {name: x.double() for name, x in arrays.items()}, "", not case.page)
        inputs = {name: x.to(self.device) for name, x in arrays.items()}
        with _interpreted() if self.device == "cpu" else contextlib.nullcontext(), candidate(case.candidate):
            results = paged(case, inputs) if case.page else attended(case, inputs, case.schedule, True)
        errors = {name: worst_error(name, x, exact[name]) for name, x in results.items()}
        if not all(error <= MAX_ERROR[case.dtype] for error in errors.values()):
            raise Red(", ".join(f"{name} {error:.1e}" for name, error in errors.items()))
        return errors


def _interpreted() -> contextlib.AbstractContextManager[None]:
    from redblue.op.pytorch.interpreted import interpreted

    return interpreted()


def on_device() -> Cases:
    return Cases("cuda")


def dry() -> Cases:
    return Cases("cpu")


def compiled(task: tuple[Case, Any]) -> None:
    """Compile the kernels of a case without touching the device."""
    from redblue.kernels.gpu.planning.fit import standing_in
    from redblue.op.pytorch import gpu, ops

    case, card = task
    with contextlib.suppress(Exception), warm(), standing_in(card.arch), planning_for(card), ops.substituted(by=gpu):
        arrays = arrays_of(case, "cpu", torch.empty)
        with candidate(case.candidate):
            paged(case, arrays) if case.page else attended(case, arrays, case.schedule, True)


class Outcomes:
    """The outcomes, written to a file one by one."""

    def __init__(self, path: Path, console: Console) -> None:
        self.path, self.console, self.all = path, console, list[Outcome]()

    def add(self, outcome: Outcome) -> None:
        self.all.append(outcome)
        text = ",\n".join(json.dumps(asdict(each)) for each in self.all)
        replace_whole(self.path, lambda draft: draft.write_text(f"[\n{text}\n]\n", encoding="utf-8"))
        worst = max(outcome.errors.values(), default=0.0)
        verdict = outcome.failure or "; ".join(outcome.faults) or f"right, {worst:.1e}, {outcome.seconds:.1f} s"
        tool = "" if outcome.tool == "none" else f" under {outcome.tool}"
        self.console.print(
            f"{outcome.case.title}{tool}: {verdict}", style=None if outcome.right else "red", highlight=False
        )


def plain(todo: list[Case], worker: Worker | Here, end: float, kept: Outcomes) -> None:
    """Each case in a worker that is replaced after a crash. A case that the end cuts off counts as not run."""
    for case in todo:
        start = time.monotonic()
        if start >= end:
            break
        outcome = Outcome(case, "none")
        try:
            outcome.errors = worker.ask("make", case, seconds=min(CASE_SECONDS, end - start))
        except Late as failure:
            if end - start < CASE_SECONDS:
                break
            outcome.failure = str(failure)
        except Failed as failure:
            outcome.failure = str(failure)
        outcome.seconds = time.monotonic() - start
        kept.add(outcome)
    worker.end()


def sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or next((path for path in SANITIZERS if Path(path).is_file()), None)


def sanitized(todo: list[Case], end: float, kept: Outcomes) -> None:
    """Run all cases in one process under the sanitizer; after a crash, the remaining cases in another process."""
    tool, left = sanitizer(), list(todo)
    if tool is None:
        kept.console.print("no compute-sanitizer, so accesses are not checked", style="yellow")
        return
    while left and time.monotonic() < end:
        numbers = ",".join(str(todo.index(case)) for case in left)
        command = [tool, "--tool", "memcheck", "--print-limit", "8", sys.executable, "-m", "benchmarks.gpu.once"]
        done = _followed([*command, "--inside", numbers], todo, end, kept)
        left = left[max(1, done) :]


def _followed(command: list[str], todo: list[Case], end: float, kept: Outcomes) -> int:
    """Run the sanitizer on cases and store their outcomes as they are printed.

    Returns the number of cases that began.
    """
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    current: Outcome | None = None
    began, start, last = 0, 0.0, ""
    for line in _lines(command, environment, end):
        last = line or last
        if line.startswith("CASE "):
            current, began, start = Outcome(todo[int(line[5:])], "memcheck"), began + 1, time.monotonic()
        elif line.startswith("DONE ") and current:
            outcome = json.loads(line[5:])
            current.errors, current.failure = outcome["errors"], outcome["failure"]
            current.seconds = time.monotonic() - start
            kept.add(current)
            current = None
        elif FAULT.match(line) and current:
            current.faults.append(line.strip("= "))
    if current and time.monotonic() < end:
        hung = time.monotonic() - start > SILENT_SECONDS
        current.failure = f"silent for {SILENT_SECONDS} s" if hung else f"the process ended: {last.strip('= ')}"
        kept.add(current)
    elif not began:
        kept.console.print(f"the sanitizer ran no case: {last}", style="yellow", highlight=False)
    return began


def _lines(command: list[str], environment: dict[str, str], end: float) -> Iterator[str]:
    """The lines that a command prints until it ends.

    It is killed if it is silent too long, or when the time is over.
    """
    with (
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        kept = b""
        while True:
            if not selector.select(max(0.0, min(SILENT_SECONDS, end - time.monotonic()))):
                os.killpg(process.pid, 9)
                return
            some = os.read(process.stdout.fileno(), 1 << 16)
            if not some:
                return
            *lines, kept = (kept + some).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)


def inside(numbers: str) -> None:
    """Run the cases of these numbers and print each outcome. The sanitizer watches this process."""
    every, maker = list(cases()), on_device()
    for number in map(int, numbers.split(",")):
        print(f"CASE {number}", flush=True)
        outcome: dict[str, Any] = {"errors": {}, "failure": ""}
        try:
            outcome["errors"] = maker.make(every[number])
            torch.cuda.synchronize()
        except Exception as failure:  # the next case may still run
            outcome["failure"] = f"{type(failure).__name__}: {failure}".split("\n")[0]
        print(f"DONE {json.dumps(outcome)}", flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--dry", action="store_true", help="without a GPU: smaller calls, interpreted")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds (%(default)s)")
    parser.add_argument("--json", type=Path, default=KEPT, help=f"file for the results ({KEPT.name})")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside)
        return
    end, out = time.monotonic() + options.budget, console()
    kept, todo = Outcomes(options.json, out), list(cases())
    if options.dry:
        todo = list(dict.fromkeys(smaller(case) for case in todo if case.d in DRY_WIDTHS and not case.candidate))
        plain(todo, Here(dry), end, kept)
    else:
        if not torch.cuda.is_available():
            sys.exit("no GPU that PyTorch sees: run this where there is one, or --dry --json FILE to see that it works")
        card = card_of(torch.device("cuda"))
        side_by_side(compiled, [(case, card) for case in todo], COMPILING * options.budget, out)
        plain(todo, Worker(on_device), end - (WATCHED * options.budget if sanitizer() else 0), kept)
        sanitized(todo, end, kept)
    sys.exit(summarized(todo, kept))


def summarized(todo: list[Case], kept: Outcomes) -> bool:
    """Print the calls that the time did not suffice for, and the numbers of calls. Returns whether any was wrong."""
    ran = [outcome.case for outcome in kept.all if outcome.tool == "none"]
    watched, wrong = len(kept.all) - len(ran), sum(not outcome.right for outcome in kept.all)
    if missing := [case.title for case in todo if case not in ran]:
        kept.console.print(f"not run, because the time was over: {'; '.join(missing)}", style="yellow", highlight=False)
    counts = f"{len(ran)} of {len(todo)} calls, {watched} watched for bad accesses"
    kept.console.print(f"{counts}; {wrong} wrong", highlight=False)
    return bool(wrong)


def smaller(case: Case) -> Case:
    """A smaller call, for the slow interpreter."""
    lengths = {"n_q": min(case.n_q, 9), "n_k": min(case.n_k, 21)}
    return replace(case, d=DRY_WIDTHS[case.d], heads=2, kv_heads=1, **lengths)


if __name__ == "__main__":
    main()
