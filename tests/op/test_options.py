"""The record of a call's options: the same names everywhere, and in the signatures of public functions."""

import inspect
from typing import get_type_hints

import pytest

import redblue as rb
from redblue.kernels.mask_argument import MaskArgument
from redblue.kernels.options import ARRAYS, SCHEMA, TABLE, WITH_GRADIENT, Arguments, CommonArguments, Options
from redblue.kernels.options import PackedArguments as Packed


def test_the_lists_of_names_agree():
    assert list(TABLE) == list(Options._fields)
    assert set(get_type_hints(Arguments)) == set(TABLE)
    assert set(get_type_hints(Packed)) == set(TABLE) - {"bias", "positions"}
    assert SCHEMA.count(",") + 1 == len(Options(MaskArgument()).flat)
    assert (*WITH_GRADIENT, *(name for name in ARRAYS if name not in WITH_GRADIENT)) == Options._fields[-len(ARRAYS) :]


@pytest.mark.parametrize("module", ["redblue", "redblue.jax", "redblue.distributed"])
def test_every_call_shows_the_common_options(module):
    names = {"redblue": ["attention_paged"], "redblue.jax": ["dot_product_attention"]}.get(module, ["attention"])
    for name in names:
        shown = inspect.signature(getattr(pytest.importorskip(module), name)).parameters
        assert set(get_type_hints(CommonArguments)) <= set(shown)


def test_the_op_on_pages_takes_the_common_options():
    torch = pytest.importorskip("torch")
    rb.register_ops()
    taken = {argument.name for argument in torch.ops.redblue.attention_paged.default._schema.arguments}
    assert set(get_type_hints(CommonArguments)) <= taken


def test_flat_arguments_and_parts_give_the_record_back():
    record = Options(MaskArgument(3, name="x"), *range(1, len(TABLE)))
    assert Options.unflatten(record.flat) == record
    assert Options(*record.others, *record.tensors) == record
    assert record.arrays == tuple(getattr(record, name) for name in ARRAYS)
    assert record.with_gradient == tuple(getattr(record, name) for name in WITH_GRADIENT)


@pytest.mark.parametrize(
    ("function", "positional", "without"),
    [(rb.attention, 3, ()), (rb.attention_backward, 6, ()), (rb.attention_varlen, 4, ("bias", "positions"))],
)
def test_signatures_and_help_name_every_option(function, positional, without):
    parameters = inspect.signature(function).parameters
    for name, default in Options._field_defaults.items():
        if name in without:
            assert name not in parameters
        else:
            assert parameters[name].default == default
            assert f"\n{name}: " in function.__doc__
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values())
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got an unexpected keyword argument 'biass'"):
        function(*[None] * positional, biass=1)


def test_packed_sequences_take_no_bias():
    with pytest.raises(TypeError, match=r"attention_varlen\(\) got an unexpected keyword argument 'bias'"):
        rb.attention_varlen([], [], [], [0], bias=1)
