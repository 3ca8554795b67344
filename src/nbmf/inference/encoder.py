"""Maximum likelihood of an encoder by majorization-minimization: V, then H and b, from the same allocations.

A sweep infers allocations and exposures once. Given them, the bound on the objective falls apart into V, whose best
value given H is allocated / exposed, and [H | b], whose best value given the new V is. So every sweep ascends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from nbmf.backends import Backend, Sums
from nbmf.backends.counts import Counts
from nbmf.backends.encoder import EncoderBackend, EncoderCounts
from nbmf.inference.run import State, observe
from nbmf.model.factors import Encoding, Point


@dataclass(frozen=True)
class EncoderMM:
    """One sweep of every start. With `moving`, only these items' rows change, which ascends as well."""

    begins_with_users: ClassVar[bool] = True
    moving: NDArray[np.intp] | None = None

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""
        data, passes = cast("EncoderCounts", counts), cast("EncoderBackend", backend)
        found = [self._improve(inferred, data, passes) for inferred in cast("Any", state.inferred).starts]
        users, items = joined(found, data)
        model, ties, log_base = state.model, state.next_ties(items), state.log_base
        del state  # frees the memory of the old allocations and exposures for the new ones
        return observe(model, counts, backend, users, items, ties, log_base)

    def _improve(self, inferred: Any, counts: EncoderCounts, backend: Any) -> tuple[Point, Point]:
        V, side = inferred.start.factors
        sums, allocated = backend.sum_inputs(counts, inferred)
        inputs = self._moved(V, backend.quotient(V, sums))  # Eq. (nmfW), of items that users have
        exposed = backend.expose_outputs(counts, inferred, inputs)
        return inputs, self._moved(side, backend.quotient(side, Sums(allocated, exposed)))  # Eq. (nmfH)

    def _moved(self, old: Point, new: Point) -> Point:
        if self.moving is None:
            return new
        return old.replace_rows(self.moving, new.take(self.moving))


def joined(starts: Sequence[tuple[Point, Point]], counts: EncoderCounts) -> tuple[Encoding, Point]:
    """Put starts side by side, wherever they are."""
    inputs, outputs = (first.beside(more) for first, *more in zip(*starts, strict=True))
    return inputs.encoding(len(starts), counts.x), outputs
