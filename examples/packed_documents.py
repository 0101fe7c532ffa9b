"""Train a small transformers model on packed documents: the texts of Python's own help, as bytes.

    python examples/packed_documents.py --tokens 4096 --steps 20

The documents lie one after another in one row, and position_ids restart at each document. transformers' default
attention then builds a mask of tokens x tokens. With attn_implementation="redblue", no such mask is built, and pairs
across documents are not computed. The model has Llama's architecture and random weights, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics

from measuring import at_least, check_close, measure, need, show

torch = need("torch", "redblue[torch]")
transformers = need("transformers", "redblue[transformers]")

from redblue.integrations.transformers import register


def packed(total: int):
    """Return the bytes of the help texts, at most 512 of each and `total` in all, (1, n), and the length of each."""
    texts = [text.encode()[:512] for text in topics.values()]
    lengths, room = [], total
    for text in texts:
        lengths.append(min(len(text), room))
        room -= lengths[-1]
        if room == 0:
            break
    tokens = torch.tensor(list(b"".join(texts))[: sum(lengths)])
    return tokens[None], lengths


def train(implementation: str, tokens, lengths: list[int], steps: int):
    """Return the losses of all steps, and the gradients of the first."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    labels = tokens.masked_fill(positions == 0, -100)  # a document's first byte is not predicted from another document
    losses, first = [], None
    for _ in range(steps):
        loss = model(input_ids=tokens, position_ids=positions, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        first = first or [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), torch.cat([gradient.flatten() for gradient in first or []])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=at_least(2), default=2048, help="tokens (bytes) of the packed row")
    parser.add_argument("--steps", type=at_least(1), default=5, help="steps of training")
    options = parser.parse_args()

    tokens, lengths = packed(options.tokens)
    n, pairs = tokens.shape[1], sum(length * (length + 1) // 2 for length in lengths)
    print(f"{len(lengths)} documents, {n:,} tokens: {pairs:,} pairs attend, {pairs / n**2:.1%} of a dense mask")

    with register():
        train("redblue", tokens[:, : lengths[0]], lengths[:1], 1)  # warm-up: the first step of a process is slower
        ours = measure(lambda: train("redblue", tokens, lengths, options.steps))
    theirs = measure(lambda: train("sdpa", tokens, lengths, options.steps))
    show("redblue", ours)
    show("sdpa", theirs)
    print(f"loss {ours.result[0][0]:.3f} -> {ours.result[0][-1]:.3f}")
    check_close("losses", ours.result[0], theirs.result[0], 1e-3)
    check_close("gradients of the first step", ours.result[1], theirs.result[1], 1e-3)


if __name__ == "__main__":
    main()
