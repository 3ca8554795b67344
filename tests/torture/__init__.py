"""Faults on purpose: `make torture` runs every part of this folder; docs/reliability.md says what they look for."""

from __future__ import annotations

import argparse


def typed_options(description: str | None, **more: object) -> argparse.Namespace:
    """Return the options that a script was started with: --seconds, --seed, and others with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=str if isinstance(default, str) else int, default=default)
    return parser.parse_args()
