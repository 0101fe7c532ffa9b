"""The names of the experiment's parts, attentions and number types, as rows, tables and figures show them."""

PARTS = ("curves", "steps", "memory", "bert", "tasks", "sparse", "context", "graph")

SDPA, UNFUSED, REDBLUE, NONE = "PyTorch SDPA", "PyTorch unfused", "redblue", "no attention"
FLEX, GATHERED = "FlexAttention", "gather and scatter"

TRAINING_DTYPES = ("float32", "bfloat16")  # of the forward pass
