"""Attention over several processes: bytes on the wire, times over slow links, memory, and training."""
