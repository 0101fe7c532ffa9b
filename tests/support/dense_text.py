"""The texts of examples/byte_model.py, computed by dense attention in float64, without cache."""

import copy

import numpy as np

TOLERANCE = 1e-3  # of a logit; their standard deviation is about 1


def dense_attention(_layer, q, k, v):
    """Causal attention of (n, heads, d), with NumPy only."""
    n, heads, d = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)


def logits_of(model, tokens):
    """The logits after each token, in float64."""
    wide = copy.copy(model)
    wide.embedding, wide.logits = model.embedding.astype(np.float64), model.logits.astype(np.float64)
    wide.layers = [{name: x.astype(np.float64) for name, x in layer.items()} for layer in model.layers]
    return wide.forward(np.array(tokens), np.arange(len(tokens)), dense_attention) @ wide.logits


def greedy(model, prompt, max_tokens):
    """The most likely tokens after a prompt, one after another."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens and (len(tokens) == len(prompt) or tokens[-1] != model.end):
        tokens.append(int(logits_of(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def check_greedy(model, prompt, max_tokens, generated):
    """Assert that each token was the most likely one, up to rounding, and that the text ended where it must."""
    assert 1 <= len(generated) <= max_tokens
    assert model.end not in generated[:-1]
    assert len(generated) == max_tokens or generated[-1] == model.end
    logits = logits_of(model, [*prompt, *generated[:-1]])[len(prompt) - 1 :]
    behind = logits.max(1) - logits[np.arange(len(generated)), generated]
    assert behind.max() <= TOLERANCE, f"token {behind.argmax()} is {behind.max():.3g} below the most likely one"
