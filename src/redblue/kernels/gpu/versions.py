"""The versions of Triton that the kernels need."""

from __future__ import annotations

from redblue.base.errors import RedblueError

OLDEST_TRITON = (3, 3)
OLDEST_DESCRIPTORS = (3, 6)  # the oldest version that compiled the kernels with TMA
OLDEST_DROPOUT_GRADIENTS = (3, 4)  # a pass of 3.3's compiler fails on the kernel of dK and dV with dropout


def check_triton() -> None:
    """Raise RedblueError if Triton is missing or too old."""
    _check(OLDEST_TRITON, "tensors on a GPU")


def check_gradients_with_dropout() -> None:
    """Raise RedblueError if Triton is too old to compile the gradients of dropout."""
    _check(OLDEST_DROPOUT_GRADIENTS, "gradients with dropout")


def has_descriptors() -> bool:
    """Whether this Triton compiles the kernels that load by TMA."""
    import triton

    return _number(triton.__version__) >= OLDEST_DESCRIPTORS


def _check(oldest: tuple[int, int], feature: str) -> None:
    try:
        import triton
    except ImportError as error:
        raise RedblueError(
            "tensors on a GPU need Triton: pip install 'redblue[gpu]', or move them with .cpu()"
        ) from error
    version = triton.__version__
    if _number(version) < oldest:
        raise RedblueError(f"{feature} need Triton {oldest[0]}.{oldest[1]} or newer, got {version}: update PyTorch")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
