"""Compare redblue's attention over processes with ring-flash-attn's and yunchang's, which run redblue's kernels.

The packages get redblue as their flash_attn (`redblue.integrations.flash_attn.install`), so that only the distribution
differs. All contenders alternate in the same processes, over gloo, in bfloat16, with d 64: on one computer or, with
--gbit, over links between network namespaces. Before anything is timed, outputs are compared with a single process, and
gradients with redblue's. Ratios are medians over the rounds. The window is n/16; only those
functions of the packages are compared that give correct results for a window.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import redblue as rb
from benchmarks.common.options import at_least, parser_of
from benchmarks.common.timing import seconds_of, with_seconds
from benchmarks.network import links, local
from redblue.catalogue.detect import detect_cpu

D = 64
TOLERANCE = 2e-2  # relative error of bfloat16 outputs and gradients, in the Euclidean norm


def measure(n: int, heads: int, rounds: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """{mask: {contender: {"forward" | "both": seconds of each round, until the last process is done}}}."""
    import torch  # pyright: ignore[reportMissingImports]

    from redblue.integrations import flash_attn

    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(1, n, heads, D, generator=generator).bfloat16() for _ in range(3)]
    seconds: dict[str, Any] = {}
    with flash_attn.install():
        for name, mask, placement in (
            ("causal", rb.Mask.causal(), "zigzag"),
            ("window", rb.Mask.sliding_window(n // 16), "contiguous"),
        ):
            calls = contenders(name, n, mask, placement)
            right = rb.attention(*(x.transpose(1, 2) for x in whole), mask=mask).transpose(1, 2)
            seconds[name] = timed(calls, whole, right, placement, rounds)
    return seconds


def contenders(name: str, n: int, mask: rb.Mask, placement: str) -> dict[str, Callable[..., Any]]:
    """The contenders' functions of this process's q, k and v, (1, rows, heads, d)."""
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]

    from redblue import distributed

    rank, size = dist.get_rank(), dist.get_world_size()
    # ring_flash_attn's adapter for transformers needs names that transformers 5 lacks.
    adapters = sys.modules["ring_flash_attn.adapters"] = ModuleType("ring_flash_attn.adapters")
    adapters.substitute_hf_flash_attn = adapters.update_ring_flash_attn_params = None  # pyright: ignore
    rings: Any = importlib.import_module("ring_flash_attn")
    yunchang: Any = importlib.import_module("yunchang")

    def redblue(schedule: str, *shards: Any) -> Any:
        arrays = (x.transpose(1, 2) for x in shards)
        return distributed.attention(*arrays, mask=mask, placement=placement, schedule=schedule).transpose(1, 2)

    own = {f"redblue {schedule}": partial(redblue, schedule) for schedule in ("auto", "ring")}
    if name == "causal":
        yunchang.set_seq_parallel_pg(1, size, rank, size)
        layer = yunchang.LongContextAttention(ring_impl_type="zigzag")
        return own | {
            "ring-flash-attn zigzag": lambda *x: rings.zigzag_ring_flash_attn_func(*x, causal=True),
            "yunchang zigzag": lambda *x: layer(*x, causal=True),
        }
    window = (n // 16, 0)
    starts = torch.tensor([0, n], dtype=torch.int32)
    q, k, longest, k_longest, rows = rings.llama3_flash_attn_prepare_cu_seqlens(starts, True, rank, size)
    arguments = q, k, longest, k_longest, 1, rows

    def llama3(*x: Any) -> Any:
        packed = (array[0] for array in x)
        return rings.llama3_flash_attn_varlen_func(*packed, *arguments, causal=True, window_size=window)[None]

    ulysses = yunchang.UlyssesAttention()
    return own | {
        "ring-flash-attn llama3": llama3,
        "yunchang Ulysses": lambda *x: ulysses(*x, causal=True, window_size=window),
    }


def timed(calls: dict[str, Any], whole: Any, right: Any, placement: str, rounds: int) -> dict[str, Any]:
    """Check each contender's output, then time all in alternation."""
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]

    from benchmarks.common.gate import relative_errors
    from redblue import distributed

    def part(x: Any) -> Any:
        return distributed.shard(x, dim=1, placement=placement).contiguous()

    parts, weights = [part(x).requires_grad_() for x in whole], torch.ones_like(part(whole[0]))
    gradients = {}
    for name, call in calls.items():
        out = call(*parts)
        gradients[name] = torch.autograd.grad(out, parts, weights)
        exact = [part(right), *gradients["redblue auto"]]
        errors = relative_errors([out.detach(), *gradients[name]], exact)
        if not all(error <= TOLERANCE for error in errors):
            raise SystemExit(f"{name} gives another result than one process: {errors}")
    seconds: dict[str, Any] = {name: {"forward": [], "both": []} for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            dist.barrier()
            out, forward = with_seconds(partial(call, *parts))
            backward = seconds_of(partial(torch.autograd.grad, out, parts, weights))
            times = torch.tensor([forward, forward + backward])
            dist.all_reduce(times, dist.ReduceOp.MAX)
            for kind, value in zip(("forward", "both"), times.tolist(), strict=True):
                seconds[name][kind].append(value)
    return seconds


def compared(seconds: dict[str, Any]) -> dict[str, Any]:
    """Medians of each contender's times, and of their ratios to redblue's (auto) in the same round."""
    base, rows = seconds["redblue auto"], {}
    for name, own in seconds.items():
        for kind, times in own.items():
            ratio = statistics.median(a / b for a, b in zip(times, base[kind], strict=True))
            figures = {"seconds": statistics.median(times), "over_redblue": ratio}
            rows.setdefault(name, {})[kind] = {key: float(f"{value:.4g}") for key, value in figures.items()}
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--n", type=at_least(1), default=8192, help="tokens")
    parser.add_argument("--heads", type=at_least(1), default=8)
    parser.add_argument("--processes", type=at_least(1), default=4)
    parser.add_argument("--rounds", type=at_least(1), default=9, help="turns of each contender (%(default)s)")
    parser.add_argument("--gbit", type=float, default=0.0, help="bandwidth of each link; 0: no links, one computer")
    parser.add_argument("--milliseconds", type=float, default=0.0, help="latency of each link")
    parser.add_argument("--json", type=Path, help="file for the results; other results in the file stay")
    options = parser.parse_args()
    with ExitStack() as stack:
        names = None
        if options.gbit:
            names = stack.enter_context(links.namespaces(options.processes, options.gbit, options.milliseconds))
        os.environ["GLOO_SOCKET_IFNAME"] = links.INTERFACE if names else "lo"
        arguments = options.n, options.heads, options.rounds
        seconds = local.run(measure, options.processes, *arguments, namespaces=names)[0]
    figures = {name: compared(rows_of_mask) for name, rows_of_mask in seconds.items()}
    for mask, rows in figures.items():
        for name, kinds in rows.items():
            row = "  ".join(f"{k} {x['seconds']:.3f} s, x {x['over_redblue']:.2f}" for k, x in kinds.items())
            print(f"{mask:8}{name:24}{row}")
    if options.json:
        named = ("n", "heads", "processes", "rounds", "gbit", "milliseconds")
        sizes = {"d": D, **{name: getattr(options, name) for name in named}}
        about = {"date": datetime.date.today().isoformat(), "cpu": detect_cpu().model, "cores": os.cpu_count(), **sizes}
        kept = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        peers = kept.get("peers", {}) | {"links" if options.gbit else "one_computer": about | figures}
        options.json.write_text(json.dumps(kept | {"peers": peers}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
