"""Trace a score_mod: run it once on single numbers and record its operators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from redblue.base.errors import RedblueError
from redblue.masks.mask_mod import ScalarIndexing
from redblue.op.pytorch.flex.expressions import POSITIONS, SCORE, Expression, Node, aten, text, value_of

# The results of these depend on the type of their first argument only
_FRESH = {aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty}


class Recorder(TorchDispatchMode):
    """A context that records every operator whose arguments depend on the arguments of score_mod.

    Everything else, such as a table that score_mod computes from a module's parameters, is computed as usual, with its
    gradient, and is a constant of the expression.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[int, Node] = {}  # by the id of the tensor, which the node holds
        self.constants: dict[int, Tensor] = {}  # results that are the same for all scores, by their id
        self.operands: dict[int, Tensor] = {}  # tensors that nodes read later, each by the id of its memory
        self.with_gradient = torch.is_grad_enabled()

    def argument(self, name: str, value: Tensor) -> Tensor:
        """Declare an argument of score_mod."""
        self.nodes[id(value)] = Node(name, (), {}, value, frozenset((name,)))
        return value

    def expression(self, value: Any) -> Any:
        """The node of a recorded tensor; anything else unchanged."""
        return self.nodes.get(id(value), value) if isinstance(value, Tensor) else value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorded_args, recorded_kwargs = tree_map(self.expression, args), tree_map(self.expression, kwargs)
        nodes = [x for x in tree_leaves((recorded_args, recorded_kwargs)) if isinstance(x, Node)]
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise RedblueError(f"score_mod draws random numbers ({func}): it must be a function of its arguments")
        if func.overloadpacket == aten.set_:
            raise RedblueError(
                "score_mod copies the memory of a tensor, which takes its value out of the trace: compute with the "
                "tensor itself"
            )
        if any(_memory(x) in self.operands for x in _written(func, args, kwargs)):
            raise _changes_in_place(func)
        if not nodes or func.overloadpacket in _FRESH:
            result = func(*args, **kwargs)
            self.constants |= {id(x): x for x in tree_leaves(result) if isinstance(x, Tensor)}
            return result
        if func.overloadpacket in (aten._local_scalar_dense, aten.nonzero):
            raise RedblueError(
                f"score_mod reads the value of {text(nodes[0])}, which represents all scores at once: write "
                "torch.where in place of if, and keep tensors"
            )
        if func._schema.is_mutable:
            raise _changes_in_place(func)
        result = func(*args, **kwargs)
        leaves = tree_leaves((recorded_args, recorded_kwargs))
        self.operands |= {_memory(x): x for x in leaves if isinstance(x, Tensor)}
        names = frozenset[str]().union(*(node.names for node in nodes))
        grad = torch.is_grad_enabled() or not self.with_gradient
        node = Node(func, recorded_args, recorded_kwargs, result, names, grad)
        if isinstance(result, Tensor):
            self.nodes.setdefault(id(result), node)  # some operators return their argument
        elif isinstance(result, (tuple, list)) and all(isinstance(part, Tensor) for part in result):
            for i, part in enumerate(result):
                self.nodes[id(part)] = Node(operator.getitem, (node, i), {}, part, names, grad)
        else:
            raise RedblueError(
                f"score_mod uses {func}, which does not return tensors, on {text(nodes[0])}: use functions that return "
                "tensors"
            )
        return result


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operator changes in place."""
    if not func._schema.is_mutable:
        return []
    rules = func._schema.arguments
    arguments = [*zip(rules, args, strict=False), *((rule, kwargs.get(rule.name)) for rule in rules)]
    written = [x for rule, x in arguments if rule.alias_info is not None and rule.alias_info.is_write]
    return [x for x in tree_leaves(written) if isinstance(x, Tensor)]


def _memory(x: Tensor) -> int:
    """A number that is equal for tensors that share memory."""
    try:
        return x.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a sparse tensor
        return id(x)


def _changes_in_place(func: Any) -> RedblueError:
    return RedblueError(f"score_mod changes a tensor in place ({func}): write x = x + y in place of x += y")


# PyTorch's functions that copy values from a list, which the recorder does not see
_FROM_VALUES = {"tensor", "as_tensor", "asarray", "new_tensor", "new"}

# PyTorch's functions that read facts of a tensor other than its value; `__get__` reads a property. Functions with names
# that begin with is_ read such facts, too.
_FACTS = {
    "dim",
    "numel",
    "nelement",
    "size",
    "stride",
    "ndimension",
    "get_device",
    "element_size",
    "__len__",
    "__get__",
}


class Indexing(ScalarIndexing):
    """ScalarIndexing for a trace. It refuses functions that hide a recorded value from the recorder, as NumPy's do."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        expressions = [self.recorder.expression(x) for x in tree_leaves((args, kwargs))]
        name = getattr(func, "__name__", str(func))
        is_fact = name in _FACTS or name.startswith("is_")
        is_copy = name in _FROM_VALUES and id(result) not in self.recorder.nodes
        if is_copy and any(isinstance(x, Node) for x in expressions):
            raise RedblueError(f"score_mod uses {name} on a list, which takes values out of the trace: use torch.stack")
        # type_as may return its argument
        results = [x for x in tree_leaves(result) if not any(x is y for y in expressions)]
        if any(isinstance(x, Node) for x in expressions) and not all(self._is_known(x, is_fact) for x in results):
            raise RedblueError(
                f"score_mod uses {name}, which takes a tensor's value out of the trace: use PyTorch's functions on "
                "tensors"
            )
        return result

    def _is_known(self, x: Any, is_fact: bool) -> bool:
        """Whether a result is a tensor known to the recorder, or, if `is_fact`, not a tensor's value."""
        if isinstance(x, Tensor):
            return id(x) in self.recorder.nodes or id(x) in self.recorder.constants
        kinds = (bool, int, torch.dtype, torch.device, torch.layout)
        return x is None or (is_fact and isinstance(x, kinds)) or isinstance(x, torch.dtype)


def trace(score_mod: Callable[..., Any], dtype: torch.dtype, device: torch.device) -> Expression:
    """The expression that score_mod returns. dtype: the type in which scores are computed.

    Raises RedblueError for a function that cannot be evaluated for all scores at once.
    """
    wants_gradient = torch.is_grad_enabled()
    score = torch.zeros((), dtype=dtype, device=device, requires_grad=wants_gradient)
    positions = [torch.zeros((), dtype=torch.int64, device=device) for _ in POSITIONS]
    with Recorder() as recorder, Indexing(recorder):
        recorder.argument(SCORE, score)
        for name, position in zip(POSITIONS, positions, strict=True):
            recorder.argument(name, position)
        try:
            result = score_mod(score, *positions)
        except RedblueError:
            raise
        except Exception as error:
            raise RedblueError(f"score_mod(score, b, h, q_idx, kv_idx) cannot be traced: {error!r}") from error
    if not isinstance(result, Tensor) or result.dim() or result.is_complex():
        got = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
        raise RedblueError(f"score_mod must return one real number for one score, got {got}")
    for node in recorder.nodes.values():
        # Only the result of a torch.autograd.Function has a gradient although its operators ran without gradients
        if not node.with_gradient and value_of(node).requires_grad:
            raise RedblueError(
                f"score_mod uses a torch.autograd.Function, which has a custom gradient, in {text(node)}: use "
                "PyTorch's own functions"
            )
    return recorder.expression(result)
