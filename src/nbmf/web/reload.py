"""The model that is being served: taken from a file, and replaced when the file is, as a whole or not at all."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from threading import Lock

from nbmf.estimators.loading import load
from nbmf.storage.container import StorageError, seal
from nbmf.web.views import Views

MARK_DIGITS = 12  # of the file's checksum, enough to tell models apart
HISTORY = ".history.json"

log = logging.getLogger("nbmf.web")


def history_of(path: str) -> str:
    """Return where the seconds of a fit are, which a model file does not hold: two fits of one model are one file."""
    return path + HISTORY


class Shelf:
    """Holds the views of one model. Whoever answers takes `views` once, so that no answer is of two models.

    path : a model file
    refused : why the file that is there now was not taken, or None
    n_loaded, n_refused : how often a file was taken, and how often not
    """

    def __init__(self, path: str) -> None:
        """Load the model; a file that is none raises, as there is nothing to serve."""
        self.path = path
        self.refused: str | None = None
        self.n_loaded, self.n_refused = 1, 0
        self._lock = Lock()
        self._seen = self._stamp()
        self.views = _load(path)
        self.ready = False

    def warm(self) -> None:
        """Make the model ready to answer at once."""
        self.views.warm()
        self.ready = True

    def look(self) -> bool:
        """Take the file if it has changed; tell whether there is another model now.

        The new model is loaded and asked a few questions before it takes the place of the old one, which goes on
        answering until then, and stays if the new one is damaged.
        """
        with self._lock:
            stamp = self._stamp()
            if stamp == self._seen or stamp is None:
                return False
            self._seen = stamp
            try:
                views = _load(self.path)
                if views.mark == self.views.mark:
                    self.refused = None
                    return False
                views.warm()
            except Exception as error:  # whatever is wrong with the new model, the old one goes on
                self.refused = str(error)
                self.n_refused += 1
                log.warning("not taken, the model before it stays: %s", error)
                return False
            self.views, self.refused = views, None
            self.n_loaded += 1
            log.warning("%s: replaced, now serving model %s", self.path, views.mark)
            return True

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:  # gone for a moment, or for good: what is loaded is served
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _load(path: str) -> Views:
    for _ in range(3):
        before = seal(path)
        model = load(path)
        if before is not None and seal(path) == before:  # else it was replaced meanwhile
            return Views(model, before[:MARK_DIGITS], _seconds(path, before))
    raise StorageError(f"{path}: is being replaced again and again; write it once")


def _seconds(path: str, mark: str) -> Sequence[float] | None:
    """How long the fit had taken after each sweep, if it was written down for this very model."""
    try:
        with open(history_of(path), "rb") as stream:
            history = json.load(stream)
        return [float(value) for value in history["seconds"]] if history["model"] == mark else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
