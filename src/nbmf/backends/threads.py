"""Work on several threads: rows cut by their work, tasks handed out, matrix products on one BLAS thread.

Cuts never depend on the number of threads and one thread does a task, so any number of them gives the same bits.
"""

import math
import os
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
Result = TypeVar("Result")

HEARD_WITHIN = 0.2  # seconds until Ctrl-C is heard
GIVEN_UP_AFTER = 50  # such waits for a thread that does not end after Ctrl-C
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
    it works, too. `report` is called with the number of tasks done after each of them, by one thread at a time. After
    Ctrl-C a thread may be stuck over a lock that another library did not give back, so waiting for it has an end.

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
    helpers: list[_Helper] = []
    try:
        for _ in range(min(n_threads, len(tasks)) - (stop is None)):
            helpers.append(_Helper(work))
            _pool(n_threads).give(helpers[-1])
        if stop is None:
            work()
            helpers = [helper for helper in helpers if helper.begun]  # the others will find no task left
        _wait(helpers)
    except BaseException as error:
        end()
        begun = [helper for helper in helpers if helper.begun]
        if not _wait(begun, math.inf if isinstance(error, Exception) else GIVEN_UP_AFTER):
            _pool.cache_clear()  # what is handed out next needs other threads
        raise
    for helper in helpers:
        if helper.error is not None:
            raise helper.error
    return results


class _Helper:
    """Work for another thread: whether it has begun and ended, and with which error.

    Ctrl-C may come between any two steps of the thread that waits. So it takes no lock that the other needs, as the
    waits of `concurrent.futures` do, which then do not give it back: flags are set once, and the lock is only a bell.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.begun, self.ended = work, False, False
        self.error: BaseException | None = None
        self.bell = Lock()
        self.bell.acquire()

    def run(self) -> None:
        self.begun = True
        try:
            self.work()
        except BaseException as error:
            self.error = error
        self.ended = True
        self.bell.release()


def _wait(helpers: list[_Helper], most: float = math.inf) -> bool:
    """Wait until all have ended, or until `most` waits were in vain; return whether they have."""
    in_vain = 0
    for helper in helpers:
        while not helper.ended and in_vain < most:
            # in pieces: where a library lets signals restart what they interrupt (SA_RESTART, as polars does), Python
            # hears of Ctrl-C only between two waits
            in_vain += not helper.bell.acquire(timeout=HEARD_WITHIN)
    return all(helper.ended for helper in helpers)


class _Pool:
    """At most `n_threads` threads, which wait for work and keep no process from ending."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads, self.n_started = n_threads, 0
        self.waiting: SimpleQueue[_Helper] = SimpleQueue()

    def give(self, helper: _Helper) -> None:
        self.waiting.put(helper)
        if self.n_started < self.n_threads:
            start_new_thread(self._serve, ())  # one step, unlike Thread.start(), which Ctrl-C could leave half done
            self.n_started += 1

    def _serve(self) -> None:
        while True:
            self.waiting.get().run()  # and keeps nothing of it while it waits for the next


@cache
def _pool(n_threads: int) -> _Pool:
    """Keep a pool for all: starting threads takes longer than many a pass."""
    return _Pool(n_threads)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not live on in a child


def one_blas_thread() -> AbstractContextManager[Any]:
    """Have matrix products run on one thread each, while several of ours make them."""
    limited: AbstractContextManager[Any] = _blas().limit(limits=1, user_api="blas")
    return limited


@cache
def exact_product_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which matrix products of this type are made so that equal columns get equal results.

    That is their own, except where BLAS rounds by where a column stands, as OpenBLAS does in single precision on
    processors with AVX2 but without AVX-512. Products in double precision take up to twice as long.
    """
    rows, column = np.split(np.random.RandomState(0).gamma(1.0, 1.0, (41, 50)).astype(dtype), [40])
    with one_blas_thread():
        product = rows @ np.repeat(column.T, 192, axis=1)
    return dtype if (product == product[:, :1]).all() else np.dtype(np.float64)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries, which takes longer than ranking for one user
