"""The meter: words that a kernel really moves."""

from redblue.meter.choice import measure
from redblue.meter.record import Amount, Measurement

__all__ = ["Amount", "Measurement", "measure"]
