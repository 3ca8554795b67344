"""Jobs shared out to processes, so that an experiment uses every core and ends at once when asked to.

One thread for each of several fits, not several threads for one after another: on the Taste Profile subset and two
cores 48 runs took 27.4 s in the first way and 27.9 s in the second, and a small fit cannot use many more cores.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

from nbmf.inference.progress import Stopwatch

GRACE_SECONDS = 5.0  # for a process with nothing to do to end

Task = TypeVar("Task")
Result = TypeVar("Result")
Shared = TypeVar("Shared")


class LostWorkerError(RuntimeError):
    """A process ended in the middle of a job."""


class OvertimeError(RuntimeError):
    """A job took longer than it may."""


class Outcome(NamedTuple):
    """How a task ended: with a result, or with an error."""

    task: Any
    result: Any
    error: Exception | None


class _Worker(NamedTuple):
    """A process at work since some time."""

    process: BaseProcess
    task: Any
    watch: Stopwatch


def spread(
    work: Callable[[Shared, Task], Result], shared: Shared, tasks: Sequence[Task], n_workers: int
) -> Generator[Result]:
    """Yield `work(shared, task)` of every task as it is done; the tasks are begun in their order.

    Parameters
    ----------
    work : function of a module (processes find it by its name)
    shared : what every task needs; sent to each process once
    n_workers : number of processes

    The processes end with the iterator, however it ends. An exception of `work` is raised here.
    """
    with closing(attempt(work, shared, tasks, n_workers)) as outcomes:
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
            yield outcome.result


def attempt(
    work: Callable[[Shared, Task], Result],
    shared: Shared,
    tasks: Sequence[Task],
    n_workers: int,
    *,
    limit_s: float | None = None,
) -> Generator[Outcome]:
    """Yield how each task ended, as `spread` does, but an error ends its task alone.

    limit_s : how long a task may take before its process is ended; None: for ever
    """
    waiting = deque(tasks)
    at_work: dict[Connection, _Worker] = {}
    everybody: dict[Connection, BaseProcess] = {}

    def begin(connection: Connection, process: BaseProcess) -> None:
        task = waiting.popleft()
        _send(connection, task)
        at_work[connection] = _Worker(process, task, Stopwatch())

    def begin_anew() -> None:
        connection, process = _start()
        everybody[connection] = process
        _send(connection, (work, shared))
        begin(connection, process)

    try:
        for _ in range(min(n_workers, len(tasks))):
            begin_anew()
        while at_work:
            for connection, outcome in _next_outcomes(at_work, limit_s):
                worker = at_work.pop(connection)
                if isinstance(outcome.error, LostWorkerError | OvertimeError):
                    worker.process.terminate()
                    if waiting:
                        begin_anew()
                elif waiting:
                    begin(connection, worker.process)
                yield outcome
    finally:
        _dismiss(everybody, at_work)


def _next_outcomes(at_work: Mapping[Connection, _Worker], limit_s: float | None) -> list[tuple[Connection, Outcome]]:
    """Wait until somebody is done or has taken too long."""
    left = None if limit_s is None else max(0.0, min(limit_s - worker.watch.seconds for worker in at_work.values()))
    found: list[tuple[Connection, Outcome]] = []
    for ready in wait(list(at_work), left):
        assert isinstance(ready, Connection)
        found.append((ready, _receive(ready, at_work[ready].task)))
    if not found and limit_s is not None:
        late = [(connection, worker) for connection, worker in at_work.items() if worker.watch.seconds >= limit_s]
        error = OvertimeError(f"took longer than {limit_s:g} s")
        found = [(connection, Outcome(worker.task, None, error)) for connection, worker in late]
    return found


def _dismiss(everybody: Mapping[Connection, BaseProcess], at_work: Mapping[Connection, _Worker]) -> None:
    """End all processes, those at work at once; the others, told so, in their own way, which leaves nothing behind."""
    for connection, process in everybody.items():
        if connection in at_work:
            process.terminate()
        connection.close()
    for process in everybody.values():
        process.join(GRACE_SECONDS)
        process.terminate()
        process.join()


def _send(connection: Connection, message: Any) -> None:
    with suppress(BrokenPipeError):  # a lost process is named where its answer is awaited
        connection.send(message)


def _receive(connection: Connection, task: Any) -> Outcome:
    try:
        return Outcome(task, *connection.recv())
    except (EOFError, ConnectionResetError):
        reason = (
            f"the process of {task} ended without an answer; was it killed for its memory? fewer processes need less"
        )
        return Outcome(task, None, LostWorkerError(reason))


def _start() -> tuple[Connection, BaseProcess]:
    # spawn: a fork would take over locks that threads of this process may hold
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    with _deaf_to_interrupts():
        process.start()
    theirs.close()  # so that the death of the process ends the conversation
    return ours, process


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, which processes begun meanwhile go on doing: it is the parent who ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection) -> None:
    """Do one job after another until the parent is gone."""
    with suppress(EOFError, ConnectionError):
        work, shared = connection.recv()
        while True:
            task = connection.recv()
            connection.send(_outcome(work, shared, task))


def _outcome(work: Callable[[Any, Any], Any], shared: Any, task: Any) -> tuple[Any, Exception | None]:
    try:
        return work(shared, task), None
    except Exception as error:
        error.add_note(f"in the process of {task}:\n{traceback.format_exc()}")
        return None, error
