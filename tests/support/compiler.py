"""A fixture for tests with PyTorch's compiler."""

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
