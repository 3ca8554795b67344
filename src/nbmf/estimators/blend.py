"""`Blend`: several models, one ranking, by the weighted sum of their scores."""

import warnings
from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from nbmf.data.interactions import Interactions
from nbmf.estimators.averaged import check_members, fit_each, warn_once
from nbmf.estimators.base import Recommender
from nbmf.estimators.blend_fit import BlendFit, Numbers, block_of
from nbmf.estimators.blend_weights import learn_weights, size_of
from nbmf.estimators.factorization import Factorization
from nbmf.estimators.factorize import Data, as_number, check_seed
from nbmf.model.factors import Array
from nbmf.storage.container import StorageError

ASIDE = 0.1  # of the counts, by whose ranking weights are learned; the more, the more smooth models are favoured
EXAMPLE = "nbmf.Blend([nbmf.NBSLIM(), nbmf.CompoundMF(50)])"


def _of_the_models(name: str, otherwise: Any) -> Any:
    def of_all(self: Any) -> Any:
        found = [getattr(model, name) for model in self.models]
        return found[0] if found and all(value == found[0] for value in found) else otherwise

    return property(of_all, doc=f"As of the models; {otherwise!r} where they differ.")


class Blend(Recommender):
    """The weighted sum of the scores of several models, each divided by the mean size of its scores.

    It answers `recommend`, `recommend_for`, `predict` (with its scores), `explain` (whose parts are weighted sums of
    the members'), `similar_items` (by the weighted mean of the members' similarities, each relative to the largest that
    the member finds) and `save`. What needs a likelihood or components is asked of a member:
    `model.members_[0].predictive(…)`.

    Learning the weights doubles the time: every model is fitted twice, first without a tenth of the counts, by whose
    ranking (NDCG on counts) weights are chosen, then with all of them. A model that ranks clearly better than the rest
    gets all the weight, unless a mixture ranks clearly better still; models without weight are not asked.

    Parameters
    ----------
    models : list of estimators
        Different models, such as NBSLIM, CompoundMF or Averaged. They are cloned before they are fitted.
    weights : "learn" or list of float
        How much each model counts: numbers from 0 that sum to 1.
    random_state : int, RandomState or None
        Seed of which counts are set aside to learn the weights. The models have their own.

    Attributes
    ----------
    members_ : list
        The fitted models.
    weights_, scales_ : array
        Weight and mean size of the scores of each member: a score is Σ_m weights_[m]/scales_[m] · score of member m.
    n_iter_, converged_ : int, bool
        Largest number of sweeps of a member; whether all have converged. `objective_` is empty.

    Examples
    --------
    >>> import nbmf
    >>> train, test = nbmf.datasets.simulate(80, 60, n_components=4, mean_count=0.5, seed=0).split(seed=0)
    >>> model = nbmf.Blend([nbmf.NBSLIM(), nbmf.PoissonMF(4, random_state=0)], weights=[0.5, 0.5]).fit(train)
    >>> model.recommend(0, n=3).items.shape, model.weights_.tolist()
    ((1, 3), [0.5, 0.5])
    """

    def __init__(
        self, models: Sequence[Recommender] = (), weights: str | ArrayLike = "learn", *, random_state: Any = None
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: None = None) -> Self:
        """Learn the weights and fit all models to data as they take it; Ctrl-C ends the fit and leaves no model."""
        with self._refitting():
            self._check_settings()
            weights = self._weights(self._take(X))
            members, said = self._fitted(X)
            self._unite(members, weights, np.array([size_of(member.result_.scores()) for member in members]))
        warn_once(said, len(members))
        return self

    def score_items(self, rows: NDArray[np.intp]) -> Array:
        """Return the scores of the users in these rows of the training data for all items: len(rows) × n_items."""
        return block_of(self._fit.scores(), rows)

    def add_users(self, data: Any, *, unknown_items: str = "error") -> Self:
        """Add new users to all members, if each of them can; weights stay. See `NBMF.add_users`."""
        return self._grow("add_users", data, unknown_items=unknown_items)

    def partial_fit(self, X: Any, y: None = None, *, refresh: int = 0) -> Self:
        """Continue with more data in all members, if each of them can; weights stay. See `NBMF.partial_fit`."""
        return self._grow("partial_fit", X, refresh=refresh) if hasattr(self, "result_") else self.fit(X)

    def _weights(self, data: Data) -> Numbers:
        """Return the weights that were given, or those that rank best what is set aside from the data."""
        if not isinstance(self.weights, str):
            return np.array(self.weights, np.float64)
        if len(self.models) == 1:
            return np.ones(1)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        share = max(ASIDE, 1.5 / max(data.matrix.nnz, 3))  # at least one count, if there are two
        rest, aside = Interactions(data.users, data.items, data.matrix).split(share, seed=seed)
        if not aside.nnz:
            n = data.matrix.nnz
            raise ValueError(f"{n} {'count is' if n == 1 else 'counts are'} too few to learn weights from; give more")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the fits to all of the data say it again
            members, _ = self._fitted(rest)
        return learn_weights([member.result_ for member in members], aside.matrix, self.n_threads)

    def _fitted(self, X: Any) -> tuple[list[Any], list[dict[Any, Any]]]:
        """Fit clones of all models; return them with what they warned of."""
        members, said = list[Any](), list[dict[Any, Any]]()
        for member in fit_each(map(clone, self.models), X, said):
            if member.ending_ == "interrupted":
                raise KeyboardInterrupt  # Ctrl-C ends all fits, not only this one
            members.append(member)
        return members, said

    def _grow(self, method: str, data: Any, **options: Any) -> Self:
        check_is_fitted(self, "result_")
        stiff = [type(member).__name__ for member in self.members_ if not hasattr(member, method)]
        if stiff:
            raise ValueError(f"{stiff[0]} has no {method}, so a blend with it cannot grow; fit the blend again")
        grown = [getattr(copy(member), method)(data, **options) for member in self.members_]
        self._unite(grown, self.weights_, self.scales_)
        return self

    def _unite(self, members: Sequence[Any], weights: Numbers, scales: Numbers) -> None:
        self._become(BlendFit.of([member.result_ for member in members], weights, scales))
        self.members_, self.weights_, self.scales_ = list(members), weights, scales
        self.n_iter_ = max(member.n_iter_ for member in members)

    def _check_unchanged(self) -> None:
        fit: Any = self._fit
        if len(self.members_) != len(fit.members):
            raise StorageError("members_ are no longer those of the fit; a model file holds what was fitted")
        check_members(self.members_, fit.members)
        if self.weights_ is not fit.weights or self.scales_ is not fit.scales:
            raise StorageError("weights_ or scales_ are no longer those of the fit; a model file holds what was fitted")

    backend, n_threads = _of_the_models("backend", "auto"), _of_the_models("n_threads", None)
    dtype = _of_the_models("dtype", "float32")
    tol = property(lambda self: min((model.tol for model in self.models), default=0.0))  # new users are folded in to it

    def _check_settings(self) -> None:
        check_models(self.models)
        check_seed(self.random_state)
        if isinstance(self.weights, str) and self.weights == "learn":
            return
        given = [as_number(value) for value in np.ravel(np.asarray(self.weights, object)).tolist()]
        is_one_each = np.ndim(self.weights) == 1 and len(given) == len(self.models)
        if not (is_one_each and min(given) >= 0 and abs(sum(given) - 1) <= 1e-6):
            equal = [round(1 / len(self.models), 7)] * len(self.models)
            needed = f"give a number from 0 per model, of sum 1, such as {equal}, or 'learn'"
            raise ValueError(f"weights is {self.weights!r}; {needed}")


def check_models(models: Any) -> None:
    """Refuse what cannot be blended."""
    if not isinstance(models, list | tuple) or not models:
        raise ValueError(f"models is {models!r}; give a list of estimators, as in {EXAMPLE}")
    for n, model in enumerate(models):
        name = type(model).__name__
        if isinstance(model, type):
            raise TypeError(f"models[{n}] is the class {model.__name__}; give an instance, {model.__name__}()")
        if not isinstance(model, Recommender) or isinstance(model, Blend):
            remedy = f"give estimators of nbmf, as in {EXAMPLE}"
            remedy = "list its models instead" if isinstance(model, Blend) else remedy
            raise TypeError(f"models[{n}] is a {name}, which cannot be a member; {remedy}")
        if (name, str(model.get_params())) in [(type(one).__name__, str(one.get_params())) for one in models[:n]]:
            raise ValueError(f"models[{n}] is the same {name} as one before it; give each once{_several(model)}")
        model._check_settings()


def _several(model: Recommender) -> str:
    """Return how to have several starts of a model, if that makes sense."""
    own = model.get_params(deep=False)
    if "n_starts" in own:
        return "; its n_starts says of how many starts it is the mean"
    several = f"; several starts of one are nbmf.Averaged({type(model).__name__}(…), n_runs=5)"
    return several if isinstance(model, Factorization) and "random_state" in own else ""
