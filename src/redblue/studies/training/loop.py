"""The training loop: the same for every task and every attention, and continued bit for bit from a checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from redblue.studies.training import checkpoints

CHECKPOINT_SECONDS = 60.0
WARM_UP = 30  # steps


class Run(NamedTuple):
    """The result of a run: the loss and the seconds of each step, and the start of the SHA-256 of the last weights."""

    losses: list[float]
    seconds: list[float]
    weights: str


class Training:
    """A model in training.

    loss(step): the loss of the batch of this step. The batch depends only on the step, so that a run can be continued.
    steps: steps of the whole run. The learning rate rises to `rate` over WARM_UP steps, and then stays constant. path:
    the path of the checkpoint, which is written every CHECKPOINT_SECONDS; None for a run that cannot be continued.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[int], torch.Tensor],
        steps: int,
        rate: float,
        path: Path | None,
    ) -> None:
        self.model, self.loss, self.steps, self.rate, self.path = model, loss, steps, rate, path
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
        self.losses, self.seconds = list[float](), list[float]()
        self.notes = list[list[float]]()  # data of the caller, saved in the checkpoint
        self._saved = time.monotonic()
        if path and (state := checkpoints.load(path)):
            model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.losses, self.seconds, self.notes = state["losses"], state["seconds"], state["notes"]

    def step(self) -> None:
        """One step: forward, backward, AdamW; then a checkpoint if the last one is old."""
        start = time.perf_counter()
        number = len(self.losses)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, (number + 1) / WARM_UP)
        self.optimizer.zero_grad()
        loss = self.loss(number)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)
        if time.monotonic() - self._saved > CHECKPOINT_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the checkpoint. Raises RedblueError if the disk is full."""
        if self.path:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "notes": self.notes}
            checkpoints.save(self.path, state | {"losses": self.losses, "seconds": self.seconds})
        self._saved = time.monotonic()

    def finish(self) -> Run:
        """Run the remaining steps, then write the checkpoint. The caller deletes it once the result is kept."""
        while len(self.losses) < self.steps:
            self.step()
        self.save()
        return Run(self.losses, self.seconds, digest(self.model))


def digest(model: nn.Module) -> str:
    """The start of the SHA-256 of a model's weights: equal only if they are bitwise equal."""
    hashed = hashlib.sha256()
    for parameter in model.parameters():
        hashed.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:16]


def autocast(dtype: str) -> contextlib.AbstractContextManager[object]:
    """The context of a forward pass: autocast for bfloat16, with weights and optimizer in float32; none for float32."""
    return torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()
