"""The names of the experiment's parts and of the attentions that it compares, as in rows, tables and figures."""

PARTS = ("curves", "steps", "memory", "bert", "tasks", "sparse", "context", "graph")

SDPA, UNFUSED, REDBLUE, NONE = "PyTorch SDPA", "PyTorch unfused", "redblue", "no attention"
FLEX, GATHERED = "FlexAttention", "gather and scatter"
