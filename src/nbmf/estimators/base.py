"""What every estimator does: take counts, run inference, keep what was found. What it answers is in its mixins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Tags, check_random_state

from nbmf.backends import Backend, make_backend
from nbmf.backends.counts import Counts, take_unknown
from nbmf.data.interactions import Interactions
from nbmf.estimators.explain import Explaining
from nbmf.estimators.files import write_model
from nbmf.estimators.fit import Fitted, dots
from nbmf.estimators.grow import Growing
from nbmf.estimators.predictive import Forecasting
from nbmf.inference.accelerate import Accelerated
from nbmf.inference.cavi import CAVI
from nbmf.inference.checkpoints import Checkpoints, Origin, read_checkpoint, resumed
from nbmf.inference.hyperparameters import Learned
from nbmf.inference.mm import MM
from nbmf.inference.progress import Progress
from nbmf.inference.run import Algorithm, Ending, Snapshot, Stopping, run
from nbmf.inference.state import State, begin
from nbmf.model import Model
from nbmf.model.factors import Point, Prior
from nbmf.model.likelihood import Likelihood, Poisson
from nbmf.storage.container import Path, StorageError

Array = NDArray[np.floating[Any]]

ALGORITHMS: dict[str, Callable[[Learned], Algorithm]] = {"cavi": CAVI, "mm": MM}


class CountFactorization(Growing, Explaining, Forecasting):
    """What the estimators share. A subclass says which law the counts follow and which exposures are tied."""

    n_components: int
    user_shape: float
    item_shape: float
    rates: str
    shapes: str
    inference: str
    init: str | tuple[ArrayLike, ArrayLike]
    accelerate: bool
    random_state: Any
    verbose: bool

    def _likelihood(self) -> Likelihood:
        raise TypeError(f"{type(self).__name__} names no likelihood")

    def _n_ties(self, matrix: sp.csr_array) -> int | None:
        """Number of item clusters whose unseen cells share an exposure; None ties nothing."""
        return None

    def _work(self, matrix: sp.csr_array, n_ties: int | None) -> float:
        """Products a sweep: over the non-zeros, or over all cells where each has its own exposure."""
        every_cell = not isinstance(self._likelihood(), Poisson) and n_ties is None
        cells = float(matrix.shape[0]) * matrix.shape[1] if every_cell else float(matrix.nnz)
        return cells * self.n_components

    def _learned(self) -> Learned:
        """Which hyper-parameters follow the data."""
        for name, allowed in (("rates", ("shared", "per_row")), ("shapes", ("fixed", "learn"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; it must be {' or '.join(map(repr, allowed))}")
            if value != allowed[0] and self.inference == "mm":
                raise ValueError(f"{name} is {value!r}, but maximum likelihood ('mm') has no priors; use 'cavi'")
        return Learned(rates=self.rates == "per_row", shapes=self.shapes == "learn")

    def _algorithm(self) -> Algorithm:
        algorithm = ALGORITHMS[self.inference](self._learned())
        return Accelerated(algorithm) if self.accelerate else algorithm

    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        unknown: Any = None,
        callbacks: Iterable[Callable[[Snapshot], Any]] = (),
        stopping: Stopping | None = None,
        checkpoint: Path | None = None,
        checkpoint_every: int | timedelta = timedelta(minutes=1),
        resume: Path | None = None,
    ) -> Self:
        """Factorize a users × items matrix of counts.

        Parameters
        ----------
        X : Interactions, or scipy sparse matrix, array or data frame of shape (n_users, n_items)
            Any finite numbers from 0; what a sparse matrix does not store is a zero.
        y : ignored
        unknown : cells of which nothing is known, so that no count there is not a zero: what it stores (Interactions of
            the same ids, sparse matrix or array, of X's shape) is left out of the likelihood, whatever X has there
        callbacks : functions called after each sweep with a snapshot of it (`sweep`, `objective`, `user_factors`,
            `item_factors`), such as `lambda s: mlflow.log_metric("objective", s.objective, step=s.sweep)`; one that
            returns True ends the fit
        stopping : an `nbmf.EarlyStopping`, which ends the fit when held-out data says so and keeps the best sweep
        checkpoint : path of a file from which the fit can go on if it is cut short; it is replaced now and then and
            once more at the end, also after Ctrl-C. If that fails, the fit warns and goes on.
        checkpoint_every : that many sweeps, or a `datetime.timedelta`
        resume : path of a checkpoint to go on from, with the same data and settings (max_iter, tol, n_threads and
            verbose may change). The result is that of an undisturbed fit, bit for bit.

        Returns
        -------
        self, fitted. Ctrl-C during the fit keeps the last finished sweep and warns.
        """
        return self.fit_with(
            None,
            X,
            unknown=unknown,
            callbacks=callbacks,
            stopping=stopping,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            resume=resume,
        )

    def fit_with(self, backend: Backend | None, X: Any, **options: Any) -> Self:
        """`fit` by a backend that was made elsewhere; None for the one that the settings name."""
        with self._refitting():
            self._become(self._fit(backend, X, **options))
        return self

    def _fit(
        self,
        backend: Backend | None,
        X: Any,
        *,
        unknown: Any = None,
        callbacks: Iterable[Callable[[Snapshot], Any]] = (),
        stopping: Stopping | None = None,
        checkpoint: Path | None = None,
        checkpoint_every: int | timedelta = timedelta(minutes=1),
        resume: Path | None = None,
    ) -> Fitted:
        self._check_settings()
        if stopping is not None and resume is not None:
            raise ValueError("stopping cannot be resumed: a checkpoint does not hold the best sweep so far")
        likelihood = self._likelihood()
        users, items, matrix = self._take(X)
        rng = check_random_state(self.random_state)
        n_ties = self._n_ties(matrix)
        backend = backend or make_backend(self.backend, self.n_threads, self._work(matrix, n_ties))
        left_out = take_unknown(unknown, users, items)
        counts = Counts.of(self._prepare(matrix), np.dtype(self.dtype), left_out)
        saved = checkpoints = None
        if checkpoint is not None or resume is not None:
            origin = Origin.of(type(self).__name__, self.get_params(deep=False), counts)
            if resume is not None:
                saved, rng = read_checkpoint(resume, origin, self.max_iter)
            if checkpoint is not None:
                checkpoints = Checkpoints(checkpoint, checkpoint_every, origin, rng)
        tie = partial(backend.cluster, n_clusters=n_ties, rng=rng) if n_ties else None
        model = Model(likelihood, Prior(self.user_shape, self.user_shape), Prior(self.item_shape, self.item_shape))

        def start() -> State:
            if saved is not None:
                return resumed(saved, counts, backend)
            W, H = self._start(matrix.shape, rng)
            return begin(model, counts, backend, W, H, tie(Point(H)) if tie else None)

        with Progress(type(self).__name__, self.max_iter, quiet=not self.verbose) as progress:
            found = run(
                self._algorithm(),
                start(),  # not held here: a sweep lets go of what it is done with
                counts,
                backend,
                max_iter=self.max_iter,
                tol=self.tol,
                tie=tie,
                resume=saved,
                watch=partial(_watch, (progress.report, *callbacks, stopping, checkpoints)),
            )
        if checkpoints is not None:
            checkpoints.finish()
        kept = found.last if stopping is None else stopping.choose(found.last)
        if found.ending is Ending.INTERRUPTED:
            warnings.warn(f"fit interrupted: the model is that of sweep {kept.sweep}", stacklevel=3)
        return Fitted(
            users=users,
            items=items,
            counts=matrix,
            model=kept.state.model,
            user_posterior=kept.state.users.on_host(),
            item_posterior=kept.state.items.on_host(),
            objective=np.array(kept.objectives),
            ending=found.ending,
            exposure=None if isinstance(likelihood, Poisson) else "tied" if n_ties else "exact",
            item_names=X.item_names if isinstance(X, Interactions) else None,
            has_feature_names=hasattr(self, "feature_names_in_"),
            ties=kept.state.ties,
            unknown=left_out,
        )

    def _become(self, fitted: Fitted) -> None:
        """Take over what a fit has found, this one or that of a model file."""
        self._note(fitted)
        self.user_posterior_, self.item_posterior_ = fitted.user_posterior, fitted.item_posterior
        self.user_factors_, self.item_factors_ = fitted.user_posterior.mean, fitted.item_posterior.mean
        self.components_ = self.item_factors_.T
        self.concentration_ = fitted.model.likelihood.concentration
        if fitted.exposure is not None:
            self.exposure_ = fitted.exposure

    def save(self, path: Path) -> None:
        """Write the model to a file, from which `nbmf.load(path)` brings it back as it is, data and settings included.

        The file is replaced as a whole or not at all, is checked when it is loaded, and loading it runs no code; what
        is in it is in docs/format.md. Ids must be strings or numbers.

        >>> import pathlib, tempfile, nbmf
        >>> model = nbmf.NBMF(1, random_state=0).fit([[4, 0], [2, 2]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(pathlib.Path(folder, "model.nbmf"))
        ...     same = nbmf.load(pathlib.Path(folder, "model.nbmf"))
        >>> (same.predict(0, [0, 1]) == model.predict(0, [0, 1])).all()
        np.True_
        """
        self._check_unchanged()
        write_model(path, type(self).__name__, self.get_params(deep=False), self._found)

    def _check_unchanged(self) -> None:
        found = self._found
        if self.user_factors_ is not found.user_posterior.mean or self.item_factors_ is not found.item_posterior.mean:
            raise StorageError("the factors are no longer those of the fit; a model file holds what was fitted")

    def predict(self, users: Any, items: ArrayLike | None = None) -> Array:
        """Return the expected counts E[y*] = Σ_k ⟨w_uk⟩⟨h_ik⟩ of pairs of ids, Eq. (score).

        Without items, `users` are rows of counts of new users, as for `transform`, and the result is the expected total
        of each, Σ_i E[y*]: scikit-learn asks for a predict(X) with a number for each row. The counts of all items are
        `transform(X) @ components_`.
        """
        if items is None:
            return np.asarray(self.transform(users) @ self.components_.sum(axis=1))
        rows, columns = self._pairs(users, items)
        return dots(self.user_factors_, self.item_factors_, rows, columns)

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn what type of numbers to expect of `transform`."""
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # `dtype` says of what type factors are
        return tags

    def _check_settings(self) -> None:
        self._check_common()
        if not isinstance(self.n_components, Integral) or self.n_components < 1:
            raise ValueError(f"n_components is {self.n_components!r}; it must be a whole number from 1")
        for name in ("user_shape", "item_shape"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 < float(value) < np.inf:
                raise ValueError(f"{name} is {value!r}; a gamma prior needs a positive shape")
        if self.inference not in ALGORITHMS:
            raise ValueError(f"inference is {self.inference!r}; it must be one of {', '.join(map(repr, ALGORITHMS))}")

    def _start(self, shape: tuple[int, int], rng: np.random.RandomState) -> tuple[Array, Array]:
        sizes = [(n, self.n_components) for n in shape]
        if isinstance(self.init, str):
            if self.init != "random":
                raise ValueError(f"init is {self.init!r}; it must be 'random' or a pair of arrays (W0, H0)")
            users, items = (rng.gamma(1.0, 1.0, size).astype(self.dtype) for size in sizes)
            return users, items
        if not isinstance(self.init, tuple | list) or len(self.init) != 2:
            raise ValueError(f"init is {self.init!r}; it must be 'random' or a pair of arrays (W0, H0)")
        users, items = (np.ascontiguousarray(values, dtype=self.dtype) for values in self.init)
        for name, values, size in (("W0", users, sizes[0]), ("H0", items, sizes[1])):
            if values.shape != size:
                raise ValueError(f"init: {name} has shape {values.shape}; this data and n_components ask for {size}")
            if not np.all((values > 0) & np.isfinite(values)):
                raise ValueError(f"init: {name} must be positive and finite; a zero would stay zero for ever")
        return users, items


def _watch(watches: Sequence[Callable[[Snapshot], Any] | None], snapshot: Snapshot) -> bool:
    """Call all that there are; only True itself ends a run, as loggers return all sorts of things."""
    answers = [watch(snapshot) for watch in watches if watch is not None]
    return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)
