"""A plug-in that replaces vLLM's attention backend for CPUs, CPU_ATTN, by redblue.

vLLM finds `register` by the entry point `vllm.general_plugins` of the installed redblue and calls it in each of its
processes. It changes nothing unless the environment variable REDBLUE_VLLM is 1. docs/guide/vllm.md lists the
supported models. Importing this package loads neither vLLM nor PyTorch.
"""

from redblue.integrations.vllm.registration import register
from redblue.integrations.vllm.variable import VARIABLE

__all__ = ["VARIABLE", "register"]
