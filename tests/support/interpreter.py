"""Speed up Triton's interpreter: the same results in a fraction of the time.

Triton replaces the functions of triton.language by interpreted ones before a launch, and again, without effect, before
every call of one jitted function by another. Here each launch replaces them once. Triton also checks sums and products
of whole numbers for overflow, but uses the result only in debug mode. Here it checks only in debug mode. Triton works
out the type and the shape of every intermediate array again. Here arrays of one type share them, and operands of one
type are not converted to it.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class PatchOnce:
    """A `_patch_lang` of Triton that skips language modules which the current launch has already patched."""

    def __init__(self, patch: Callable[[Any], Any], modules: tuple[Any, ...], nothing: Callable[[], Any]) -> None:
        self.patch, self.modules, self.nothing = patch, modules, nothing
        self.visible: dict[tuple[int, int], frozenset[str]] = {}
        self.patched: set[frozenset[str]] = set()

    def __call__(self, function: Any) -> Any:
        visible = self._visible_from(function.__globals__)
        if visible in self.patched:
            return self.nothing()
        scope = self.patch(function)
        if not self.patched:  # a launch, which restores the language when it ends
            restore = scope.restore

            def restore_and_forget() -> None:
                restore()
                self.patched.clear()

            scope.restore = restore_and_forget
        self.patched.add(visible)
        return scope

    def _visible_from(self, names: dict[str, Any]) -> frozenset[str]:
        """List the language modules that a function with these globals can use, by name."""
        key = id(names), len(names)  # Triton adds to them
        if key not in self.visible:
            modules = [value for value in names.values() if inspect.ismodule(value)]
            self.visible[key] = frozenset(x.__name__ for x in modules if any(x is y for y in self.modules))
        return self.visible[key]


def cached_for_scalars(number_type: Callable[[Any], Any], scalar_class: type) -> Callable[[Any], Any]:
    """Cache Triton's function from its number types to those of NumPy, which otherwise builds a table per call."""
    kept: dict[str, Any] = {}

    def number_type_of(kind: Any) -> Any:
        scalar = kind.scalar
        if type(scalar) is not scalar_class:  # a pointer
            return number_type(kind)
        if scalar.name not in kept:
            kept[scalar.name] = number_type(scalar)
        return kept[scalar.name]

    return number_type_of


def cached_block_types(core: Any) -> Callable[..., None]:
    """Cache what the constructor of `core.block_type` computes, by the type of the elements and the shape."""
    construct, kept = core.block_type.__init__, {}

    def constructor(self: Any, element_ty: Any, shape: Any) -> None:
        if type(self) is not core.block_type or type(element_ty) not in (core.dtype, core.pointer_type):
            return construct(self, element_ty, shape)
        sizes = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
        space = element_ty.address_space if isinstance(element_ty, core.pointer_type) else None
        key = element_ty.name, space, sizes
        if key not in kept:
            construct(self, element_ty, shape)
            kept[key] = dict(vars(self))
        vars(self).update(kept[key])
        return None

    return constructor


def cached_tensors(core: Any) -> Callable[..., None]:
    """Cache the shape that the constructor of `core.tensor` computes from a type, by the sizes of the type."""
    construct, kept = core.tensor.__init__, {}

    def constructor(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        if sizes not in kept:
            construct(self, handle, type)
            kept[sizes] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = kept[sizes]

    return constructor


def operands_of_one_type(core: Any, check: Callable[..., Any]) -> Callable[..., Any]:
    """Skip the conversion of two operands to their common type and shape if these are the same."""
    plain = core.float64, core.float32, core.float16, core.int32, core.int64

    def checked(self: Any, lhs: Any, rhs: Any, *options: Any, **more: Any) -> Any:
        divides = more or len(options) == 4  # quotients may have another type
        if type(lhs) is not core.tensor or type(rhs) is not core.tensor or divides:
            return check(self, lhs, rhs, *options, **more)
        if lhs.dtype is rhs.dtype and lhs.shape is rhs.shape and lhs.dtype in plain:  # cached_tensors shares shapes
            return lhs, rhs
        return check(self, lhs, rhs, *options, **more)

    return checked


def cached_result_type(combine: Callable[..., Any]) -> Callable[..., Any]:
    """Cache Triton's function from the types of two operands to the type of the result."""
    kept: dict[Any, Any] = {}

    def result_type(self: Any, a: Any, a_is_scalar: bool, b: Any, b_is_scalar: bool, div_or_mod: bool) -> Any:
        key = a.name, a_is_scalar, b.name, b_is_scalar, div_or_mod
        if key not in kept:
            kept[key] = combine(self, a, a_is_scalar, b, b_is_scalar, div_or_mod)
        return kept[key]

    return result_type


@contextmanager
def fast_interpreter() -> Iterator[PatchOnce | None]:
    """Interpret faster inside the block. Yields the patch.

    Yields None, and changes nothing, if Triton is not imported, if it compiles kernels, or if this version of Triton
    has no function to replace.
    """
    if "triton" not in sys.modules or not sys.modules["triton"].knobs.runtime.interpret:
        yield None
        return
    from triton import language
    from triton.language import semantic
    from triton.runtime import interpreter

    names = "_patch_lang", "_LangPatchScope", "_get_np_dtype", "interpreter_builder"
    if not all(hasattr(interpreter, name) for name in names):
        yield None
        return
    patch, nothing, number_type, builder = (getattr(interpreter, name) for name in names)
    once = PatchOnce(patch, (language, language.core), nothing)
    with pytest.MonkeyPatch.context() as replaced:
        replaced.setattr(interpreter, "_patch_lang", once)
        replaced.setattr(interpreter, "_get_np_dtype", cached_for_scalars(number_type, language.dtype))
        replaced.setattr(language.core.block_type, "__init__", cached_block_types(language.core))
        replaced.setattr(language.core.tensor, "__init__", cached_tensors(language.core))
        rules = semantic.TritonSemantic
        replaced.setattr(rules, "computation_type_impl", cached_result_type(rules.computation_type_impl))
        check = operands_of_one_type(language.core, rules.binary_op_type_checking_impl)
        replaced.setattr(rules, "binary_op_type_checking_impl", check)
        options = builder.options
        replaced.setattr(builder, "options", dataclasses.replace(options, sanitize_overflow=options.debug))
        yield once
