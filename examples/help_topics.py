"""Attention over Python's own help: its texts as packed documents, and its topics as a graph of references.

    python examples/help_topics.py

Every Python contains both data sets. The embeddings are random, so only the printed sizes are meaningful.
"""

from __future__ import annotations

import pydoc
from pydoc_data.topics import topics

import numpy as np

import redblue as rb
from redblue import Mask

HEADS, D = 4, 32
MAX_BYTES = 2048  # bytes used of each text, to keep the example fast


def texts() -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of all texts, one text after another, and the length of each text."""
    parts = [np.frombuffer(text.encode()[:MAX_BYTES], np.uint8) for text in topics.values()]
    return np.concatenate(parts), np.array([len(part) for part in parts])


def references() -> tuple[list[str], list[int], list[int]]:
    """Return the names of the topics of help(), and their references: topic rows[i] refers to topic cols[i].

    Each topic also refers to itself. Returns (names, rows, cols).
    """
    topic_entries = {name: entry for name, entry in pydoc.Helper.topics.items() if isinstance(entry, tuple)}
    names = list(topic_entries)
    edges = [(i, i) for i in range(len(names))]
    edges += [
        (names.index(a), names.index(b))
        for a in names
        for b in topic_entries[a][1].split()
        if b in topic_entries and b != a
    ]
    rows, cols = zip(*dict.fromkeys(edges), strict=True)
    return names, list(rows), list(cols)


def main() -> None:
    rng = np.random.default_rng(0)

    tokens, lengths = texts()
    embedding = rng.standard_normal((3, 256, HEADS, D)).astype(np.float32)
    q, k, v = embedding[:, tokens]
    starts = np.append(0, np.cumsum(lengths))
    out = rb.attention_varlen(q, k, v, starts, mask=Mask.causal())
    mask = Mask.documents(lengths, within=Mask.causal())
    print(f"{len(lengths)} texts, {len(tokens):,} bytes: {out.shape[0]:,} x {HEADS} x {D} outputs")
    print(f"{mask.nnz():,} pairs attend, {mask.density():.2%} of all; padded: {len(lengths) * lengths.max() ** 2:,}")

    names, rows, cols = references()
    graph = Mask.from_coo(rows, cols, (len(names), len(names)))
    x = rng.standard_normal((1, len(names), D)).astype(np.float32)
    out, lse = rb.attention(x, x, x, mask=graph, return_lse=True)
    dq, dk, dv = rb.attention_backward(np.ones_like(out), x, x, x, out, lse, mask=graph)
    most = int(np.bincount(rows).argmax())
    print(f"{graph}: {names[most]} refers to most, {np.bincount(rows)[most] - 1} topics")
    print(f"gradients of all {len(names)} topics: {np.abs(dq + dk + dv).sum():.0f} in sum")


if __name__ == "__main__":
    main()
