"""redblue as an attention implementation of Hugging Face transformers: `attn_implementation="redblue"`.

    from redblue.integrations.transformers import register

    register()
    model = AutoModel.from_config(config, attn_implementation="redblue")

`register` adds an attention function and a mask function to transformers' registries. The mask function translates
transformers' mask functions (causal, windows, chunks, packed sequences, padding, prefixes) into rules of
`redblue.Mask`, so that no array of n_q x n_k is built for them. On CPUs, `generate_batch` (continuous batching) reads
its paged cache in place, through `redblue.attention_paged`. docs/guide/transformers.md lists the supported calls.
Importing this package loads neither transformers nor PyTorch.
"""

from redblue.integrations.transformers.registration import NAME, Registration, register

__all__ = ["NAME", "Registration", "register"]
