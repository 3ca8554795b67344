"""A small contest for the tests of models compared: counts with groups in them, and fits without processes."""

import numpy as np

import nbmf
from nbmf.experiments import contest as contests
from nbmf.experiments.contest import Contest
from nbmf.experiments.workers import Outcome

N_GROUPS = 4
QUICK = Contest(("popularity", "ease", "poisson"), n_trials=3, n_starts=2)


def planted(seed=0):
    """Return counts of users who take from their own group of items, one of them nothing; an item nobody takes."""
    rng = np.random.RandomState(seed)
    user_group, item_group = np.arange(120) % N_GROUPS, np.arange(60) % N_GROUPS
    chance = np.where(user_group[:, None] == item_group, 0.6, 0.06)
    counts = (rng.random_sample((120, 60)) < chance) * (1 + rng.negative_binomial(1, 0.4, (120, 60)))
    counts[-1], counts[:, -1] = 0, 0
    return nbmf.Interactions.from_matrix(counts).split(0.2, seed=seed)


def in_this_process(work, shared, tasks, n_workers, *, limit_s=None):
    """Do what `attempt` does, without processes."""
    for task in tasks:
        try:
            yield Outcome(task, work(shared, task), None)
        except Exception as error:
            yield Outcome(task, None, error)


def make_quick(patch):
    """Make fits here, each once."""
    patch.setattr(contests, "attempt", in_this_process)
    patch.setattr(contests, "REPEATS", 1)
