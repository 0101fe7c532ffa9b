"""Train a graph transformer whose attention mask is a graph: each node attends its neighbours and itself.

    python examples/graph_mask.py --nodes 20000 --steps 50

The graph is random, with communities that the model has to find from noisy features. redblue reads the graph as CSR and
computes only the pairs of its edges. PyTorch needs a dense mask of nodes x nodes, so it is compared only up to --dense
nodes.
"""

from __future__ import annotations

import argparse

from measuring import at_least, check_close, measure, need, show

torch = need("torch", "redblue[torch]")
networkx = need("networkx", "networkx")

import redblue as rb

COMMUNITIES = 4


def graph_mask(graph) -> rb.Mask:
    """Return the mask of a graph: row i lists the neighbours of node i, and i itself, in ascending order."""
    indptr, indices = [0], []
    for node in range(graph.number_of_nodes()):
        indices += sorted({*graph[node], node})
        indptr.append(len(indices))
    return rb.Mask.from_csr(indptr, indices, graph.number_of_nodes())


class Layer(torch.nn.Module):
    """Attention along the graph, then a feed-forward layer, both with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x, attend):
        qkv = self.qkv(self.norms[0](x)).view(len(x), 3, self.heads, -1)
        q, k, v = (part.transpose(0, 1) for part in qkv.unbind(1))  # (heads, nodes, d)
        x = x + self.out(attend(q, k, v).transpose(0, 1).flatten(1))
        return x + self.feed(self.norms[1](x))


class Model(torch.nn.Module):
    """Layers of attention between two linear maps: from features, and to a score for each community."""

    def __init__(self, features: int, width: int, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(features, width), torch.nn.Linear(width, COMMUNITIES)
        self.layers = torch.nn.ModuleList(Layer(width, heads) for _ in range(layers))

    def forward(self, x, attend):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, attend)
        return self.leave(x)


def train(features, labels, attend, steps: int):
    """Return the losses, the model and the gradients of the first step."""
    torch.manual_seed(0)
    model, losses, first = Model(features.shape[1], 32), [], None
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(features, attend), labels)
        optimizer.zero_grad()
        loss.backward()
        first = first or [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), model, torch.cat([gradient.flatten() for gradient in first or []])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--nodes", type=at_least(40, COMMUNITIES), default=2000, help="nodes of the graph, a multiple of 4"
    )
    parser.add_argument("--steps", type=at_least(1), default=20, help="steps of training")
    parser.add_argument(
        "--dense", type=at_least(0), default=4000, help="most nodes for which PyTorch's dense mask is compared"
    )
    options = parser.parse_args()

    n, inside, across = options.nodes, 10, 2  # mean number of neighbours in the same and in other communities
    sizes = [n // COMMUNITIES] * COMMUNITIES
    chances = [
        [(inside if a == b else across / 3) * COMMUNITIES / n for b in range(COMMUNITIES)] for a in range(COMMUNITIES)
    ]
    graph = networkx.stochastic_block_model(sizes, chances, seed=0)
    mask = graph_mask(graph)
    print(f"{n:,} nodes, {mask.nnz(n, n):,} pairs attend, {mask.density(n, n):.2%} of all")

    torch.manual_seed(1)
    labels = torch.arange(COMMUNITIES).repeat_interleave(n // COMMUNITIES)
    features = torch.nn.functional.one_hot(labels).float() + 2 * torch.randn(n, COMMUNITIES)
    train(features, labels, lambda q, k, v: rb.attention(q, k, v, mask=mask), 1)  # warm-up: the first step is slower
    ours = measure(lambda: train(features, labels, lambda q, k, v: rb.attention(q, k, v, mask=mask), options.steps))
    losses, model, gradients = ours.result
    with torch.no_grad():
        right = (model(features, lambda q, k, v: rb.attention(q, k, v, mask=mask)).argmax(1) == labels).float().mean()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {right:.0%} of the nodes in the right community")
    show("redblue", ours)
    if n > options.dense:
        print(f"PyTorch's dense mask would take {n * n / 1e6:,.0f} MB: not compared (--dense)")
        return
    dense = torch.from_numpy(mask.to_dense(n, n))
    plain = torch.nn.functional.scaled_dot_product_attention
    theirs = measure(
        lambda: train(
            features, labels, lambda q, k, v: plain(q[None], k[None], v[None], attn_mask=dense)[0], options.steps
        )
    )
    show("PyTorch", theirs)
    check_close("losses", losses, theirs.result[0], 1e-3)
    check_close("gradients of the first step", gradients, theirs.result[2], 1e-3)


if __name__ == "__main__":
    main()
