"""`Averaged`: several starts, one model. The mean of their scores ranks better than any of them."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from nbmf.estimators.factorization import Factorization
from nbmf.estimators.factorize import MisfitWarning, check_seed, check_whole
from nbmf.estimators.fit import AverageFit
from nbmf.estimators.nbmf import NBMF
from nbmf.inference.run import Algorithm, Ending
from nbmf.storage.container import StorageError

SAID_ONCE = (ConvergenceWarning, MisfitWarning)  # with the number of members that say it


def fit_each(models: Iterable[Any], X: Any, said: list[dict[Any, Any]], **control: Any) -> Iterator[Any]:
    """Fit estimators one after another, and yield each; what `warn_once` is to repeat is added to `said`."""
    for model in models:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, **control)
        said.append({warning.category: warning.message for warning in caught if warning.category in SAID_ONCE})
        for warning in caught:
            if warning.category not in SAID_ONCE:
                warnings.warn(warning.message, warning.category, stacklevel=3)
        yield model


def check_members(members: Sequence[Any], fits: Sequence[Any]) -> None:
    """Refuse to save a model whose members were fitted again or changed: it would not be what answers."""
    for n, member in enumerate(members):
        member._check_unchanged()
        if member.result_ is not fits[n]:
            raise StorageError(f"members_[{n}] is no longer that of the fit; a model file holds what was fitted")


def warn_once(said: Sequence[dict[Any, Any]], n_members: int) -> None:
    """Repeat the first warning of each kind, with the number of members that gave one."""
    for kind in SAID_ONCE:
        texts = [str(one[kind]) for one in said if kind in one]
        if texts:
            warnings.warn(f"{len(texts)} of {n_members} members: {texts[0]}", kind, stacklevel=3)


def _of_the_members(name: str) -> Any:
    return property(lambda self: getattr(self._example, name), doc="As for the members.")


class Averaged(Factorization):
    """The mean of the scores of several fits that differ in their random start.

    It answers as its members do: `recommend`, `predict`, `explain` (whose parts are means of theirs), `transform`, …

    Parameters
    ----------
    estimator : estimator with factors, optional
        What is fitted n_runs times, NBMF() by default.
    n_runs : int
        Number of starts.
    random_state : int, RandomState or None
        Seed from which those of the starts are drawn; the estimator's own is not used.

    Attributes
    ----------
    members_ : list
        The fitted estimators.
    user_factors_, item_factors_ : array
        Those of all members side by side, n_users × (n_runs·K) and n_items × (n_runs·K).
    objective_ : array
        Of the member whose last one is highest; the others are in members_.

    Examples
    --------
    >>> import nbmf
    >>> train, test = nbmf.datasets.simulate(80, 60, n_components=4, mean_count=0.5, seed=0).split(seed=0)
    >>> model = nbmf.Averaged(nbmf.NBMF(4), n_runs=3, random_state=0).fit(train)
    >>> model.user_factors_.shape, len(model.members_)
    ((80, 12), 3)
    """

    def __init__(self, estimator: Factorization | None = None, n_runs: int = 5, *, random_state: Any = None) -> None:
        self._keep(locals())

    @classmethod
    def of(cls, members: Sequence[Factorization], settings: dict[str, Any]) -> "Averaged":
        """Return the average of fitted estimators."""
        model = cls(clone(members[0]).set_params(random_state=None), **settings)
        model._unite(members)
        return model

    def fit(self, X: Any, y: None = None, **control: Any) -> Self:
        """Fit all starts, with the arguments of the estimator's own fit; they cannot share a checkpoint.

        After Ctrl-C no further start is begun: the model is the mean of those that were.
        """
        self._check_settings()
        for name in ("checkpoint", "resume"):
            if control.get(name) is not None:
                raise ValueError(f"{name} belongs to one start; fit the members one by one to keep checkpoints of them")
        if "random_state" not in self._example.get_params(deep=False):
            raise ValueError(
                f"{type(self._example).__name__} has no random_state, so every run would be the same; fit it once"
            )
        if "n_starts" in self._example.get_params(deep=False):
            raise TypeError(f"{type(self._example).__name__} averages its own starts; set its n_starts instead")
        if not isinstance(self._example, Factorization):
            name = type(self._example).__name__
            raise TypeError(
                f"{name} cannot be averaged; Averaged takes a model with factors, such as NBMF or CompoundMF"
            )
        rng = check_random_state(self.random_state)
        seeds = [int(rng.randint(np.iinfo(np.int32).max)) for _ in range(self.n_runs)]
        said = list[dict[Any, Any]]()
        starts = (clone(self._example).set_params(random_state=seed) for seed in seeds)
        members = list[Any]()
        for member in fit_each(starts, X, said, **control):
            members.append(member)
            if member.ending_ == Ending.INTERRUPTED.value:
                break
        self._unite(members)
        warn_once(said, len(members))
        return self

    @property
    def _example(self) -> Any:
        return NBMF() if self.estimator is None else self.estimator

    backend, n_threads, tol, dtype = map(_of_the_members, ("backend", "n_threads", "tol", "dtype"))

    def _algorithm(self) -> Algorithm:
        return self._example._algorithm()  # type: ignore[no-any-return]

    def _check_settings(self) -> None:
        check_whole("n_runs", self.n_runs)
        check_seed(self.random_state)
        self._example._check_settings()

    def _unite(self, members: Sequence[Factorization]) -> None:
        result = AverageFit.of([member.result_ for member in members])
        self.members_ = list(members)
        self._become(result)

    def _check_unchanged(self) -> None:
        super()._check_unchanged()
        check_members(self.members_, self.result_.members)

    def _become(self, result: AverageFit) -> None:  # type: ignore[override]
        """Take over the average, and its members as copies of the estimators that made them."""
        super()._become(result)
        members = [clone(member) for member in self.members_]
        for member, fit in zip(members, result.members, strict=True):
            member._become(fit)
        self.members_ = members
