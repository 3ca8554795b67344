"""Lets `python -m nbmf` do what the command `nbmf` does."""

from nbmf.cli import main

main(prog_name="python -m nbmf")
