"""Counters and times of a server, in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends, in seconds, of the classes that times are counted in."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What one server has done so far.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.note("GET", "/api/recommend", 200, 0.003)
    >>> metrics.text({"nbmf_models_loaded_total": 1}).splitlines()[-1]
    'nbmf_models_loaded_total 1'
    """

    def __init__(self) -> None:
        """Begin at 0."""
        self.in_flight = 0
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._classes: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self._seconds: Counter[str] = Counter()

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Take note of an answered request; `route` is one of the server's own, so that there are few."""
        self._requests[method, route, status] += 1
        self._classes[route][bisect_left(BOUNDS, seconds)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]

    def text(self, others: Mapping[str, float]) -> str:
        """Return everything, with other numbers by their names."""
        lines = ["# HELP nbmf_requests_total Requests answered.", "# TYPE nbmf_requests_total counter"]
        for (method, route, status), n in sorted(self._requests.items()):
            lines.append(f'nbmf_requests_total{{method="{method}",route="{route}",code="{status}"}} {n}')
        lines += ["# HELP nbmf_request_seconds Time to answer.", "# TYPE nbmf_request_seconds histogram"]
        for route, classes in sorted(self._classes.items()):
            n_so_far = 0
            for bound, n in zip((*map(str, BOUNDS), "+Inf"), classes, strict=True):
                n_so_far += n
                lines.append(f'nbmf_request_seconds_bucket{{route="{route}",le="{bound}"}} {n_so_far}')
            lines.append(f'nbmf_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}')
            lines.append(f'nbmf_request_seconds_count{{route="{route}"}} {n_so_far}')
        for name, value in {"nbmf_requests_in_flight": self.in_flight, **others}.items():
            lines += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"
