"""The first random fits of a seed; `make torture` tries tens of thousands."""

import pytest

from torture.fits import FaultError, draw, try_case

SEED, N_CASES, PER_TEST = 0, 200, 40


@pytest.mark.parametrize("first", range(0, N_CASES, PER_TEST))
def test_random_fits_hold(first):
    failed = {}
    for number in range(first, first + PER_TEST):
        try:
            try_case(draw(SEED, number))
        except FaultError as fault:
            failed[f"python tests/torture/fits.py --seed {SEED} --case {number}"] = str(fault)
    assert not failed


def test_a_fault_is_seen(monkeypatch):
    """A model that answers with a number that is not finite does not pass."""
    case = next(case for case in (draw(SEED, n) for n in range(99)) if case.name == "PoissonMF")
    model = case.estimator().fit(case.data(), **case.control())
    model.item_factors_[:] = float("nan")
    monkeypatch.setattr(type(model), "fit", lambda self, *data, **control: model)
    with pytest.raises(FaultError, match="item_factors_: not finite"):
        try_case(draw(SEED, next(n for n in range(99) if draw(SEED, n).name == "PoissonMF")))
