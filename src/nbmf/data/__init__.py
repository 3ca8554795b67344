"""Counts and where they come from."""

START = b'{"__metadata__":{"sha256":"'
"""How every file that nbmf writes begins, after its first 8 bytes (`nbmf.storage.container`)."""
