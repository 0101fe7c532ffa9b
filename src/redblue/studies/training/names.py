"""The names of the attentions that training runs compare. They are texts of rows, tables and figures."""

SDPA, UNFUSED, REDBLUE, NONE = "PyTorch SDPA", "PyTorch unfused", "redblue", "no attention"
FLEX, GATHERED = "FlexAttention", "gather and scatter"
