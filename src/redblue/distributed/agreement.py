"""The exchange of arguments before a distributed call: it ensures that all processes agree, so that none waits forever.

A process whose arguments are wrong reports this to the others, and every process raises an error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from redblue.base.errors import RedblueError
from redblue.distributed.failures import Failures
from redblue.distributed.messages import swap
from redblue.masks import Mask
from redblue.masks.numbers import Numbers
from redblue.masks.rules.rule import Rule, fold
from redblue.schedules.network import Placement

RECORD_BYTES = 2048
TAG = 1 << 20  # beyond the tags of the call's own messages


class Shard(NamedTuple):
    """The arguments of one process.

    queries, keys: its numbers of tokens. seed: the seed of dropout; all ranks use that of rank 0. call: the values that
    must be the same in all processes.
    """

    queries: int
    keys: int
    seed: int | None
    call: dict[str, Any]


def agree(own: Shard | Exception, group: dist.ProcessGroup, device: torch.device, failures: Failures) -> list[Shard]:
    """The shards of all processes, by rank. Raises RedblueError in every process unless all calls agree."""
    record = {"error": str(own)} if isinstance(own, Exception) else own._asdict()
    records = _all_records(record, group, device, failures)
    if isinstance(own, Exception):
        raise own
    for rank, other in enumerate(records):
        if "error" in other:
            raise RedblueError(f"rank {rank} refused its arguments: {other['error']}")
    first = records[0]["call"]
    for rank, other in enumerate(records):
        for name, value in first.items():
            if other["call"][name] != value:
                raise RedblueError(
                    f"{name} must be the same on all ranks, but rank 0 has {value} and rank {rank} has "
                    f"{other['call'][name]}"
                )
    return [Shard(**record) for record in records]


def _all_records(
    record: dict[str, Any], group: dist.ProcessGroup, device: torch.device, failures: Failures
) -> list[dict[str, Any]]:
    """Exchange records with every process, point to point, so that the rank of a missing process is known."""
    text = encoded(record)
    own = torch.zeros(RECORD_BYTES, dtype=torch.uint8)
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    own = own.to(device)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    others = [(rank + i) % size for i in range(1, size)]
    if not others:
        return [record]
    buffers = {other: torch.empty_like(own) for other in others}
    swap(dict.fromkeys(others, own), buffers, group, failures, TAG)
    buffers[rank] = own
    return [json.loads(bytes(buffers[other].cpu().numpy()).rstrip(b"\0")) for other in range(size)]


def encoded(record: dict[str, Any]) -> bytes:
    """The record as JSON of at most RECORD_BYTES bytes; the end of a long error is cut off."""
    text = json.dumps(record).encode()
    message = record.get("error", "the text of its arguments is too long")[:RECORD_BYTES]
    while len(text) > RECORD_BYTES:
        text = json.dumps({"error": message}).encode()
        message = message[: len(message) * 9 // 10]
    return text


@lru_cache(maxsize=8)
def digest_of_mask(mask: Mask) -> str:
    """A short text that is equal for equal masks, in every process."""
    return fold(mask.rule, _digest_of_rule)


def _digest_of_rule(rule: Rule, parts: list[str]) -> str:
    if rule.operator is not None:  # the order of the parts of & and | is arbitrary
        return _digest(rule.operator.__name__, *sorted(parts))
    own = [getattr(rule, field.name) for field in dataclasses.fields(rule) if field.name != "rules"]  # pyright: ignore
    return _digest(type(rule).__name__, *parts, *own)


def digest_of_placement(placement: Placement) -> str:
    """A short text that is equal for equal placements, in every process."""
    return _digest(*placement.positions)


def digest_of_array(array: np.ndarray) -> str:
    """A short text that is equal for equal arrays, in every process."""
    return _digest(array.shape, array)


def _digest(*values: Any) -> str:
    hashed = hashlib.sha256()
    for value in values:
        array = value.array if isinstance(value, Numbers) else value
        data = array.tobytes() if isinstance(array, np.ndarray) else repr(array).encode()
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.hexdigest()[:16]
