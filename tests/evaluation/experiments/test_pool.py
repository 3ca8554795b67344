"""Worker processes: errors are raised or reported, and time limits hold."""

import _thread
import operator
import signal
import subprocess
import sys
import time

import pebble
import pytest

from nbmf.evaluation.experiments.engine import LostWorkerError, OvertimeError, attempt


def test_outcomes_are_those_of_the_work():
    assert sorted(outcome.result for outcome in attempt(operator.pow, 2, [1, 2, 3], 2)) == [2, 4, 8]
    assert list(attempt(operator.pow, 2, [], 2)) == []
    (failed,) = attempt(operator.truediv, 1, [0], 1)
    assert isinstance(failed.error, ZeroDivisionError)
    assert failed.error.__notes__ == ["in the process of 0"]
    (lost,) = attempt(operator.call, signal.raise_signal, [signal.SIGKILL], 1)
    assert isinstance(lost.error, LostWorkerError)
    assert "died" in str(lost.error)
    (left,) = attempt(operator.call, sys.exit, [3], 1)
    assert isinstance(left.error, LostWorkerError)


@pytest.mark.alone
def test_a_job_ends_when_its_time_is_over():
    """The others go on."""
    watch = time.monotonic()
    outcomes = {o.job: o for o in attempt(operator.call, time.sleep, [60, 0, 0.01], 1, limit_s=1.5)}
    assert time.monotonic() - watch < 30
    assert isinstance(outcomes[60].error, OvertimeError)
    assert str(outcomes[60].error) == "took longer than 1.5 s"
    assert outcomes[0].error is None
    assert outcomes[0.01].error is None


def test_a_time_out_of_the_work_itself_is_its_own(monkeypatch):
    (failed,) = attempt(operator.call, raise_timeout, [0], 1, limit_s=60)
    assert isinstance(failed.error, TimeoutError)
    assert not isinstance(failed.error, OvertimeError)


def raise_timeout(job):
    raise TimeoutError("no answer")


def test_processes_end_with_the_iterator():
    outcomes = attempt(operator.call, time.sleep, [0, 600, 600], 2)
    assert next(outcomes).error is None
    watch = time.monotonic()
    outcomes.close()
    assert time.monotonic() - watch < 20


def test_ctrl_c_among_the_first_processes_leaves_none(monkeypatch):
    """Another thread may take the signal, and then it is raised here whatever the main thread blocks."""
    launch, started = pebble.pool.process.launch_process, []

    def interrupted(*given):
        started.append(launch(*given))
        if len(started) == 1:
            _thread.interrupt_main()
        time.sleep(0.1)  # where it would be raised
        return started[-1]

    monkeypatch.setattr(pebble.pool.process, "launch_process", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(attempt(operator.call, time.sleep, [600, 600], 2))
    assert len(started) == 2
    assert not any(process.is_alive() for process in started)


MASKED = """
import operator, signal
from functools import partial
from nbmf.evaluation.experiments.engine import attempt

if __name__ == "__main__":
    (outcome,) = attempt(operator.call, partial(signal.pthread_sigmask, signal.SIG_BLOCK), [()], 1)
    raise SystemExit(signal.SIGINT not in outcome.result)
"""


def test_ctrl_c_does_not_reach_the_first_worker_either(tmp_path):
    """In a fresh process, where starting the first worker starts the tracker of shared resources as well."""
    script = tmp_path / "masked.py"
    script.write_text(MASKED)
    assert subprocess.run([sys.executable, script], timeout=300, check=False).returncode == 0
