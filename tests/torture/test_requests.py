"""A few seconds of tests/torture/requests.py."""

import re

from torture.requests import torture


def test_hostile_requests_do_no_harm(capsys):
    code = torture(6, seed=0)
    told = capsys.readouterr()
    assert code == 0, told.err
    sent, answered = map(int, re.fullmatch(r"requests: (\d+) sent, (\d+) answered, .*\n", told.out).groups())
    assert sent > 200
    assert answered > sent / 4
