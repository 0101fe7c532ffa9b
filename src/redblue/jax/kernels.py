"""Run the kernels on the arrays of a call from XLA. This module does not import JAX.

Arrays have the layout of JAX's function, (batch, rows, heads, features). The kernels read and write them in place.
Every vmap adds one leading dimension to all arrays; it has size 1 in an array that all entries share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from redblue.jax.abi import Call
from redblue.jax.masks import mask_named
from redblue.kernels.options import ARRAYS, Options
from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.op.api import GradientArrays, NumpyCall, summed_to

Arrays = Mapping[str, np.ndarray]

# The number of dimensions of each array without vmap
RANKS = dict.fromkeys(("q", "k", "v", "out", "dout", "dq", "dk", "dv", "dbias"), 4)
RANKS |= dict.fromkeys(("lse", "dlse", "delta"), 3)
RANKS |= {name: 4 - rules.missing if rules.lead else 1 for name, rules in ARRAYS.items()}
RANKS |= {"seed": 1, "query_lengths": 1, "key_lengths": 1}
WITHOUT_LEAD = "seed", *(name for name, rules in ARRAYS.items() if not rules.lead)
LENGTHS = "query_lengths", "key_lengths"
KEPT = 8  # cached masks that exclude padding; both passes and all layers of a model share them


class Static(NamedTuple):
    """The part of a call that is known at compile time: the options that are not arrays, and the arrays' names."""

    options: Options  # without arrays; `mask` is the mask's name (see redblue.jax.masks)
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The record as text."""
        return json.dumps((*self.options.others, self.arguments, self.results))


@lru_cache(maxsize=256)
def _read(text: bytes) -> Static:
    """The record of a text."""
    *others, arguments, results = json.loads(text)
    return Static(Options(*others), tuple(arguments), tuple(results))


def forward(call: Call) -> None:
    """Write the output and the log-sum-exp of each row."""
    static, arguments, results = _named(call)
    for inputs, outputs in _calls(static, arguments, results):
        _forward(static, inputs, outputs)


def backward(call: Call) -> None:
    """Write the gradients."""
    static, arguments, results = _named(call)
    for inputs, outputs in _calls(static, arguments, results):
        _backward(static, inputs, outputs)


def _named(call: Call) -> tuple[Static, Arrays, Arrays]:
    static = _read(call.attributes["call"])
    arguments = dict(zip(static.arguments, call.arguments, strict=True))
    return static, arguments, dict(zip(static.results, call.results, strict=True))


def _calls(static: Static, arguments: Arrays, results: Arrays) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield the arguments and results of each kernel call: one call, or one for each entry of vmap.

    Entries need separate calls if they differ in options without leading dimensions (WITHOUT_LEAD). Under dropout they
    always need them, because an entry's pattern must not depend on the other entries.
    """
    lead = _lead(results)
    if 0 in lead:
        return
    own = any(name in arguments and arguments[name].size > arguments[name].shape[-1] for name in WITHOUT_LEAD)
    if not lead or not (own or static.options.dropout):
        yield arguments, results
        return
    for index in np.ndindex(lead):
        inputs, outputs = ({name: _entry(x, index) for name, x in arrays.items()} for arrays in (arguments, results))
        yield inputs, outputs


def _lead(results: Arrays) -> tuple[int, ...]:
    """The sizes of the dimensions that vmap has added."""
    array = results["out"] if "out" in results else results["dq"]
    return array.shape[:-4]


def _entry(array: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
    """The part of an array that belongs to one entry of the dimensions that vmap has added."""
    return array[tuple(i if n > 1 else 0 for i, n in zip(index, array.shape, strict=False))]


def _forward(static: Static, arguments: Arrays, results: Arrays) -> None:
    """One call of the forward kernel, or one for each entry of a padded batch."""
    out, lse = _heads_first(results["out"]), results["lse"]
    q, k, v = _expanded(arguments, _lead(results), "q", "k", "v")
    options, lengths = _options(static, arguments, q, k)
    if lengths is None:
        (q,), (k, v) = _finite(arguments, [q], [k, v])
        NumpyCall(q, k, v, options).forward(out, lse)
        return
    out[...], lse[...] = 0, -np.inf if options.sinks is None else options.sinks[:, None]
    for index, rows, keys in _padded(lengths):
        entry = _cut(options, index, rows, keys)
        NumpyCall(q[index][:, :rows], k[index][:, :keys], v[index][:, :keys], entry).forward(
            out[index][:, :rows], lse[index][:, :rows]
        )


def _backward(static: Static, arguments: Arrays, results: Arrays) -> None:
    """One call of the backward kernel, or one for each entry of a padded batch."""
    q, k, v, dout, out = _expanded(arguments, _lead(results), "q", "k", "v", "dout", "out")
    lse, dlse = (None if x is None else np.broadcast_to(x, q.shape[:-1]) for x in map(arguments.get, ("lse", "dlse")))
    assert lse is not None
    dq, dk, dv = (_heads_first(results[name]) for name in ("dq", "dk", "dv"))
    dbias = results.get("dbias")
    options, lengths = _options(static, arguments, q, k, by_entry=dbias is None)
    if lengths is None:
        (q, dout), (k, v) = _finite(arguments, [q, dout], [k, v])
        into = GradientArrays(dq, dk, dv, results["delta"], dbias)
        _one_backward(NumpyCall(q, k, v, options), dout, out, lse, dlse, into)
        return
    for array in (dq, dk, dv):
        array[...] = 0
    results["delta"][...] = 0 if dlse is None else -dlse  # for the rows of padding, whose output is 0
    for index, rows, keys in _padded(lengths):
        delta = np.empty((q.shape[-3], rows), lse.dtype)  # kernels write contiguous memory
        into = GradientArrays(dq[index][:, :rows], dk[index][:, :keys], dv[index][:, :keys], delta, None)
        entry = NumpyCall(q[index][:, :rows], k[index][:, :keys], v[index][:, :keys], _cut(options, index, rows, keys))
        of_out = dout[index][:, :rows], out[index][:, :rows]
        _one_backward(entry, *of_out, lse[index][:, :rows], None if dlse is None else dlse[index][:, :rows], into)
        results["delta"][index][:, :rows] = delta


def _one_backward(
    call: NumpyCall,
    dout: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    dlse: np.ndarray | None,
    into: GradientArrays,
) -> None:
    """Run the backward kernel. If k and v were repeated because heads have different masks, sum their gradients."""
    whole = into._replace(
        dk=into.dk if into.dk.shape == call.k.shape else np.empty(call.k.shape, into.dk.dtype),
        dv=into.dv if into.dv.shape == call.v.shape else np.empty(call.v.shape, into.dv.dtype),
    )
    call.backward_into(dout, out, lse, dlse, whole)
    for wanted, computed in ((into.dk, whole.dk), (into.dv, whole.dv)):
        if wanted is not computed:
            wanted[...] = summed_to(computed, wanted.shape)


def _expanded(arguments: Arrays, lead: tuple[int, ...], *names: str) -> list[np.ndarray]:
    """Arrays with heads before rows, for all entries of vmap."""
    arrays = (_heads_first(arguments[name]) for name in names)
    return [x if x.shape[:-4] == lead else np.broadcast_to(x, (*lead, *x.shape[-4:])) for x in arrays]


def _heads_first(array: np.ndarray) -> np.ndarray:
    """A view (..., heads, rows, features) of an array (..., rows, heads, features)."""
    return array.swapaxes(-2, -3)


# Options and lengths -------------------------------------------------------------------------------------------------


class Lengths(NamedTuple):
    """Numbers of queries and keys of each batch entry that are not padding: arrays (lead..., batch)."""

    queries: np.ndarray
    keys: np.ndarray


def _options(
    static: Static, arguments: Arrays, q: np.ndarray, k: np.ndarray, by_entry: bool = True
) -> tuple[Options, Lengths | None]:
    """The options, and the lengths if the batch is computed entry by entry. Otherwise lengths are part of the mask.

    by_entry: whether entries may be computed one by one. Entries are cut to their lengths only if the cut changes no
    result. Three options rule a cut out: alibi (its distances count from the last query and key), dropout (its pattern
    depends on the entry) and most masks (they are made for certain sizes).
    """
    mask, seed = mask_named(static.options.mask), arguments.get("seed")
    arrays = {
        name: arguments[name] if rules.lead else arguments[name].reshape(-1)
        for name, rules in ARRAYS.items()
        if name in arguments
    }
    options = static.options._replace(mask=mask, seed=None if seed is None else _seed(seed), **arrays)
    if not any(name in arguments for name in LENGTHS):
        return options, None
    lead, n_q, n_k = q.shape[:-3], q.shape[-2], k.shape[-2]
    lengths = _lengths(arguments, lead, n_q, n_k)
    if by_entry and not options.by_position and _can_be_cut(mask, n_q, n_k):
        return options, lengths
    parts = lengths.queries.tobytes(), lengths.keys.tobytes()
    return options._replace(mask=_with_lengths(static.options.mask, *parts, lead, n_q, n_k)), None


def _seed(words: np.ndarray) -> int:
    """The seed from its high and its low 32 bits."""
    high, low = words.reshape(-1).tolist()
    return high << 32 | low


def _lengths(arguments: Arrays, lead: tuple[int, ...], n_q: int, n_k: int) -> Lengths:
    return Lengths(*(_clipped(arguments.get(name), n, lead) for name, n in zip(LENGTHS, (n_q, n_k), strict=True)))


def _finite(
    arguments: Arrays, of_queries: list[np.ndarray], of_keys: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The arrays, copied with zeros in place of padding that is not finite: 0 times such padding would be NaN.

    of_queries, of_keys: arrays (..., heads, rows, features).
    """
    if not any(name in arguments for name in LENGTHS):
        return of_queries, of_keys
    q, k = of_queries[0], of_keys[0]
    counts = _lengths(arguments, q.shape[:-3], q.shape[-2], k.shape[-2])

    def clean(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        wrong = [index for index in np.ndindex(rows.shape) if not np.isfinite(x[index][:, rows[index] :]).all()]
        if wrong:
            x = x.copy()
            for index in wrong:
                x[index][:, rows[index] :] = 0
        return x

    return [clean(x, counts.queries) for x in of_queries], [clean(x, counts.keys) for x in of_keys]


def _clipped(lengths: np.ndarray | None, n: int, lead: tuple[int, ...]) -> np.ndarray:
    """One length for each batch entry, between 0 and n."""
    return np.ascontiguousarray(np.broadcast_to(n if lengths is None else np.clip(lengths, 0, n), lead), np.int64)


def _can_be_cut(mask: Mask | None, n_q: int, n_k: int) -> bool:
    """Whether the mask means the same on fewer queries and keys: a band aligned with the first query and first key."""
    if mask is None:
        return True
    return isinstance(mask.rule, Window) and (mask.rule.align == "top-left" or n_q == n_k)


@lru_cache(maxsize=KEPT)
def _with_lengths(name: str, queries: bytes, keys: bytes, lead: tuple[int, ...], n_q: int, n_k: int) -> Mask:
    """The mask of this name, without pairs in the padding."""
    mask = mask_named(name)
    pairs = zip(np.frombuffer(queries, np.int64).tolist(), np.frombuffer(keys, np.int64).tolist(), strict=True)
    # Three documents: the real queries and keys; keys that no query attends; queries that attend no key
    real = [Mask.documents([rows, 0, n_q - rows], [cols, n_k - cols, 0]) for rows, cols in pairs]
    padding = Mask.stack(real, (*lead, 1)) if real else Mask.full()
    return padding if mask is None else padding & mask


def _padded(lengths: Lengths) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """(index, queries, keys) of each batch entry."""
    for index in np.ndindex(lengths.queries.shape):
        yield index, int(lengths.queries[index]), int(lengths.keys[index])


def _cut(options: Options, index: tuple[int, ...], rows: int, keys: int) -> Options:
    """The options for one batch entry, cut to its lengths."""
    mask = options.mask
    if mask is not None and mask.rule.align != "top-left":  # there are as many queries as keys before the cut
        mask = Mask.sliding_window(mask.rule.left, mask.rule.right)
    arrays = {name: _entry(x, index) for name, rules, x in options.present_arrays() if rules.lead}
    for name, x in arrays.items():
        if ARRAYS[name].pairs:
            arrays[name] = x[:, : rows if x.shape[1] > 1 else 1, : keys if x.shape[2] > 1 else 1]
    return options._replace(mask=mask, **arrays)
