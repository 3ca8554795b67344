"""Rows cut by their work, and tasks on several threads: every one done once, in order, and none after an error."""

import multiprocessing
import signal
import subprocess
import sys
import time
from threading import Event, Timer, get_ident

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmf.backends.threads import cut_evenly, cut_within, hand_out

LENGTHS = st.lists(st.integers(0, 50), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 40))
def test_even_cuts_are_all_rows(lengths, n_pieces):
    work = np.cumsum([0, *(length + 1 for length in lengths)])
    bounds = cut_evenly(work, n_pieces)
    assert (bounds[0], bounds[-1]) == (0, len(lengths))
    assert bounds == sorted(set(bounds))
    assert len(bounds) <= n_pieces + 1
    pieces = np.diff(work[bounds])
    assert pieces.max() <= work[-1] / n_pieces + max(lengths) + 1  # a row is not cut


@given(LENGTHS, st.integers(1, 100))
def test_cuts_within_a_bound(lengths, most):
    work = np.cumsum([0, *lengths])
    bounds = cut_within(work, most)
    assert (bounds[0], bounds[-1]) == (0, len(lengths))
    assert np.all(np.diff(bounds) > 0)
    assert np.all((np.diff(work[bounds]) <= most) | (np.diff(bounds) == 1))


@pytest.mark.parametrize("stop", [None, np.zeros(1, np.uint8)], ids=["working", "waiting"])
@pytest.mark.parametrize("n_threads", [1, 2, 4, None])
@pytest.mark.parametrize("n_tasks", [0, 1, 50])
def test_every_task_is_done_once(n_tasks, n_threads, stop):
    heard = []
    found = hand_out(lambda n: n * n, range(n_tasks), n_threads, report=heard.append, stop=stop)
    assert found == [n * n for n in range(n_tasks)]
    assert heard == list(range(1, n_tasks + 1))
    assert stop is None or stop[0] == 0


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_no_task_is_begun_after_an_error(n_threads, waiting):
    stop, begun, failed = np.zeros(1, np.uint8) if waiting else None, [], Event()

    def job(n):
        begun.append(n)
        if n == 1:
            failed.set()
            raise RuntimeError("enough")
        if n > 1 or n_threads > 1:
            failed.wait(10)
            time.sleep(0.05)  # until the one that failed has told

    with pytest.raises(RuntimeError, match="enough"):
        hand_out(job, range(100), n_threads, stop=stop)
    assert len(begun) <= n_threads + 1
    assert stop is None or stop[0] == 1


def test_no_setting_starts_threads_without_end(monkeypatch):
    """A file may say n_threads=100000."""
    monkeypatch.setattr("nbmf.backends.threads.MOST_THREADS", 16)
    started = set()

    def job(n):
        started.add(get_ident())
        time.sleep(0.02)

    hand_out(job, range(200), 100_000)
    assert 1 < len(started) <= 16


def test_tasks_may_hand_out_tasks():
    """More of them than there are threads, none of which may wait for one of the others."""
    found = hand_out(lambda n: sum(hand_out(lambda m: n * m, range(4), 2)), range(8), 2)
    assert found == [6 * n for n in range(8)]


def test_ctrl_c_ends_long_tasks():
    stop = np.zeros(1, np.uint8)

    def job(n):
        while not stop[0]:
            time.sleep(0.01)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
        with pytest.raises(KeyboardInterrupt):
            hand_out(job, range(100), 2, stop=stop)
    finally:
        signal.signal(signal.SIGINT, before)


AT_EVERY_STEP = """
import sys, time
from itertools import count

import numpy as np

from nbmf.backends.threads import hand_out

def job(n):
    time.sleep(0.002)
    return n

def interrupted(at, stop):
    steps = count(1)

    def interrupt(frame, event, argument):  # Python itself looks for signals where functions begin and calls end
        if event != "return" and event != "c_call" and next(steps) == at:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        hand_out(job, range(6), 2, stop=stop)
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False

for waits in (False, True):
    at = 1
    while interrupted(at, np.zeros(1, np.uint8) if waits else None):
        assert hand_out(job, range(6), 2) == list(range(6))
        at += 1
    print(at)
"""


def test_ctrl_c_at_any_step_ends_and_leaves_threads_that_work():
    """No step may keep a lock that another thread waits for: waits of `concurrent.futures` do, at some."""
    line = [sys.executable, "-c", AT_EVERY_STEP]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(int(steps) > 10 for steps in done.stdout.split())


def test_a_thread_that_is_stuck_after_ctrl_c_is_given_up(monkeypatch):
    """Compilers, for one, may keep a lock when they are interrupted, and threads that compile then wait for ever."""
    monkeypatch.setattr("nbmf.backends.threads.GIVEN_UP_AFTER", 2)
    main, begun, free, ended = get_ident(), Event(), Event(), []

    def job(n):
        if get_ident() != main:
            begun.set()
            ended.append(free.wait(60))
        elif begun.wait(10):
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            hand_out(job, range(9), 2)
        assert not ended
        assert hand_out(lambda n: n * n, range(9), 2, stop=np.zeros(1, np.uint8)) == [n * n for n in range(9)]
    finally:
        free.set()


def _squares(queue):
    queue.put(hand_out(lambda n: n * n, range(9), 2, stop=np.zeros(1, np.uint8)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # that a process with threads is forked, which is the point
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here")
def test_a_forked_process_has_threads_of_its_own():
    _squares(multiprocessing.SimpleQueue())
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_squares, args=(queue,), daemon=True)
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert queue.get() == [n * n for n in range(9)]
