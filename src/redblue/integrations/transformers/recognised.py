"""Translate transformers' mask functions to redblue's masks.

A mask function of transformers returns for one (batch entry, head, query, key) whether the query attends the key. The
functions are closures that factories of `transformers.masking_utils` make. So this module recognises a function by its
code and reads its parameters from its closure. Other functions raise Unknown; `tiles` lowers them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import masking_utils

from redblue.masks import Mask
from redblue.masks.rules.bands import Window
from redblue.masks.rules.packed import Documents


class Unknown(Exception):
    """The mask function, or its combination with these sizes, has no rule."""


class Place(NamedTuple):
    """The queries and keys of a call, by their positions in the sequence.

    q_first, k_first: the positions of the first query and of the first key. documents: (batch, n), the number of each
    token's document; None if the sequence is one document. positions: (batch, n), the positions that mask functions
    get, if they restart in each document; None if they count from q_first and k_first.
    """

    batch: int
    n_q: int
    n_k: int
    q_first: int = 0
    k_first: int = 0
    documents: np.ndarray | None = None
    positions: np.ndarray | None = None

    def q_positions(self, b: int) -> np.ndarray:
        if self.positions is not None:
            return self.positions[b]
        return np.arange(self.q_first, self.q_first + self.n_q)

    def k_positions(self, b: int) -> np.ndarray:
        if self.positions is not None:
            return self.positions[b]
        return np.arange(self.k_first, self.k_first + self.n_k)


def mask_of(function: Callable, place: Place) -> Mask:
    """The mask of a mask function. Raises Unknown for a function without a rule."""
    reader = _readers().get(getattr(function, "__code__", None)) or _reader_of_model(function)
    if reader is None:
        raise Unknown
    return reader(parameters(function), place)


def parameters(function: Callable) -> dict[str, Any]:
    """The values that a closure holds, by name."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


def is_causal(function: Callable) -> bool:
    """Whether the function is the causal mask function, or a conjunction with it.

    Other functions may be causal, too.
    """
    code = getattr(function, "__code__", None)
    if code is masking_utils.causal_mask_function.__code__:
        return True
    return code is _code("and_masks") and any(map(is_causal, parameters(function)["mask_functions"]))


def key_mask(attended: np.ndarray) -> Mask:
    """The mask of padding: query i of batch entry b attends the keys j with attended[b, j]."""
    if attended.all():
        return Mask.full()
    return _per_batch([_keys(row) for row in attended])


def _keys(row: np.ndarray) -> Mask:
    """The mask of one row of keys, for every query."""
    count = int(row.sum())
    if row[:count].all():
        return Mask.full() if count == len(row) else Mask.prefix(count)
    if row[len(row) - count :].all():
        return ~Mask.prefix(len(row) - count)
    return Mask.from_dense(row)


def _per_batch(masks: list[Mask]) -> Mask:
    return masks[0] if all(mask == masks[0] for mask in masks) else Mask.per_batch(masks)


def _window(place: Place, left: int | None, right: int | None) -> Mask:
    """Query i attends keys from `left` before to `right` after its position. Raises Unknown for an empty window."""
    if (left is not None and left < 0) or (right is not None and right < 0):
        raise Unknown
    shift = place.q_first - place.k_first
    if (shift == 0 and place.n_q <= place.n_k) or (left is None and right is None):
        return Mask.sliding_window(left, right)
    if shift == place.n_k - place.n_q:
        return Mask.sliding_window(left, right, align="bottom-right")
    raise Unknown


def equal_labels(queries: np.ndarray, keys: np.ndarray) -> Mask:
    """Query i attends key j if their labels are equal and not negative.

    Raises Unknown if a label recurs, or if the labels of queries and of keys come in different orders.
    """
    (q_labels, lengths), (k_labels, k_lengths) = _runs(queries), _runs(keys)
    places = {label: i for i, label in enumerate(q_labels) if label >= 0}
    merged: list[tuple[int, int]] = []  # queries and keys of each document, in order
    done = 0  # runs of queries that are merged
    for label, count in zip(k_labels, k_lengths, strict=True):
        place = places.get(label)
        if place is None:
            merged.append((0, count))
        elif place < done:  # before a run that has been merged already
            raise Unknown
        else:
            merged += [(n, 0) for n in lengths[done:place]]
            merged.append((lengths[place], count))
            done = place + 1
    merged += [(n, 0) for n in lengths[done:]]
    for runs in (q_labels, k_labels):
        named = [label for label in runs if label >= 0]
        if len(named) != len(set(named)):
            raise Unknown
    return Mask.documents([n for n, _ in merged], [n for _, n in merged])


def _runs(labels: np.ndarray) -> tuple[list[int], list[int]]:
    """The label and the length of each run of equal labels."""
    starts = np.append(0, np.flatnonzero(np.diff(labels)) + 1) if len(labels) else np.zeros(0, int)
    return labels[starts].tolist(), np.diff(np.append(starts, len(labels))).tolist()


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)


def _rows(tensor: Any, batch: int) -> np.ndarray:
    """The array of a tensor (batch or 1, n), for each batch entry."""
    array = _array(tensor)
    return np.broadcast_to(array, (batch, array.shape[-1]))


# The readers: functions of a closure's parameters that return a mask --------------------------------------------------


def _all_of(held: dict[str, Any], place: Place) -> Mask:
    functions = list(held["mask_functions"])
    packed = next(
        (f for f in functions if getattr(f, "__code__", None) is _code("packed_sequence_mask_function")), None
    )
    if packed is not None:
        place = place._replace(documents=_rows(parameters(packed)["packed_sequence_mask"], place.batch))
    return reduce(_both, [mask_of(function, place) for function in functions])


def _both(a: Mask, b: Mask) -> Mask:
    """Both masks; a window and documents become a window within each document, whose pattern is faster."""
    count = max(math.prod(a.lead), math.prod(b.lead))
    if count > 1:
        return _per_batch([_both(_entry(a, i), _entry(b, i)) for i in range(count)])
    for documents, window in ((a.rule, b.rule), (b.rule, a.rule)):
        if (
            type(documents) is Documents
            and documents.lengths == documents.key_lengths
            and isinstance(window, Window)
            and window.align == "top-left"
        ):
            return Mask.documents(documents.lengths.array, within=Mask(window))
    return a & b


def _entry(mask: Mask, i: int) -> Mask:
    """The mask of one batch entry."""
    return mask.plane(i) if mask.lead else mask


def _any_of(held: dict[str, Any], place: Place) -> Mask:
    return reduce(lambda a, b: a | b, [mask_of(function, place) for function in held["mask_functions"]])


def _causal(held: dict[str, Any], place: Place) -> Mask:
    return _window(place, None, 0)


def _everything(held: dict[str, Any], place: Place) -> Mask:
    return Mask.full()


def _sliding(held: dict[str, Any], place: Place) -> Mask:
    return _window(place, held["sliding_window"] - 1, None)


def _sliding_both_sides(held: dict[str, Any], place: Place) -> Mask:
    return _window(place, held["sliding_window"], held["sliding_window"])


def _chunked(held: dict[str, Any], place: Place) -> Mask:
    size, padding = held["chunk_size"], _array(held["left_padding"])
    masks = []
    for b in range(place.batch):
        queries, keys = (x(b) - padding[b] for x in (place.q_positions, place.k_positions))
        queries, keys = queries // size, keys // size
        first = min(queries.min(initial=0), keys.min(initial=0))  # left padding has negative chunks
        queries, keys = queries - first, keys - first
        if place.documents is not None:  # chunks restart in each document
            span = 1 + max(queries.max(initial=0), keys.max(initial=0))
            queries, keys = queries + span * place.documents[b], keys + span * place.documents[b]
        masks.append(equal_labels(queries, keys))
    return _per_batch(masks)


def _blockwise(held: dict[str, Any], place: Place) -> Mask:
    labels = _rows(held["block_sequence_ids"], place.batch)
    masks = []
    for b in range(place.batch):
        queries, keys = (np.maximum(labels[b][x(b)], -1) for x in (place.q_positions, place.k_positions))
        masks.append(equal_labels(queries, keys))
    return _per_batch(masks)


def _padding(held: dict[str, Any], place: Place) -> Mask:
    attended = _rows(held["padding_mask"], place.batch)
    return key_mask(np.stack([attended[b][place.k_positions(b)] for b in range(place.batch)]))


def _packed(held: dict[str, Any], place: Place) -> Mask:
    labels = _rows(held["packed_sequence_mask"], place.batch)
    if (place.q_first, place.k_first) != (0, 0) or place.n_q != place.n_k:
        raise Unknown
    return _per_batch([equal_labels(labels[b], labels[b]) for b in range(place.batch)])


def _remapped(held: dict[str, Any], place: Place) -> Mask:
    """A mask function of positions that restart in each document. It applies only within documents."""
    if place.documents is None or place.n_q != place.n_k:
        raise Unknown
    positions = _rows(held["position_ids"], place.batch)
    within = np.diff(place.documents, axis=-1) == 0
    if (np.diff(positions, axis=-1)[within] != 1).any():  # then windows on positions differ from windows on tokens
        raise Unknown
    return mask_of(held["mask_function"], place._replace(positions=positions))


def _offset(held: dict[str, Any], place: Place) -> Mask:
    moved = place._replace(
        q_first=place.q_first + int(held["q_offset"]), k_first=place.k_first + int(held["kv_offset"])
    )
    return mask_of(held["mask_function"], moved)


# Mask functions that single models define in their own modules


def _exclusive_both_sides(held: dict[str, Any], place: Place) -> Mask:
    return _window(place, held["sliding_window"] - 1, held["sliding_window"] - 1)


def _two_sides(held: dict[str, Any], place: Place) -> Mask:
    sides = held["sliding_window"]
    if "is_causal" in held:
        sides = (sides, 1) if held["is_causal"] else ((sides + 1) // 2, sides // 2 + 1)
    return _window(place, int(sides[0]) - 1, max(int(sides[1]), 1) - 1)


_MODEL_READERS = {
    "_bidirectional_window_overlay": _exclusive_both_sides,
    "sliding_window_mask_function": _two_sides,
}

_READERS = {
    "and_masks": _all_of,
    "or_masks": _any_of,
    "sliding_window_overlay": _sliding,
    "sliding_window_bidirectional_overlay": _sliding_both_sides,
    "chunked_overlay": _chunked,
    "blockwise_overlay": _blockwise,
    "padding_mask_function": _padding,
    "packed_sequence_mask_function": _packed,
    "remap_positions_for_packed_sequence": _remapped,
    "add_offsets_to_mask_function": _offset,
}


@cache
def _readers() -> dict[Any, Callable[[dict[str, Any], Place], Mask]]:
    """The readers, by the code objects of the functions that transformers' factories return."""
    readers = {_code(name): reader for name, reader in _READERS.items() if _code(name) is not None}
    readers[masking_utils.causal_mask_function.__code__] = _causal
    readers[masking_utils.bidirectional_mask_function.__code__] = _everything
    return readers


def _reader_of_model(function: Callable) -> Callable[[dict[str, Any], Place], Mask] | None:
    """The reader of a function that a factory in a module of one of transformers' models returns; None for others."""
    module = getattr(function, "__module__", None) or ""
    factory = getattr(function, "__qualname__", "").partition(".")[0]
    if factory not in _MODEL_READERS or not module.startswith("transformers.models."):
        return None
    made = _inner_code(getattr(sys.modules.get(module), factory, None))
    return _MODEL_READERS[factory] if made is not None and made is getattr(function, "__code__", None) else None


@cache
def _code(factory: str) -> Any:
    """The code of the function that a factory of transformers.masking_utils returns; None if there is no factory."""
    return _inner_code(getattr(masking_utils, factory, None))


def _inner_code(factory: Any) -> Any:
    """The code of the function that a factory returns; None if there is no factory or it defines several functions."""
    if not hasattr(factory, "__code__"):
        return None
    inner = [x for x in factory.__code__.co_consts if hasattr(x, "co_freevars") and not x.co_name.startswith("<")]
    return inner[0] if len(inner) == 1 else None
