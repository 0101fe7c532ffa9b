"""One process of ring-flash-attn's and yunchang's attention over gloo on CPUs, checked against one process' attention.

`python ring_worker.py RANK PROCESSES FILE CASE...` runs the named cases; the processes find each other by FILE. Each
process computes the whole attention in float64, runs a package's function on its own part, and compares its part. The
packages are not changed; where they need something that a CPU or a newer library lacks, a comment says what replaces
it.

Inputs are float16 or bfloat16, the only types of flash-attn. With others, the packages' own gradients are wrong: in
float32, they treat `buffer.to(torch.float32)` as a copy, but it is the buffer itself, which the next step overwrites;
in float64, processes send each other different types. The installed backward passes therefore refuse these types.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch
import torch.distributed as dist

from redblue.integrations import flash_attn
from support.flash_reference import check_close, gradients, reference

BATCH, N, HEADS, KV_HEADS, D = 2, 48, 4, 2, 16
STARTS = torch.tensor([0, 16, 24, 48], dtype=torch.int32)  # each length a multiple of 4: two processes, two halves
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def whole(packed: bool = False, kv_heads: int = KV_HEADS, dtype=torch.float16):
    lead, generator = (N,) if packed else (BATCH, N), torch.Generator().manual_seed(0)
    shapes = [(*lead, heads, D) for heads in (HEADS, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def expected(tensors, starts=None, **options):
    """Return the output of one process' attention and the gradients of its weighted sum."""
    if starts is None:
        out, _ = reference(*tensors, **options)
    else:
        parts = zip(*(x.split(starts.diff().tolist()) for x in tensors), strict=True)
        out = torch.cat([reference(*(x[None] for x in part), **options)[0][0] for part in parts])
    return out, gradients(out, tensors)


def compare(name, run, tensors, local, starts=None, dq=None, **options):
    """Compare this process' part of the output and of the gradients. local: takes its part of a tensor.

    dq: the type to which the package rounds dQ, if it is not that of q.
    """
    dtype = tensors[0].dtype
    right, right_gradients = expected(tensors, starts, **options)
    parts = [local(x.detach()).contiguous().requires_grad_() for x in tensors]
    out = run(*parts)
    check_close(out, local(right), dtype, f"{name} out")
    weights = torch.randn(right.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = torch.autograd.grad(out, parts, local(weights).to(out.dtype))
    for label, result, other in zip("qkv", got, right_gradients, strict=True):
        check_close(result, local(other), dq or dtype if label == "q" else dtype, f"{name} d{label}")


def ring():
    """Import ring-flash-attn without its adapter for transformers, which needs names that transformers 5 lacks."""
    adapters = ModuleType("ring_flash_attn.adapters")
    adapters.substitute_hf_flash_attn = adapters.update_ring_flash_attn_params = None  # pyright: ignore
    sys.modules.setdefault("ring_flash_attn.adapters", adapters)
    import ring_flash_attn

    return ring_flash_attn


def here():
    return dist.get_rank(), dist.get_world_size()


def contiguous(x, dim=1):
    rank, size = here()
    return x.chunk(size, dim)[rank]


def zigzag(x, dim=1):
    rank, size = here()
    parts = x.chunk(2 * size, dim)
    return torch.cat([parts[rank], parts[2 * size - 1 - rank]], dim)


def striped(x):
    rank, size = here()
    return x[:, rank::size]


def of_each_sequence(take):
    return lambda x: torch.cat([take(part, 0) for part in x.split(STARTS.diff().tolist())])


# ring-flash-attn ------------------------------------------------------------------------------------


@case
def ring_basic():
    run = ring().ring_flash_attn_func
    for causal, dtype in ((True, torch.float16), (False, torch.float16), (True, torch.bfloat16)):
        call = lambda *x, c=causal: run(*x, causal=c)  # noqa: E731
        compare("ring", call, whole(dtype=dtype), contiguous, dq=torch.bfloat16, causal=causal)  # as it rounds dQ


@case
def ring_zigzag():
    run = ring().zigzag_ring_flash_attn_func
    compare("zigzag", lambda *x: run(*x, causal=True), whole(), zigzag, causal=True)


@case
def ring_striped():
    run = ring().stripe_flash_attn_func
    compare("stripe", lambda *x: run(*x, causal=True), whole(), striped, causal=True)


@case
def ring_packed_tensors():
    run = ring().zigzag_ring_flash_attn_qkvpacked_func
    tensors = whole(kv_heads=HEADS)
    compare("qkvpacked", lambda *x: run(torch.stack(x, 2), causal=True), tensors, zigzag, causal=True)


@case
def ring_varlen():
    run, starts = ring().ring_flash_attn_varlen_func, STARTS // dist.get_world_size()
    longest = int(starts.diff().max())
    for causal in (True, False):
        options = {"causal": causal, "starts": STARTS, "dq": torch.bfloat16}
        call = lambda *x, c=causal: run(*x, starts, longest, causal=c)  # noqa: E731
        compare("varlen", call, whole(packed=True), of_each_sequence(contiguous), **options)


@case
def ring_zigzag_varlen():
    run, starts = ring().zigzag_ring_flash_attn_varlen_func, STARTS // dist.get_world_size()
    call = lambda *x: run(*x, starts, int(starts.diff().max()), causal=True)  # noqa: E731
    compare("zigzag varlen", call, whole(packed=True), of_each_sequence(zigzag), starts=STARTS, causal=True)


@case
def ring_llama3():
    package = ring()
    for causal, window in ((True, (-1, -1)), (False, (-1, -1)), (True, (9, 0))):
        q, k, longest, k_longest, rows = package.llama3_flash_attn_prepare_cu_seqlens(STARTS, causal, *here())
        for stride in (1, 2):
            arguments = q, k, longest, k_longest, stride, rows
            run = lambda *x, a=arguments, c=causal, w=window: package.llama3_flash_attn_varlen_func(  # noqa: E731
                *x, *a, causal=c, window_size=w
            )
            tensors, options = whole(packed=True), {"causal": causal, "window_size": window}
            compare("llama3", run, tensors, lambda x: contiguous(x, 0), starts=STARTS, **options)


# yunchang -------------------------------------------------------------------------------------------


def let_rings_of_one_process_copy(package):
    """Replace the messages that the process of a ring of one sends to itself by copies: gloo cannot send them."""
    comm = package.RingComm
    send_recv, commit, wait = comm.send_recv, comm.commit, comm.wait

    def copy(self, x, to=None):
        if self.world_size > 1:
            return send_recv(self, x, to)
        return x.clone() if to is None else to.copy_(x)

    comm.send_recv = copy
    comm.commit = lambda self: commit(self) if self.world_size > 1 else None
    comm.wait = lambda self: wait(self) if self.world_size > 1 else None


def degrees():
    """Yield (Ulysses degree, ring degree) of this number of processes, with yunchang's groups set."""
    import yunchang
    from yunchang.ring import utils

    if not hasattr(degrees, "patched"):
        degrees.patched = let_rings_of_one_process_copy(utils)  # pyright: ignore
    rank, size = here()
    for ulysses in (1, size):
        yunchang.set_seq_parallel_pg(ulysses, size // ulysses, rank, size)
        yield ulysses, size // ulysses


def usp(kind: str):
    """Compare yunchang's attention with Ulysses alone and with a ring alone."""
    import yunchang

    for ulysses, degree in degrees():
        layer = yunchang.LongContextAttention(ring_impl_type=kind)
        local = lambda x, d=degree, u=ulysses: yunchang.EXTRACT_FUNC_DICT[kind](  # noqa: E731
            x, *here(), rd=d, ud=u
        )
        # in a ring, the kind "basic" rounds dQ to bfloat16
        dq = torch.bfloat16 if kind == "basic" else None
        for options in ({"causal": True}, {"causal": True, "softcap": 3.0}):
            run = lambda *x, run=layer, o=options: run(*x, **o)  # noqa: E731
            compare(f"{kind} {ulysses} x {degree}", run, whole(), local, dq=dq, **options)


@case
def usp_basic():
    usp("basic")


@case
def usp_zigzag():
    usp("zigzag")


@case
def usp_striped():
    usp("strip")


@case
def usp_packed_tensors():
    import yunchang

    tensors = whole(kv_heads=HEADS)
    for ulysses, degree in degrees():
        layer = yunchang.LongContextAttentionQKVPacked(ring_impl_type="zigzag")
        local = lambda x, d=degree, u=ulysses: yunchang.EXTRACT_FUNC_DICT["zigzag"](  # noqa: E731
            x, *here(), rd=d, ud=u
        )
        run = lambda *x, run=layer: run(torch.stack(x, 2), causal=True)  # noqa: E731
        compare("usp qkvpacked", run, tensors, local, causal=True)


@case
def ulysses():
    from yunchang.ulysses import UlyssesAttention

    layer = UlyssesAttention()
    slopes = torch.linspace(0.1, 0.4, HEADS // dist.get_world_size())
    everywhere = slopes.repeat(dist.get_world_size())  # each process has the same slopes for its heads
    for options in ({}, {"causal": True, "window_size": (7, 0), "softcap": 4.0}):
        run = lambda *x, o=options: layer(*x, **o, alibi_slopes=slopes)  # noqa: E731
        compare("ulysses", run, whole(), contiguous, **options, alibi_slopes=everywhere)


def main(rank: str, size: str, meeting: str, *names: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(size))
    with flash_attn.install():
        for name in names or CASES:
            CASES[name]()
            print(f"{name} passed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
