import pytest

from redblue.lab.sweep_family import pairs_read


@pytest.mark.parametrize("x", [0.1, 1, 2**0.5, 3.5, 11, 12, 30.5, 100])
def test_a_product_reads_its_pairs_the_best_number_of_times(x):
    assert pairs_read(x) == pytest.approx(min(b + x**2 / b for b in range(1, 1000)))
