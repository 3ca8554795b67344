"""The first requests of tests/torture/requests.py."""

import math
import re

from torture.requests import torture

N_CASES = 250


def test_hostile_requests_do_no_harm(capsys):
    code = torture(math.inf, seed=0, most=N_CASES)
    told = capsys.readouterr()
    assert code == 0, told.err
    sent, answered = map(int, re.fullmatch(r"requests: (\d+) sent, (\d+) answered, .*\n", told.out).groups())
    assert sent > 0.9 * N_CASES  # a case may only replace the model
    assert answered > sent / 4
