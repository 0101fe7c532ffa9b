"""Fixtures of the tests with PyTorch: its compiler, new memory and random numbers."""

import pytest


@pytest.fixture
def fresh_compiler():
    """Use no cache on disk, because another version of this project may have written it."""
    import torch._functorch.config
    import torch._inductor.config

    torch._dynamo.reset()
    torch.manual_seed(0)
    on_disk = {"fx_graph_cache": False}
    with torch._inductor.config.patch(on_disk), torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


@pytest.fixture
def nan_in_new_memory():
    """Fill new memory with NaN, which shows in every element that a kernel does not write."""
    import torch

    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def seeded():
    import torch

    torch.manual_seed(0)
