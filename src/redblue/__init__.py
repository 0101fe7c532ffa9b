"""Schedules for exact attention, their exact word counts, proved lower bounds, and plans for real machines."""

from redblue import pebble
from redblue.base.errors import RedblueError, UnknownName
from redblue.base.version import VERSION
from redblue.bounds import Bound, lower_bound, lower_bounds
from redblue.catalogue.memories import Memory, list_memories, memory, this_machine
from redblue.catalogue.models import Model, list_models, model
from redblue.kernels.positions import Positions
from redblue.lab.counts import Count, count
from redblue.lab.planner import plan
from redblue.lab.plans import Plan
from redblue.lab.registration import register_schedule, unregister_schedule
from redblue.lab.simulation import Simulation, simulate
from redblue.lab.traces import Traced, trace
from redblue.machine import CacheLevel, CapacityError
from redblue.masks import Mask
from redblue.meter import Measurement, measure, measure_callable
from redblue.op.api import attention, attention_backward
from redblue.op.flex_attention import flex_attention
from redblue.op.paged import append_paged, attention_paged, merge_attention
from redblue.op.pytorch.flash_ops import enable_flash_ops, flash_ops
from redblue.op.pytorch.registration import register_ops
from redblue.op.pytorch.sdpa_override import enable_sdpa, sdpa
from redblue.op.scaled_dot_product import scaled_dot_product_attention
from redblue.op.varlen import attention_varlen
from redblue.paged_problem import PagedProblem
from redblue.problem import Problem
from redblue.schedules import NotCovered, TooFewWords, list_schedules

__version__ = VERSION

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
