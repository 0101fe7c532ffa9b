"""Compares every model class of transformers that dispatches attention, at tiny size, on redblue with eager."""
