"""What does not fit, in one sentence each, and what to try: estimators and settings that the model does not have yet.

A finding completes the sentence "the model …".
"""

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from nbmf.estimators.cells import Occupancy
from nbmf.estimators.fit import FactorFit
from nbmf.estimators.statistics import GROUPS, LARGEST, MEAN, ONES, QUANTILE, VARIANCE, ZEROS, Statistic, figure
from nbmf.inference.run import Ending
from nbmf.model.likelihood import LEAST, MOST

HEAVY_MEAN, HEAVY_TAIL = 2.0, 3.5  # mean of the non-zero counts, and 99 % quantile over it, from which they are heavy
EVEN = 1.5  # variance over the mean, in half of the bins, up to which counts are about as even as Poisson's
COMPOUND = frozenset({"logarithmic_jumps", "geometric_jumps"})
NAMED = {  # estimators, and the kinds of likelihood for which they are nothing new
    "PoissonMF": frozenset({"poisson"}),
    "NBMF": frozenset({"negative_binomial"}),
    "CompoundMF": COMPOUND,
    "ZeroInflatedMF": frozenset({"zero_inflated_poisson"}),
    "BinaryMF": frozenset({"bernoulli_poisson"}),
    "RobustMF": frozenset({"robust_poisson"}),
}
SETTINGS = {  # of a parameter that may have been learned instead, and the kinds of likelihood that have it
    "a smaller concentration": frozenset({"negative_binomial"}),
    "a larger concentration": frozenset({"negative_binomial"}),
    "larger jumps": COMPOUND,
    "smaller jumps": COMPOUND,
}
JUMPS = {"jumps='geometric'": "logarithmic_jumps", "jumps='logarithmic'": "geometric_jumps"}  # and of which they differ
REMEDIES = {  # by what the data has more of than the model expects
    "large counts and zeros": ("CompoundMF", "jumps='logarithmic'", "larger jumps", "input='log1p'", "NBSLIM"),
    "zeros": ("ZeroInflatedMF", "NBMF", "a smaller concentration", "larger jumps"),
    "large counts": ("CompoundMF", "jumps='logarithmic'", "larger jumps"),
    "counts above 1": ("CompoundMF", "jumps='geometric'", "larger jumps"),
    "variance": ("NBMF", "CompoundMF", "a smaller concentration", "jumps='logarithmic'", "larger jumps"),
    "evenness": ("a larger concentration", "smaller jumps", "PoissonMF"),
    "evenness of bursts": ("CompoundMF", "jumps='geometric'", "a larger concentration", "smaller jumps"),
    "ones among bursts": ("CompoundMF", "jumps='logarithmic'", "a larger concentration", "smaller jumps"),
    "ones": ("BinaryMF",),
    "outliers": ("RobustMF",),
    "activity": ("rates='per_row'",),
    "sweeps": ("a larger max_iter",),
    "parameters": ("fewer components", "inference='cavi'"),
}


def find(statistics: Sequence[Statistic], fit: FactorFit) -> tuple[str, ...]:
    """Return a sentence for each kind of statistic that is off: the worst of its kind."""
    of = {each.name: each for each in reversed(statistics)}  # of a name, the first is of all cells
    is_heavy = _is_heavy(of[MEAN].observed, 1 - of[ZEROS].observed, of[QUANTILE].observed)
    variances = [each for each in statistics if each.name == VARIANCE]
    is_even = median(each.observed for each in variances) < EVEN
    even, ones = ("evenness",) * 2 if is_even else ("evenness of bursts", "ones among bursts")
    even = "ones" if of[ONES].observed == 1 else even
    found = [
        _of_zeros(of[ZEROS], fit, even, is_heavy=is_heavy),
        _of_mean(of[MEAN], fit, even),
        _of_ones(of[ONES], fit, ones),
        _of_variance(_worst(variances), fit, even),
        _of_tail(of[QUANTILE], of[LARGEST], fit, even),
    ]
    if of[ZEROS].fits:  # else it is the same again in each group
        for pair in (GROUPS[:2], GROUPS[2:]):
            found.append(_of_groups(_worst([each for each in statistics if each.cells in pair]), fit))
    return tuple(filter(None, found))


def misfit(share: Occupancy, fit: FactorFit) -> str:
    """Return the sentence of a share of zeros that is far too low, as `find` does."""
    is_heavy = _is_heavy(share.observed_mean, share.observed, share.quantile)
    return _few_zeros(1 - share.expected, 1 - share.observed, fit, is_heavy=is_heavy)


def advice(symptom: str, fit: FactorFit) -> str:
    """Return ": try …" with what may help and is not what the model already is; nothing if there is no such thing."""
    if _follows_noise(fit):
        symptom = "parameters"
    elif symptom not in ("activity", "sweeps") and (fit.input == "binary" or fit.model.likelihood.most == 1):
        symptom = "ones"  # whatever is wrong, no other likelihood is of 0 and 1
    apt = [fit.remedies.get(words, words) for words in REMEDIES[symptom] if _is_apt(words, fit)]
    apt = [words for words in apt if words]
    *others, last = apt or [""]
    return f": try {', '.join(others)}{' or ' if others else ''}{last}" if last else ""


def _follows_noise(fit: FactorFit) -> bool:
    """Whether there are more parameters than non-zero counts and no prior: then the likelihood is not to blame."""
    one = getattr(fit, "members", (fit,))[0]
    n_parameters = sum(one.counts.shape) * one.item_posterior.dimensions[1]
    return not one.item_posterior.is_posterior and n_parameters > one.counts.nnz


def _is_apt(words: str, fit: FactorFit) -> bool:
    kind = fit.model.likelihood.kind
    if words in NAMED:
        return kind not in NAMED[words]
    if words in SETTINGS:
        return kind in SETTINGS[words] and not _is_learned(fit)
    if words in JUMPS:
        return kind == JUMPS[words]
    if words == "rates='per_row'":
        return fit.user_posterior.is_posterior and not fit.model.user_prior.per_row
    return words != "input='log1p'" or fit.input == "counts"


def _is_learned(fit: FactorFit) -> bool:
    """Whether the likelihood was learned: nobody sets a number per user or item, one at the bounds, or 0.8375128…."""
    values = fit.model.likelihood.parameters.values()
    return any(
        np.ndim(v) or not LEAST < v < MOST or not math.isclose(float(f"{v:.6g}"), v, rel_tol=1e-13) for v in values
    )


def _is_heavy(mean: float, non_zeros: float, quantile: float) -> bool:
    """Whether non-zero counts are large and of many sizes; if they are of one size, being exposed or not explains more.

    The quantile is 4.6 times the mean if they are exponential, and at most 2.5 times for Poisson counts of 2 and more.
    """
    return mean > HEAVY_MEAN * non_zeros and quantile * non_zeros > HEAVY_TAIL * mean


def _worst(statistics: Sequence[Statistic]) -> Statistic:
    return max(statistics, key=lambda each: (not each.fits, abs(math.log(each.ratio))))


def _of_mean(each: Statistic, fit: FactorFit, even: str) -> str:
    what = f"expects a mean count of {figure(each.expected)} where it is {figure(each.observed)}"
    if each.is_too_high and fit.ending is not Ending.CONVERGED:
        return f"{what}; the fit has not got far{advice('sweeps', fit)}"
    if each.is_too_high:
        return f"{what}{advice(even, fit)}"
    why = "large counts are explained by exposure" if fit.model.likelihood.has_exposure else "large counts are missed"
    return f"{what}; {why}{advice('large counts', fit)}" if each.is_too_low else ""


def _of_zeros(each: Statistic, fit: FactorFit, even: str, *, is_heavy: bool) -> str:
    if each.is_too_low:
        return _few_zeros(each.expected, each.observed, fit, is_heavy=is_heavy)
    return f"{_zeros(each.expected, each.observed)}{advice(even, fit)}" if each.is_too_high else ""


def _few_zeros(expected: float, observed: float, fit: FactorFit, *, is_heavy: bool) -> str:
    what = _zeros(expected, observed)
    if not is_heavy:
        return f"{what}{advice('zeros', fit)}"
    has_exposure = fit.model.likelihood.has_exposure
    why = "zero counts are being explained as missing exposure" if has_exposure else "counts are rarer and larger"
    return f"{what}; {why}{advice('large counts and zeros', fit)}"


def _zeros(expected: float, observed: float) -> str:
    texts = percents(expected, observed)
    return f"expects {texts[0]} zeros where {texts[1]} are"


def _of_ones(each: Statistic, fit: FactorFit, ones: str) -> str:
    if each.fits:
        return ""
    texts = percents(each.expected, each.observed)
    if each.observed == 1:
        [more, _] = percents(1 - each.expected, 0)
        return f"expects {more} of the non-zero counts to be above 1 where all are 1{advice('ones', fit)}"
    what = f"expects {texts[0]} of the non-zero counts to be 1 where {texts[1]} are"
    return f"{what}{advice('counts above 1' if each.is_too_high else ones, fit)}"


def _of_variance(each: Statistic, fit: FactorFit, even: str) -> str:
    if each.fits:
        return ""
    what = f"expects a variance of {figure(each.expected)} times the mean where it is {figure(each.observed)} times"
    return f"{what}, in cells {each.cells}{advice('variance' if each.is_too_low else even, fit)}"


def _of_tail(quantile: Statistic, largest: Statistic, fit: FactorFit, even: str) -> str:
    if not quantile.fits:
        numbers = figure(quantile.expected), figure(quantile.observed)
        what = f"expects 1 % of the non-zero counts above {numbers[0]} where 1 % are above {numbers[1]}"
        return f"{what}{advice('large counts' if quantile.is_too_low else even, fit)}"
    if largest.fits:
        return ""
    what = f"expects a largest count of about {figure(largest.expected)} where it is {figure(largest.observed)}"
    return f"{what}{advice('outliers' if largest.is_too_low else even, fit)}"


def _of_groups(each: Statistic, fit: FactorFit) -> str:
    if each.fits:
        return ""
    return f"{_zeros(each.expected, each.observed)} among the {each.cells}{advice('activity', fit)}"


def percents(*shares: float) -> tuple[str, ...]:
    """Return shares in per cent, with as many digits as tell all of them from 0 and 100.

    >>> percents(0.611, 0.951), percents(0.992, 0.99951)
    (('61 %', '95 %'), ('99.20 %', '99.95 %'))
    """
    least = min((100 * min(share, 1 - share) for share in shares if 0 < share < 1), default=50.0)
    digits = min(max(math.ceil(-math.log10(least / 3)), 0), 4)
    return tuple(f"{100 * share:.{digits}f} %" for share in shares)
