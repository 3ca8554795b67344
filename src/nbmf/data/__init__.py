"""Counts and where they come from."""

START = b'{"__metadata__":{"sha256":"'
"""How every file that nbmf writes begins, after its first 8 bytes (`nbmf.storage.container`)."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an optional part; the package is not on an index.

    >>> how_to_install("gpu")
    "in a clone of nbmf, run pip install '.[gpu]'"
    """
    return f"in a clone of nbmf, run pip install '.[{extra}]'"
