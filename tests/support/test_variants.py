"""The variants that `make test` keeps contain every combination of values of a number of parameters."""

from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest

from support.variants import spread

PARAMETERS = {"isa": range(4), "dtype": range(3), "tile": range(5)}


@dataclass(eq=False)  # hashed by identity, as pytest's items are
class Variant:
    name: str
    callspec: SimpleNamespace


@pytest.fixture(scope="module")
def variants():
    every = [dict(zip(PARAMETERS, values, strict=True)) for values in product(*PARAMETERS.values())]
    return [Variant(name=str(params), callspec=SimpleNamespace(params=params)) for params in every]


@pytest.mark.parametrize(("together", "fewest", "most"), [(0, 1, 1), (1, 5, 5), (2, 20, 26), (3, 60, 60), (4, 60, 60)])
def test_every_combination_of_values_is_kept(variants, together, fewest, most):
    kept = spread(variants, together)
    assert fewest <= len(kept) <= most
    for item in variants:
        for names in product(PARAMETERS, repeat=min(together, len(PARAMETERS))):
            alike = [x for x in kept if all(x.callspec.params[n] == item.callspec.params[n] for n in names)]
            assert alike, (item.name, names)


def test_every_run_keeps_the_same(variants):
    assert spread(variants, 2) == spread(list(reversed(variants)), 2)


def test_chosen_variants_are_kept_and_few_are_added(variants):
    chosen = spread(variants, 1)
    kept = spread(variants, 2, chosen)
    assert chosen < kept
    assert len(kept) <= 26
    assert spread(variants, 1, chosen) == chosen


def test_no_variants():
    assert spread([]) == set()
