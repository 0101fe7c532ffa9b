"""Measure the resources that a launch needs on a card by compiling it for that card, without a GPU.

Triton compiles for any architecture down to the binary, and the assembler reports the registers used and the bytes
spilled. The user's cache folder keeps the results; their key is the kernel's source, the types of its arguments, its
constants and settings, the architecture and Triton's version.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs
import torch
from triton import __version__ as triton_version
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from redblue.base.dtypes import sum_dtype
from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div
from redblue.kernels.gpu import bias_gradient
from redblue.kernels.gpu.launch import Run, Task
from redblue.kernels.gpu.paged.layout import ITEM, MEMBER, NODE
from redblue.kernels.gpu.paged.task import Arrays, PagedTask, Work
from redblue.kernels.gpu.planning.card import Card, planning_for
from redblue.kernels.gpu.planning.plan import Launch
from redblue.kernels.gpu.table import KERNELS
from redblue.kernels.options import Options
from redblue.kernels.sizes import SUMS, Sizes, array_forms

TENSOR_MEMORY_COLUMNS = 512  # per multiprocessor of sm_100; a column has 128 rows of 4 bytes


class Fit(NamedTuple):
    """The resources that one compiled kernel of a launch takes."""

    kernel: str
    shared_bytes: int  # per block
    registers: int  # per thread
    spilled_bytes: int  # per thread: stored to local memory because registers ran out
    tensor_memory_columns: int  # per block, on sm_100
    cubin_bytes: int
    serialized: bool  # whether the assembler makes each product wait for the previous one, on sm_90

    def on(self, card: Card) -> bool:
        """Whether the card can run it."""
        return self.shared_bytes <= card.shared_bytes and self.tensor_memory_columns <= TENSOR_MEMORY_COLUMNS


def fits(direction: str, sizes: Sizes, dtype: str, card: Card, launch: Launch, **options: Any) -> tuple[Fit, ...]:
    """Compile the kernels of the launch for the card. options: arguments of `Task.of`, such as end=1 for a causal band.

    Raises RedblueError in a process whose kernels are interpreted, and Triton's own errors if it cannot compile them.
    """
    with planning_for(card):
        launches = runs(direction, sizes, dtype, launch, **options)
    return fits_of(launches, card.arch)


def fits_of(launches: Iterable[Run], arch: int) -> tuple[Fit, ...]:
    """The resources of all kernels of the runs, equal kernels once."""
    if knobs.runtime.interpret:
        raise RedblueError("kernels that are interpreted cannot be compiled: unset TRITON_INTERPRET in this process")
    return tuple(_kept(name, run, arch) for name, run in {key(run, arch): run for run in launches}.items())


def runs(direction: str, sizes: Sizes, dtype: str, launch: Launch, **options: Any) -> list[Run]:
    """The launches for dense tensors of these sizes, which are not allocated. A dbias adds its own launch."""
    arrays = {
        name: torch.empty(shape[:-1] if name in SUMS else shape, dtype=getattr(torch, number), device="meta")
        for name, (shape, number) in array_forms(sizes, dtype, "backward").items()
    }
    task = Task.of(sizes=sizes, **arrays, **options)
    launches = list(getattr(KERNELS[launch.kernel], direction)(task, launch))
    if task.dbias is not None:
        parts = ceil_div(sizes.n_q, bias_gradient.EDGE), ceil_div(sizes.n_k, bias_gradient.EDGE)
        launches.append(bias_gradient.gradient_run(task, task.dbias, parts, (False, False), "ieee"))
    return launches


def paged_runs(
    sizes: Sizes, dtype: str, launch: Launch, page: int, aliased: bool = False, tree: bool = False, **options: Any
) -> list[Run]:
    """The launches of `attention_paged` for contiguous caches of pages of `page` keys.

    sizes: lead, heads, d and d_v matter. aliased: whether values are a slice of the keys. tree: whether a boolean mask
    selects the newest keys that queries attend. options: fields of Options.
    """
    number, (batch,) = getattr(torch, dtype), sizes.lead
    sums = getattr(torch, sum_dtype(dtype))
    # On the CPU, because all tensors on the meta device have the same address, as if they were slices of each other
    q = torch.empty((batch, sizes.heads, sizes.d), dtype=number)
    k, v = (torch.empty((2, page, sizes.kv_heads, d), dtype=number) for d in (sizes.d, sizes.d_v))
    v = k[..., : sizes.d_v] if aliased else v
    out, lse = q.new_empty(batch, sizes.heads, sizes.d_v), q.new_empty(batch, sizes.heads, dtype=sums)
    table, tree_mask = torch.empty((batch, 2), dtype=torch.int32), torch.empty((batch, 2), dtype=torch.int8)
    task = PagedTask(sizes, q, k, v, table, out, lse, Options(**options), end=1, tree=tree_mask if tree else None)
    part = lse.new_empty(sizes.kv_heads, 1, sizes.d_v)
    arrays = (torch.empty((1, fields), dtype=torch.int32) for fields in (NODE, MEMBER, 1, 1, 1))
    work = Work(Arrays(*arrays), part, part[..., 0], False)
    return [task.forward(work, torch.empty((1, ITEM), dtype=torch.int32), launch), task.merge(work)]


def key(run: Run, arch: int) -> str:
    """The name of the file that keeps the result: a hash of everything that the compiled kernel depends on."""
    arguments = {
        parameter.name: _type(value, not parameter.do_not_specialize) if not parameter.is_constexpr else value
        for parameter, value in zip(run.kernel.params, run.positional, strict=True)
    }
    text = json.dumps(
        [triton_version, arch, run.kernel.cache_key, run.settings, arguments], sort_keys=True, default=str
    )
    return f"{run.kernel.__name__}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _type(value: Any, specialized: bool) -> Any:
    """The properties of an argument for which Triton compiles a kernel of its own.

    specialized: whether an integer that is 1, or a multiple of 16, also has a kernel of its own.
    """
    if isinstance(value, tuple):
        return [_type(part, specialized) for part in value]
    if isinstance(value, torch.Tensor):
        return str(value.dtype)
    if hasattr(value, "block_shape"):  # a TMA descriptor
        return [str(value.base.dtype), list(value.block_shape)]
    if isinstance(value, int) and not isinstance(value, bool):
        return ["int", value.bit_length() > 31, *((value == 1, value % 16 == 0) if specialized else ())]
    return type(value).__name__


def _kept(name: str, run: Run, arch: int) -> Fit:
    """The fit from the cache folder; if it is missing, compile and store it."""
    path = Path(platformdirs.user_cache_dir("redblue")) / "gpu-fit" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Fit(**json.loads(path.read_text()))
    fit = _compile(run, arch)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(fit._asdict()))
    draft.replace(path)  # atomic, because other processes may write the file, too
    return fit


def _compile(run: Run, arch: int) -> Fit:
    log = io.StringIO()
    run.kernel.device_caches.clear()  # the assembler reports only kernels that are compiled now
    with _target(arch), contextlib.redirect_stdout(log):
        compiled = run.kernel.warmup(*run.positional, grid=run.grid, **run.settings)
    report = re.search(r"(\d+) bytes spill stores.*?Used (\d+) registers", log.getvalue(), re.DOTALL)
    if not report:
        raise RedblueError(f"ptxas did not report the resources of {run.kernel.__name__}: {log.getvalue()!r}")
    return Fit(
        run.kernel.__name__,
        compiled.metadata.shared,
        int(report[2]),
        int(report[1]),
        getattr(compiled.metadata, "tmem_size", 0) or 0,
        len(compiled.asm["cubin"]),
        "instructions are serialized" in log.getvalue(),
    )


@contextlib.contextmanager
def _target(arch: int) -> Iterator[None]:
    """A context in which Triton compiles for the architecture, uncached, and prints the assembler's messages."""
    with tempfile.TemporaryDirectory() as folder, knobs.nvidia.scope(), knobs.cache.scope(), standing_in(arch):
        knobs.nvidia.dump_ptxas_log = True
        knobs.cache.dir = folder
        yield


@contextlib.contextmanager
def standing_in(arch: int) -> Iterator[None]:
    """A context in which Triton compiles for the architecture, without a driver."""
    before = driver._active
    driver._active = _Absent(arch)  # type: ignore[assignment]
    try:
        yield
    finally:
        driver._active = before


class _Absent:
    """A stand-in for Triton's driver that only allows compiling for an architecture."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return self.arch  # the key under which Triton keeps compiled kernels

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)
