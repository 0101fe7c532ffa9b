"""Attention at the shapes of models, compared with all peers."""
