"""Options of a call in the form of PyTorch's ops."""

from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import Options


def flat_options(mask=None, **options):
    """Return options as the positional arguments of the ops."""
    return Options(mask or MaskArgument(), **options).flat
