"""Classes that are parts of other models. A part gets the inputs that a model of the same module passes to it."""

import copy
import inspect
from typing import Any, NamedTuple

import torch


class Part(NamedTuple):
    """A part of a model, and the keyword arguments of its first call."""

    model: Any
    arguments: dict[str, Any]


def parts_of(model: Any, arguments: dict[str, Any], wanted: set[type]) -> dict[type, Part]:
    """The wanted classes that are called when the model runs."""
    by_class: dict[type, Part] = {}

    def keep(part: Any, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if type(part) not in by_class:
            bound = inspect.signature(part.forward).bind(*positional, **keywords)
            named = dict(bound.arguments)
            for name, parameter in inspect.signature(part.forward).parameters.items():
                if parameter.kind is parameter.VAR_KEYWORD:
                    named |= named.pop(name, {})
            by_class[type(part)] = Part(part, _detached(named))

    handles = [
        part.register_forward_pre_hook(keep, with_kwargs=True) for part in model.modules() if type(part) in wanted
    ]
    try:
        if handles:
            torch.manual_seed(3)
            with torch.no_grad():
                model(**copy.deepcopy(arguments))
    finally:
        for handle in handles:
            handle.remove()
    return {cls: Part(copy.deepcopy(part.model), part.arguments) for cls, part in by_class.items()}


def with_implementation(model: Any, implementation: str) -> Any:
    """A copy of a model whose attention is computed by this implementation."""
    model = copy.deepcopy(model)
    for part in model.modules():
        if hasattr(getattr(part, "config", None), "_attn_implementation"):
            part.config._attn_implementation = implementation
    return model


def _detached(value: Any) -> Any:
    """A copy of the arguments, detached from graphs and later changes."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict) and type(value) is dict:
        return {name: _detached(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_detached(part) for part in value)
    return copy.deepcopy(value)
