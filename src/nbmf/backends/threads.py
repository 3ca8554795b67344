"""Work on several threads: rows cut by their work, tasks handed out, matrix products on one BLAS thread.

Cuts never depend on the number of threads and one thread does a task, so any number of them gives the same bits.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
Result = TypeVar("Result")

HEARD_WITHIN = 0.2  # seconds until Ctrl-C is heard
MOST_THREADS = 8 * (os.cpu_count() or 1)  # more only wait for each other


def cut_evenly(work: NDArray[Any], n_pieces: int) -> list[int]:
    """Return the bounds of at most n_pieces stretches of rows with about equal work.

    Here and below, `work` is that of all rows before each row and, at last, of all rows.

    >>> cut_evenly(np.array([0, 5, 6, 7, 8, 13]), 3)
    [0, 1, 5]
    """
    return list(map(int, np.unique(np.searchsorted(work, np.linspace(0, work[-1], n_pieces + 1)))))


def cut_within(work: NDArray[Any], most: int) -> list[int]:
    """Return the bounds of stretches of rows with at most `most` work each, or of one row that has more.

    >>> cut_within(np.array([0, 5, 6, 7, 8, 13]), 6)
    [0, 2, 4, 5]
    """
    bounds, n_rows = [0], len(work) - 1
    while bounds[-1] < n_rows:
        stop = int(np.searchsorted(work, work[bounds[-1]] + most, side="right")) - 1
        bounds.append(min(max(stop, bounds[-1] + 1), n_rows))
    return bounds


def hand_out(
    job: Callable[[Task], Result],
    tasks: Sequence[Task],
    n_threads: int | None = None,
    *,
    report: Callable[[int], None] | None = None,
    stop: NDArray[np.uint8] | None = None,
) -> list[Result]:
    """Return job(task) for every task, in their order, done by n_threads threads, all cores by default.

    After an error or Ctrl-C no task is begun, and those under way are waited for; `stop`, an array of one number, is
    then set, so that long tasks can end early. With it the calling thread, which alone hears Ctrl-C, only waits; else
    it works, too. `report` is called with the number of tasks done after each of them, by one thread at a time.

    >>> hand_out(lambda n: n * n, range(4), n_threads=2)
    [0, 1, 4, 9]
    """
    results: list[Any] = [None] * len(tasks)
    remaining, n_done, lock = iter(range(len(tasks))), 0, Lock()  # taking the next is one step of the interpreter

    def end() -> None:
        deque(remaining, maxlen=0)
        if stop is not None:
            stop[0] = 1

    def work() -> None:
        nonlocal n_done
        try:
            for n in remaining:
                results[n] = job(tasks[n])
                if report is not None:
                    with lock:
                        n_done += 1
                        report(n_done)
        except BaseException:
            end()
            raise

    if not n_threads:
        from numba import get_num_threads  # noqa: PLC0415 (slow to import, and a GPU does without)

        n_threads = int(get_num_threads())
    n_threads = min(n_threads, MOST_THREADS)  # whatever a setting asks for
    helpers: list[Future[None]] = []
    try:
        for _ in range(min(n_threads, len(tasks)) - (stop is None)):
            helpers.append(_pool(n_threads).submit(work))
        if stop is None:
            work()
            helpers = [helper for helper in helpers if not helper.cancel()]  # a pool may be busy with other work
        _wait(helpers)
    except BaseException:
        end()
        _wait(helpers)
        raise
    for helper in helpers:
        helper.result()
    return results


def _wait(helpers: list[Future[None]]) -> None:
    # in pieces: where a library lets signals restart what they interrupt (SA_RESTART, as polars does), Python hears of
    # Ctrl-C only between two waits
    while helpers and wait(helpers, HEARD_WITHIN).not_done:
        pass


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    """Keep a pool for all: starting threads takes longer than many a pass."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="nbmf")


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not live on in a child


def one_blas_thread() -> AbstractContextManager[Any]:
    """Have matrix products run on one thread each, while several of ours make them."""
    limited: AbstractContextManager[Any] = _blas().limit(limits=1, user_api="blas")
    return limited


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries, which takes longer than ranking for one user
