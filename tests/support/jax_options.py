"""Options of redblue.jax.dot_product_attention for arrays of one shape, with the pairs that each lets attend."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from redblue import Mask

B, T, S, N = 2, 5, 7, 4  # batch, queries, keys, heads of the queries
RNG = np.random.default_rng(7)
CAUSAL = np.tri(T, S, dtype=bool)
WINDOW = CAUSAL & ~np.tri(T, S, -3, dtype=bool) | np.eye(T, S, 1, dtype=bool)  # keys t - 2 .. t + 1
SOME = RNG.random((B, 1, T, S)) < 0.7
QUERIES, KEYS = np.array([3, 5], np.int32), np.array([7, 4], np.int32)
REAL = (np.arange(T)[:, None] < QUERIES[:, None, None, None]) & (np.arange(S) < KEYS[:, None, None, None])
PER_HEAD = Mask.per_head([Mask.causal(), Mask.full(), Mask.sliding_window(1, 1), Mask.documents([2, 3], [4, 3])])
GRAPH = Mask.from_dense(RNG.random((T, S)) < 0.4)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


# name: (options of dot_product_attention, the pairs that attend)
OPTIONS = {
    "none": ({}, None),
    "scale": ({"scale": -0.3}, None),
    "causal": ({"is_causal": True}, CAUSAL),
    "window": ({"local_window_size": (2, 1)}, WINDOW),
    "window before the query": ({"local_window_size": (3, -1)}, np.tri(T, S, -1, bool) & ~np.tri(T, S, -4, bool)),
    "window behind the query": ({"local_window_size": (-1, 3)}, np.tri(T, S, 3, bool) & ~np.tri(T, S, 0, bool)),
    "causal window before the query": (
        {"local_window_size": (3, -2), "is_causal": True},
        np.tri(T, S, -2, bool) & ~np.tri(T, S, -4, bool),
    ),
    "causal window": ({"local_window_size": 2, "is_causal": True}, CAUSAL & WINDOW),
    "boolean mask": ({"mask": SOME}, SOME),
    "boolean mask and causal": ({"mask": SOME[0, 0], "is_causal": True}, SOME[0, 0] & CAUSAL),
    "bias of every pair": ({"bias": normal(B, N, T, S)}, None),
    "bias of heads": ({"bias": normal(N, 1, S)}, None),
    "bias of keys, bfloat16": ({"bias": normal(B, 1, 1, S).astype(jnp.bfloat16)}, None),
    "bias and mask": ({"bias": normal(1, N, T, 1), "mask": SOME}, SOME),
    "query lengths": ({"query_seq_lengths": QUERIES}, REAL.any(3, keepdims=True) & np.ones(S, bool)),
    "key lengths": ({"key_value_seq_lengths": KEYS}, REAL.any(2, keepdims=True) & np.ones((T, 1), bool)),
    "lengths beyond the arrays": (
        {"key_value_seq_lengths": np.array([9, -1], np.int32)},
        np.array([True, False])[:, None, None, None] & np.ones((T, S), bool),
    ),
    "lengths, causal": (
        {"query_seq_lengths": QUERIES, "key_value_seq_lengths": KEYS, "is_causal": True},
        REAL & CAUSAL,
    ),
    "lengths, alibi": (
        {"query_seq_lengths": QUERIES, "key_value_seq_lengths": KEYS, "alibi": normal(N)},
        REAL,
    ),
    "lengths, bias with gradient": ({"key_value_seq_lengths": KEYS, "bias": normal(1, 1, T, S)}, REAL.any(2)[:, None]),
    "lengths, boolean mask": (
        {"query_seq_lengths": QUERIES, "key_value_seq_lengths": KEYS, "mask": SOME, "is_causal": True},
        REAL & CAUSAL & SOME,
    ),
    "lengths, mask": ({"query_seq_lengths": QUERIES, "mask": GRAPH}, REAL.any(3, keepdims=True) & GRAPH.to_dense(T, S)),
    "Mask": ({"mask": Mask.causal("bottom-right")}, Mask.causal("bottom-right").to_dense(T, S)),
    "Mask and window": ({"mask": GRAPH, "local_window_size": (2, 1)}, GRAPH.to_dense(T, S) & WINDOW),
    "Mask per head": ({"mask": PER_HEAD}, PER_HEAD.to_dense(T, S)),
    "softcap, sinks": ({"softcap": 1.5, "sinks": normal(N)}, None),
    "sinks, Mask": ({"sinks": normal(N, dtype=np.float16), "mask": GRAPH}, GRAPH.to_dense(T, S)),
    "alibi": ({"alibi": normal(B, N)}, None),
    "dropout": ({"dropout": 0.4, "seed": 3 * 2**40 + 5}, None),
    "dropout, lengths": ({"dropout": 0.4, "seed": 5, "key_value_seq_lengths": KEYS}, REAL.any(2)[:, None]),
    "hybrid": ({"schedule": "hybrid", "is_causal": True}, CAUSAL),
    "gather": ({"schedule": "gather", "mask": GRAPH}, GRAPH.to_dense(T, S)),
}
