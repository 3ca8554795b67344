"""Compiles loops and caches their code. Caches are read even where they are read-only, such as in an image.

numba reads code only from folders that it can also write to, and fails without one. A container is often read-only, and
its user may have no home. So code is read wherever numba would look, and written to the first folder that allows it:
NUMBA_CACHE_DIR, the package's, the user's, or a private one for temporary files. Whoever can write to such a folder can
make us run their code, so folders that other users can change are not used. None of this changes a result.
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba

caching: Any = import_module("numba.core.caching")  # without types
# older versions hide these names
InTree, UserWide, UserProvided = (
    getattr(caching, name, None) or getattr(caching, f"_{name}")
    for name in ("InTreeCacheLocator", "UserWideCacheLocator", "UserProvidedCacheLocator")
)
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
        file = getfile(self.function)
        usual = [kind(self.function, file) for kind in (InTree, UserWide)]
        # without a home, the user's folder is "~/.cache" below wherever we are
        found = [locator for locator in usual if os.path.isabs(locator.get_cache_path())]
        if config.CACHE_DIR:  # the variable NUMBA_CACHE_DIR
            found.insert(0, UserProvided(self.function, file))
        return [_Place(self.function, locator) for locator in found]

    @cached_property
    def _open_place(self) -> "_Place | None":
        """The first place that can be written to; it is looked for when there is something to write."""
        for place in self._places:
            with suppress(OSError):
                place.locator.ensure_cache_path()
                if is_safe(place.cache_path):
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
        self._cache_file._source_stamp = source_stamp(getfile(function))

    def load_overload(self, types: Any, target: Any) -> Any:
        """Return the code for these types, or None; a damaged file, or one that may not be read, is as good as none."""
        with suppress(Exception):
            return super().load_overload(types, target) if is_safe(self.cache_path) else None
        return None


class _Files(caching.IndexDataCacheFile):  # type: ignore[misc]
    """numba numbers its files, so two processes can overwrite each other's; these are named by a hash of the types."""

    def save(self, key: Any, code: Any) -> None:
        """Write the code, then the index that names it."""
        name = self._data_name(int(sha256(repr(key).encode()).hexdigest()[:12], 16))
        try:
            index = self._load_index()
        except Exception:  # it is damaged, so it is written anew
            index = {}
        self._save_data(name, code)
        self._save_index({**index, key: name})


class _Temporary(InTree):  # type: ignore[misc, valid-type]
    def __init__(self, function: Any, folder: str) -> None:
        super().__init__(function, getfile(function))
        self._cache_path = os.path.join(folder, self.get_suitable_cache_subpath(getfile(function)))


@cache
def source_stamp(file: str) -> bytes:
    """Return a hash of a loop's file and of all modules here, whose loops may be part of its code.

    numba's own stamp is that of the one file: after an upgrade of `elementary`, it would run old logarithms.
    """
    digest = sha256()
    for path in [Path(file), *sorted(Path(__file__).parent.glob("*.py"))]:
        digest.update(sha256(path.read_bytes()).digest())
    return digest.digest()


def is_safe(folder: str) -> bool:
    """Return whether no other user can put files into a folder or replace it.

    Root may, and so may the owner of this package, whose code we run anyway; a group may if it is its owner's alone.
    """
    if not hasattr(os, "getuid"):  # Windows
        return True
    owners = {0, os.getuid(), os.stat(__file__).st_uid}
    found, above = os.stat(folder), os.stat(os.path.dirname(os.path.abspath(folder)))

    def is_open(place: os.stat_result) -> bool:
        mode = place.st_mode & (stat.S_IWOTH if place.st_gid == place.st_uid else OTHERS_MAY_WRITE)
        return bool(mode) or place.st_uid not in owners

    is_sticky = above.st_mode & stat.S_ISVTX and above.st_uid in owners
    return not is_open(found) and bool(is_sticky or not is_open(above))


@cache
def private_folder() -> str | None:
    """Return a folder for temporary files that is this user's alone, or None if there can be none; warn either way."""
    remedy = "to choose a folder, set NUMBA_CACHE_DIR"
    with suppress(OSError, AttributeError):  # Windows has no getuid
        parent = tempfile.gettempdir()
        folder = os.path.join(parent, f"nbmf-{os.getuid()}")
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        if is_ours and is_safe(folder):
            warnings.warn(
                f"compiled code is kept in {folder}, as no other folder for it is ours alone to write to; {remedy}",
                stacklevel=2,
            )
            return folder
    warnings.warn(
        f"there is no folder to keep compiled code in, so it is compiled anew each time; {remedy}", stacklevel=2
    )
    return None
