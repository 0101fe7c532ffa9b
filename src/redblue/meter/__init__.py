"""The meter: measure the words that a kernel really moves."""

from redblue.meter.callables import measure_callable
from redblue.meter.record import Amount, Measurement
from redblue.meter.registry import measure

__all__ = ["Amount", "Measurement", "measure", "measure_callable"]
