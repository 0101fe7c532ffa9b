"""Schedules for exact attention, their exact word counts, proved lower bounds, and plans for real machines."""

from . import pebble
from .base.errors import RedblueError, UnknownName
from .base.version import __version__ as __version__
from .bounds import Bound, lower_bound, lower_bounds
from .catalogue.memories import Memory, list_memories, memory, this_machine
from .catalogue.models import Model, list_models, model
from .kernels.positions import Positions
from .lab.counts import Count, count
from .lab.planner import plan
from .lab.plans import Plan
from .lab.registration import register_schedule, unregister_schedule
from .lab.simulation import Simulation, simulate
from .lab.traces import Traced, trace
from .machine import CacheLevel, CapacityError
from .masks import Mask
from .meter import Measurement, measure, measure_callable
from .op.api import attention, attention_backward
from .op.flex_attention import flex_attention
from .op.paged.attention import append_paged, attention_paged, merge_attention
from .op.pytorch.flash_ops import enable_flash_ops, flash_ops
from .op.pytorch.registration import register_ops
from .op.pytorch.sdpa_override import enable_sdpa, sdpa
from .op.scaled_dot_product import scaled_dot_product_attention
from .op.varlen import attention_varlen
from .paged_problem import PagedProblem
from .problem import Problem
from .schedules import NotCovered, TooFewWords, list_schedules

__all__ = [
    "Bound",
    "CacheLevel",
    "CapacityError",
    "Count",
    "Mask",
    "Measurement",
    "Memory",
    "Model",
    "NotCovered",
    "PagedProblem",
    "Plan",
    "Positions",
    "Problem",
    "RedblueError",
    "Simulation",
    "TooFewWords",
    "Traced",
    "UnknownName",
    "append_paged",
    "attention",
    "attention_backward",
    "attention_paged",
    "attention_varlen",
    "count",
    "enable_flash_ops",
    "enable_sdpa",
    "flash_ops",
    "flex_attention",
    "list_memories",
    "list_models",
    "list_schedules",
    "lower_bound",
    "lower_bounds",
    "measure",
    "measure_callable",
    "memory",
    "merge_attention",
    "model",
    "pebble",
    "plan",
    "register_ops",
    "register_schedule",
    "scaled_dot_product_attention",
    "sdpa",
    "simulate",
    "this_machine",
    "trace",
    "unregister_schedule",
]
