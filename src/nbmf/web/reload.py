"""The model being served: loaded from a file, and replaced as a whole when the file changes."""

import json
import logging
import os
from collections.abc import Sequence
from threading import Lock

from nbmf.estimators.loading import load
from nbmf.storage.container import StorageError, seal
from nbmf.web.views import Views

MARK_DIGITS = 12  # of the file's checksum: enough to tell models apart

log = logging.getLogger("nbmf.web")


def history_of(path: str) -> str:
    """Return the file with the seconds of a fit. They are not in the model file, so that equal fits are equal files."""
    return path + ".history.json"


class ServedModel:
    """The model of a file, and of the files that replace it. Read `views` once per answer: it may change meanwhile."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.refused: str | None = None  # why the file is not the model served: it was refused, or is missing
        self.n_loaded, self.n_refused = 1, 0
        self._lock = Lock()
        self._stamp = _stamp(path)
        self.views = _load(path)
        self.ready = False  # until the views are warmed up

    def reload(self) -> bool:
        """Load the file if it has changed, and return whether there is a new model.

        The old model answers until the new one is loaded and warmed up, and stays if the new file is damaged.
        """
        with self._lock:
            stamp = _stamp(self.path)
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            if stamp is None:
                self.refused = f"{self.path} is missing"
                log.warning("%s, still serving the model that was read from it", self.refused)
                return False
            try:
                views = _load(self.path)
                if is_new := views.mark != self.views.mark:
                    views.warm_up()
            except Exception as error:  # whatever is wrong with the new model, the old one stays
                self.refused = str(error)
                self.n_refused += 1
                log.warning("new model refused, still serving the old one: %s", error)
                return False
            self.refused = None
            if is_new:
                self.views = views
                self.n_loaded += 1
                log.info("%s has changed, now serving model %s", self.path, views.mark)
            return is_new


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:  # a missing file leaves the present model in service
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load(path: str) -> Views:
    for _ in range(3):
        checksum = seal(path)
        model = load(path)
        if checksum is not None and seal(path) == checksum:  # otherwise it was replaced meanwhile
            return Views(model, checksum[:MARK_DIGITS], _seconds(path, checksum))
    raise StorageError(f"{path} keeps changing while it is read; write the whole file once")


def _seconds(path: str, checksum: str) -> Sequence[float] | None:
    """Return the seconds from the start of the fit to the end of each sweep, if recorded for this very model."""
    try:
        with open(history_of(path), "rb") as stream:
            history = json.load(stream)
        return [float(value) for value in history["seconds"]] if history["model"] == checksum else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
