"""The names of the experiment's parts and of its attentions, as rows, tables and figures show them."""

PARTS = ("curves", "steps", "memory", "bert", "tasks", "sparse", "context", "graph")

SDPA, UNFUSED, REDBLUE, NONE = "PyTorch SDPA", "PyTorch unfused", "redblue", "no attention"
FLEX, GATHERED = "FlexAttention", "gather and scatter"
