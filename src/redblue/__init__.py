"""Schedules for exact attention, their exact word counts, proved lower bounds, and plans for real machines."""

import lazy_loader

# __init__.pyi lists the public names. The first use of a name imports its module, so that a program that only calls
# attention does not wait for the laboratory.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
