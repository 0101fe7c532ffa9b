"""Masks as text that any process turns into the same mask again: the form in which saved graphs hold masks.

The text is `redblue-mask:1:DIGEST:JSON`. The JSON is a list of rules, in which the parts of a composed rule come before
it. A simple rule is stored as its name and its fields, a composed rule as its operator and the indices of its parts in
the list. Arrays are compressed.

A text is accepted only if its digest is right, the constructors accept its values, and writing the mask again gives the
same list.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from redblue.base.errors import RedblueError
from redblue.base.integers import ceil_div, whole_number
from redblue.masks.mask import Mask
from redblue.masks.numbers import Numbers
from redblue.masks.rules import algebra, arrays, bands, block_patterns, layouts, packed, periodic, tokens
from redblue.masks.rules.dense import Dense
from redblue.masks.rules.rule import Rule, every_part
from redblue.masks.rules.stack import Stack

PREFIX = "redblue-mask:1:"
MAX_ARRAY_BYTES = 1 << 28  # bytes of all arrays of a mask
MAX_CHARACTERS = 1 << 24  # characters of the text


def _blocks(bits: bytes, shape: list[int], block: list[int]) -> Rule:
    return layouts.Blocks.of(_unpacked(bits, shape), block)


def _dense(bits: bytes, shape: list[int], block: list[int]) -> Rule:
    return Dense.of_array(_unpacked(bits, shape))


def _unpacked(bits: bytes, shape: list[int]) -> np.ndarray:
    """The boolean array that np.packbits packed."""
    rows, cols = (whole_number("shape", n, 0) for n in shape)
    if len(bits) != ceil_div(rows * cols, 8):
        raise RedblueError(f"an array of {rows} x {cols} bits takes {ceil_div(rows * cols, 8)} bytes, got {len(bits)}")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows * cols).view(np.bool_).reshape(rows, cols)


def _windowed(lengths: Any, key_lengths: Any, window: Rule) -> Rule:
    return packed.documents(lengths, key_lengths, window)


# The name of each simple rule, its class, and the function that makes it from its fields and checks them.
SIMPLE: dict[str, tuple[type[Rule], Callable[..., Rule]]] = {
    "window": (bands.Window, bands.Window),
    "blocks": (layouts.Blocks, _blocks),
    "dense": (Dense, _dense),
    "csr": (arrays.Csr, arrays.Csr.of),
    "prefix": (tokens.Prefix, lambda **fields: Mask.prefix(**fields).rule),
    "global_tokens": (tokens.GlobalTokens, lambda **fields: Mask.global_tokens(**fields).rule),
    "documents": (packed.Documents, lambda **fields: Mask.documents(**fields).rule),
    "windowed_documents": (packed.WindowedDocuments, _windowed),
    "dilated": (periodic.DilatedWindow, lambda **fields: Mask.dilated(**fields).rule),
    "strided": (periodic.Strided, lambda **fields: Mask.strided(**fields).rule),
    "n_of_m": (periodic.NOfM, lambda **fields: Mask.n_of_m(**fields).rule),
    "butterfly": (block_patterns.Butterfly, lambda **fields: Mask.butterfly(**fields).rule),
    "bigbird": (block_patterns.BigBird, lambda **fields: Mask.bigbird(**fields).rule),
    "random_blocks": (block_patterns.RandomBlocks, lambda **fields: Mask.random_blocks(**fields).rule),
}
OPERATORS: dict[str, type[algebra.Combined]] = {"and": algebra.Both, "or": algebra.Either}
NAMES = {rule: name for name, (rule, _) in SIMPLE.items()} | {kind: name for name, kind in OPERATORS.items()}


def text_of(mask: Mask) -> str:
    """Write a mask as text. Raises RedblueError for a mask whose text would be too long."""
    size = sum(_array_bytes(rule) for rule in every_part(mask.rule))
    if size > MAX_ARRAY_BYTES:
        raise _too_large(f"its arrays take {size:,} bytes, at most {MAX_ARRAY_BYTES:,} are allowed")
    try:
        body = json.dumps(_listed(mask), separators=(",", ":"), default=_compressed)
    except ValueError as error:  # whole numbers of thousands of digits
        raise _too_large(str(error)) from None
    if len(body) > MAX_CHARACTERS:
        raise _too_large(f"its text has {len(body):,} characters, at most {MAX_CHARACTERS:,} are allowed")
    return f"{PREFIX}{_digest(body)}:{body}"


def mask_of(text: str) -> Mask:
    """Read the text of a mask. Raises RedblueError for any text that `text_of` did not write."""
    digest, _, body = text.removeprefix(PREFIX).partition(":")
    if not text.startswith(PREFIX) or digest != _digest(body):
        raise _damaged(text, "its digest does not match")
    try:
        listed = json.loads(body, object_hook=_with_arrays)
        group, nodes = listed
        rules: list[Rule] = []
        for node in nodes:
            rules.append(_rule(node, rules))
        mask = Mask(rules[-1], whole_number("group", group))
        same = _listed(mask) == listed
    except (RedblueError, ValueError, TypeError, LookupError, OverflowError, RecursionError, zlib.error) as error:
        raise _damaged(text, str(error)) from None
    if not same:
        raise _damaged(text, "redblue would write another text for this mask")
    return mask


def _too_large(why: str) -> RedblueError:
    return RedblueError(
        f"the mask cannot be written into a graph as text: {why}. Build it from rules (such as Mask.documents), or "
        "give a boolean bias, which is a tensor"
    )


def _damaged(text: str, why: str) -> RedblueError:
    return RedblueError(
        f"the text of a mask is damaged, or another version of redblue wrote it ({why}): {text[:80]!r}; export the "
        "module again"
    )


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()


def _array_bytes(rule: Rule) -> int:
    if not dataclasses.is_dataclass(rule):
        return 0
    values = (getattr(rule, field.name) for field in dataclasses.fields(rule))
    return sum(8 * len(x) if isinstance(x, Numbers) else len(x) if isinstance(x, bytes) else 0 for x in values)


def _listed(mask: Mask) -> list[Any]:
    """A mask as JSON, with arrays as bytes. Equal rules are listed once: the list depends on values alone."""
    distinct: dict[Rule, int] = {}
    nodes = []
    for rule in every_part(mask.rule):
        if rule not in distinct:
            distinct[rule] = len(distinct)
            nodes.append(_node(rule, [distinct[part] for part in rule.parts]))
    return [mask.group, nodes]


def _node(rule: Rule, places: list[int]) -> list[Any]:
    """One rule as JSON. places: the places of its parts in the list."""
    if isinstance(rule, algebra.Not):
        return ["not", places]
    if isinstance(rule, algebra.Combined):
        return [NAMES[type(rule)], places]
    if isinstance(rule, Stack):
        return ["stack", places, _encoded(rule.planes), list(rule.shape)]
    fields: Any = dataclasses.fields(rule)  # type: ignore[arg-type]
    return [NAMES[type(rule)], {field.name: _encoded(getattr(rule, field.name)) for field in fields}]


def _rule(node: list[Any], before: list[Rule]) -> Rule:
    """The inverse of `_node`. before: the rules before this one."""
    name, content, *more = node
    if name in SIMPLE:
        return SIMPLE[name][1](**{field: _decoded(value) for field, value in content.items()})
    parts = [before[whole_number("place", i, 0)] for i in content]
    if name == "stack":
        planes, shape = _decoded(more[0]), tuple(whole_number("shape", n) for n in more[1])
        if len(planes) != math.prod(shape):
            raise RedblueError(f"shape {shape} needs {math.prod(shape)} planes, got {len(planes)}")
        return Stack.of([parts[whole_number("plane", i, 0)] for i in planes], shape)
    if name == "not":
        return algebra.negated(*parts)
    return algebra.combined(OPERATORS[name], parts)


def _encoded(value: Any) -> Any:
    """A field of a rule as JSON."""
    if isinstance(value, Rule):
        return {"rule": _node(value, [])}
    if isinstance(value, Numbers):
        return {"numbers": value.array.astype("<i8").tobytes()}
    if isinstance(value, bytes):
        return {"bytes": value}
    return list(value) if isinstance(value, tuple) else value


def _decoded(value: Any) -> Any:
    """The inverse of `_encoded`; a list of numbers becomes an array."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "rule":
        return _rule(content, [])
    return np.frombuffer(content, "<i8").astype(np.int64) if kind == "numbers" else content


def _compressed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _with_arrays(read: dict[str, Any]) -> dict[str, Any]:
    """Decompress the array of a JSON object that holds an array; return any other object unchanged."""
    for kind in ("numbers", "bytes"):
        if kind in read:
            return {kind: zlib.decompress(base64.b64decode(read[kind], validate=True))}
    return read
