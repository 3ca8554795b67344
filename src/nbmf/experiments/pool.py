"""Jobs in worker processes, with time limits, that end when the program does.

Jobs run side by side with one thread each: on the Taste Profile subset and two cores that takes as long as one after
another with all threads (27.4 s and 27.9 s for 48 fits), and small fits cannot use many cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from contextlib import contextmanager
from typing import Any, NamedTuple

from pebble import ProcessExpired, ProcessPool

_SHARED: dict[str, Any] = {}  # in a worker process: what all its jobs need


class LostWorkerError(RuntimeError):
    """A worker process died while it ran a job."""


class OvertimeError(RuntimeError):
    """A job took longer than its time limit."""


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Outcome(NamedTuple):
    """How a job ended: with a result or with an error."""

    job: Any
    result: Any
    error: Exception | None


def attempt(
    work: Callable[[Any, Any], Any], shared: Any, jobs: Sequence[Any], n_workers: int, *, limit_s: float | None = None
) -> Generator[Outcome]:
    """Yield the outcome of `work(shared, job)` for every job as it ends; the jobs are started in their order.

    `work` is a function of a module, which the processes import by its name; `shared` is sent to each process once. The
    processes end with the iterator, however it ends. A job that takes longer than `limit_s` ends with `OvertimeError`.
    """
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads may hold
    pool: Any = ProcessPool(n_workers, initializer=_share, initargs=(work, shared), context=context)
    try:
        with _interrupts_blocked():
            futures: dict[Future[Any], Any] = {pool.schedule(_work, (job,), timeout=limit_s): job for job in jobs}
        for future in as_completed(futures):
            job, error = futures.pop(future), future.exception()  # a result that has been yielded is not kept
            failed = None if error is None else _named(error, job, limit_s)
            yield Outcome(job, None if failed else future.result(), failed)
    finally:
        pool.stop()
        pool.join()


def _share(work: Callable[[Any, Any], Any], shared: Any) -> None:
    _SHARED.update(work=work, shared=shared)


def _work(job: Any) -> Any:
    return _SHARED["work"](_SHARED["shared"], job)


def _named(error: BaseException, job: Any, limit_s: float | None) -> Exception:
    name = getattr(job, "name", job)
    if isinstance(error, TimeoutError) and error.args == ("Task timeout", limit_s):
        return OvertimeError(f"took longer than {limit_s:g} s")
    if isinstance(error, ProcessExpired | BrokenExecutor) or not isinstance(error, Exception):
        return LostWorkerError(f"the process of {name} died; if it ran out of memory, use fewer processes at a time")
    error.add_note(f"in the process of {name}")
    return error


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in the threads and processes that are started here; this process ends them itself."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
