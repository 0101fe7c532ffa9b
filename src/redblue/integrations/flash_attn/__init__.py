"""The interface of FlashAttention 2 (the package flash-attn, 2.8) on redblue's kernels, for CPUs and GPUs.

Import the functions from here, or call `install()` once: then `import flash_attn` imports this package in every other
module, if the real package is not installed. docs/guide/flash-attn.md lists every function and argument.
"""

from redblue.base.errors import RedblueError

try:
    import torch  # noqa: F401
except ImportError:
    raise RedblueError("flash-attn's interface needs PyTorch: pip install 'redblue[torch]'") from None

from redblue.integrations.flash_attn.batched import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
)
from redblue.integrations.flash_attn.installation import FLASH_ATTN_VERSION, Installation, install
from redblue.integrations.flash_attn.kv_cache import flash_attn_with_kvcache
from redblue.integrations.flash_attn.packed import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

__all__ = [
    "FLASH_ATTN_VERSION",
    "Installation",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
]
