"""A tensor (batch, 1, n_q, n_k) that holds a redblue mask instead of its entries.

Models of transformers pass masks around as tensors: some read the shape, slice them, join them with others or compute
with them. A MaskTensor provides its shape and type without entries. Any other operation computes the entries once
and uses them. If a model writes into the entries, the rule becomes invalid, and attention reads the entries instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from redblue.masks import Mask


class MaskTensor(Tensor):
    """A mask of all heads. Its entries are True, or 0 in a floating type, where a query attends a key.

    The other entries are False, or the lowest number of the type.
    mask: the rule for the first `used` keys; None if every query attends all of these.
    used: the number of keys up to the last one that some query may attend. Caches of a fixed size have unused keys
    after these.
    If `is_changed`, the rule is no longer valid, and the entries are the mask.
    """

    mask: Mask | None
    used: int
    sizes: tuple[int, ...]  # the shape; reading it takes less time than reading `shape`
    entries: Tensor | None
    version: int  # PyTorch's version counter of the entries when they were computed

    @staticmethod
    def __new__(
        cls, mask: Mask | None, used: int, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.bool
    ) -> MaskTensor:
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.mask, made.used, made.sizes, made.entries, made.version = mask, used, shape, None, 0
        return made

    @property
    def is_changed(self) -> bool:
        """Whether the entries, or a view of them, have been written to."""
        return self.entries is not None and self.entries._version != self.version

    def copy(self) -> Tensor:
        """An equal tensor with separate memory."""
        if self.is_changed:
            return self.dense().clone()
        return MaskTensor(self.mask, self.used, self.sizes, self.device, self.dtype)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if self.is_changed:
            return repr(self.dense())
        mask = Mask.full() if self.mask is None else self.mask
        return f"MaskTensor({mask!r}, used={self.used}, shape={self.sizes})"

    def dense(self) -> Tensor:
        """The entries as a plain tensor (batch, 1, n_q, n_k). They are computed once."""
        if self.entries is None:
            with torch.inference_mode(False):  # inference tensors do not count their versions
                self.entries = self._computed()
            self.version = self.entries._version
        return self.entries

    def _computed(self) -> Tensor:
        batch, _, n_q, n_k = self.shape
        planes = torch.zeros(1, 1, n_q, n_k, dtype=torch.bool)
        if self.mask is None:
            planes[..., : self.used] = True
        else:
            array = torch.from_numpy(self.mask.to_dense(n_q, self.used))
            array = array if array.dim() == 4 else array[None, None]
            planes = planes.repeat(len(array), 1, 1, 1)
            planes[..., : self.used] = array
        planes = planes.to(self.device)
        if self.dtype.is_floating_point:
            planes = torch.zeros(planes.shape, dtype=self.dtype, device=self.device).masked_fill_(
                ~planes, torch.finfo(self.dtype).min
            )
        return planes.expand(batch, 1, n_q, n_k)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in _FACTS or name in _QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if args and isinstance(args[0], MaskTensor) and _changes_nothing(name, args[0], args[1:], kwargs):
            return args[0].copy() if name == "clone" or kwargs.get("copy") else args[0]
        return func(*_with_entries(args), **_with_entries(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_with_entries(args), **_with_entries(kwargs or {}))


def _with_entries(tree: Any) -> Any:
    """The arguments of an operation, with MaskTensors replaced by plain tensors."""
    return tree_map_only(MaskTensor, MaskTensor.dense, tree)


_FACTS = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cpu", "is_cuda", "is_leaf", "grad")
} | {Tensor.grad_fn.__get__, Tensor.is_nested.__get__, Tensor.is_sparse.__get__, Tensor.is_meta.__get__}  # pyright: ignore
_QUESTIONS = {
    "dim",
    "size",
    "numel",
    "ndimension",
    "is_floating_point",
    "is_complex",
    "__len__",
    "__hash__",
    "__repr__",
}
_COPIES = {"detach", "contiguous", "clone", "alias", "requires_grad_"}


def _changes_nothing(name: str, mask: MaskTensor, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether an operation on a mask returns an equal tensor."""
    if name in _COPIES:
        return not any(args)
    if name in ("to", "cpu"):
        wanted = [*args, *kwargs.values()]
        return all(
            x is mask.dtype
            or isinstance(x, bool)
            or (isinstance(x, (str, torch.device)) and torch.device(x) == mask.device)
            for x in wanted
        ) and (name != "cpu" or mask.device.type == "cpu")
    if name == "__getitem__":
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        return len(index) <= 4 and all(
            isinstance(x, slice) and x.indices(n) == (0, n, 1) for x, n in zip(index, mask.shape, strict=False)
        )
    return False
