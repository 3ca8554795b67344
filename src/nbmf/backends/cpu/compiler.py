"""How loops are compiled, and where their code is kept: wherever there is room, and never at the price of an error.

numba reads code only from folders that it can also write to, and fails without one. A container is often read-only, and
its user may have no home. So code is read wherever numba would look, as well from an image that cannot be changed, and
written to the first folder that allows it: NUMBA_CACHE_DIR, the package's, the user's, or a private one for temporary
files. None of this changes a result.
"""

import os
import stat
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from importlib import import_module
from inspect import getfile
from types import SimpleNamespace
from typing import Any

import numba

caching: Any = import_module("numba.core.caching")  # without types
config: Any = numba.config

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def compiler(fastmath: bool | set[str]) -> Callable[[Any], Any]:
    """Return a decorator that compiles a loop when it is first called and keeps its code; it holds no lock.

    Division by zero gives infinity as in NumPy: a test for it would keep loops from being vectorized.
    """
    compile_loop = numba.njit(fastmath=fastmath, nogil=True, error_model="numpy")

    def compiled(function: Any) -> Any:
        loop: Any = compile_loop(function)
        loop._cache = _Code(function)
        return loop

    return compiled


class _Code(caching.NullCache):  # type: ignore[misc]
    """The code of one loop, for each combination of types that it was compiled for."""

    cache_path: str | None = None  # the folder that code was last read from or written to

    def __init__(self, function: Any) -> None:
        self.function = function

    @cached_property
    def _places(self) -> "list[_Place]":
        """Where numba would look for the code, whether or not it could write there."""
        kinds = [caching.InTreeCacheLocator, caching.UserWideCacheLocator]
        if config.CACHE_DIR:  # the variable NUMBA_CACHE_DIR
            kinds.insert(0, caching.UserProvidedCacheLocator)
        return [_Place(self.function, kind(self.function, getfile(self.function))) for kind in kinds]

    @cached_property
    def _open_place(self) -> "_Place | None":
        """The first place that can be written to; it is looked for when there is something to write."""
        for place in self._places:
            with suppress(OSError):
                place.locator.ensure_cache_path()
                return place
        folder = private_folder()
        return None if folder is None else _Place(self.function, _Temporary(self.function, folder))

    def load_overload(self, types: Any, target: Any) -> Any:
        """Return the code for these types, or None if it must be compiled."""
        for place in self._places:
            if (found := place.load_overload(types, target)) is not None:
                self.cache_path = place.cache_path
                return found
        if self._open_place is None or self._open_place in self._places:
            return None
        self.cache_path = self._open_place.cache_path
        return self._open_place.load_overload(types, target)

    def save_overload(self, types: Any, code: Any) -> None:
        """Keep the code for these types, if there is a place with room for it."""
        with suppress(OSError):
            if self._open_place is not None:
                self._open_place.save_overload(types, code)
                self.cache_path = self._open_place.cache_path


class _Place(caching.FunctionCache):  # type: ignore[misc]
    """The code of one loop in one folder."""

    def __init__(self, function: Any, locator: Any) -> None:
        found = SimpleNamespace(from_function=lambda *_: locator)
        self.locator = locator
        self._impl_class = type("_Code", (caching.CompileResultCacheImpl,), {"_locator_classes": [found]})
        super().__init__(function)
        self._cache_file.__class__ = _Files

    def load_overload(self, types: Any, target: Any) -> Any:
        """Return the code for these types, or None; a damaged file, or one that may not be read, is as good as none."""
        with suppress(Exception):
            return super().load_overload(types, target)
        return None


class _Files(caching.IndexDataCacheFile):  # type: ignore[misc]
    """Files of code, named by types: numba numbers them, and two processes may then store one's under the other's."""

    def save(self, key: Any, code: Any) -> None:
        """Write the code, then the index that names it."""
        name = self._data_name(int(sha256(repr(key).encode()).hexdigest()[:12], 16))
        try:
            index = self._load_index()
        except Exception:  # it is damaged, so it is written anew
            index = {}
        self._save_data(name, code)
        self._save_index({**index, key: name})


class _Temporary(caching.InTreeCacheLocator):  # type: ignore[misc]
    def __init__(self, function: Any, folder: str) -> None:
        super().__init__(function, getfile(function))
        self._cache_path = os.path.join(folder, self.get_suitable_cache_subpath(getfile(function)))


@cache
def private_folder() -> str | None:
    """Return a folder for temporary files that is this user's alone, or None if there can be none; warn either way.

    Whoever can write there can make us run their code. So the folder must be our own and closed to others, and nobody
    else may be able to replace it.
    """
    remedy = "to choose a folder, set NUMBA_CACHE_DIR"
    with suppress(OSError, AttributeError):  # Windows has no getuid
        parent = tempfile.gettempdir()
        folder = os.path.join(parent, f"nbmf-{os.getuid()}")
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found, above = os.lstat(folder), os.stat(parent)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        if is_ours and (above.st_mode & stat.S_ISVTX or not above.st_mode & OTHERS_MAY_WRITE):
            warnings.warn(
                f"compiled code is kept in {folder}, as no other folder for it can be written to; {remedy}",
                stacklevel=2,
            )
            return folder
    warnings.warn(
        f"there is no folder to keep compiled code in, so it is compiled anew each time; {remedy}", stacklevel=2
    )
    return None
