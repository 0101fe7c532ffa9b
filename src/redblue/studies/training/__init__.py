"""Training runs for `redblue experiment training`: texts, generated tasks, a model, checkpoints."""
