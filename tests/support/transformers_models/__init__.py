"""Every model class of transformers that dispatches attention, at tiny size, on redblue beside transformers' eager."""
