"""The fixture of the tests with PyTorch's compiler."""

from support.compiler import fresh_compiler  # noqa: F401
