"""All processes of a network schedule in one process, on PyTorch tensors and with the operations of real processes."""

from __future__ import annotations

import torch

from redblue.distributed.operations import Operations
from redblue.distributed.operator import backward_of
from redblue.kernels.options import Options
from redblue.machine.network import NumericNetwork, row_index
from redblue.schedules import network
from redblue.schedules.network.layout import KEY_ARRAYS, WHOLE, Part


class TensorNetwork(NumericNetwork):
    """Computes with tensors."""

    def exchange(self, messages):
        arriving = [
            (m, self.arrays[m.source][m.name][..., row_index(self.shape(m.source, m.name, m.rows), m.rows), :].clone())
            for m in messages
            if len(m.rows)
        ]
        super(NumericNetwork, self).exchange(messages)
        for m, tensor in arriving:
            self.arrays[m.target][m.name] = tensor


def run(layout, options, arrays):
    """The outputs of a layout's program, put together again. arrays: (batch, heads, n, columns), by name."""
    q = arrays["q"]
    net = TensorNetwork(layout.grid.processes, Operations(layout, options, q.dtype, q.device).table)
    for p in net.here:
        for name, shape in network.inputs(layout, p).items():
            keys = name.array in KEY_ARRAYS
            own = arrays[name.array][..., (layout.keys if keys else layout.queries).positions[p], :]
            parts = layout.kv_parts if keys else layout.grid.head_parts
            net.put(p, name, shape, own.chunk(parts, -3)[name.part])
    network.run(net, layout)
    outputs = []
    for array in network.OUTPUTS[layout.problem.direction]:
        placement = layout.keys if array in KEY_ARRAYS else layout.queries
        order = torch.cat([torch.from_numpy(own) for own in placement.positions]).argsort()
        outputs.append(torch.cat([net.arrays[p][Part(array, p, WHOLE)] for p in net.here], -2)[..., order, :])
    return outputs


def forward_and_backward(layout, q, k, v, dout, dlse, options=None):
    """(out, lse, dq, dk, dv) of a layout, as all its processes compute them."""
    options = Options() if options is None else options
    out, lse = run(layout, options, {"q": q, "k": k, "v": v})
    delta = (dout.to(lse.dtype) * out).sum(-1, keepdim=True) - dlse[..., None]
    arrays = {"q": q, "k": k, "v": v, "dout": dout, "lse": lse, "delta": delta}
    return out, lse[..., 0], *run(backward_of(layout), options, arrays)
