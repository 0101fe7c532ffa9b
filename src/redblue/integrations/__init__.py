"""Adapters of redblue to other libraries. Each module can be imported alone, and imports its library only when used."""
