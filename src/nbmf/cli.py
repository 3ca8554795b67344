"""The command line. Commands import heavy modules when they run, so that `nbmf --help` answers at once."""

from __future__ import annotations

import click

from nbmf.commands.compare import compare
from nbmf.commands.demo import demo
from nbmf.commands.evaluate import evaluate
from nbmf.commands.fit import fit
from nbmf.commands.plan import plan
from nbmf.commands.recommend import recommend
from nbmf.commands.reproduce import reproduce
from nbmf.commands.serve import explore, serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nbmf")
def main() -> None:
    """Factorize counts (plays, clicks, purchases, words) and recommend from them."""


for command in (demo, fit, plan, recommend, evaluate, compare, reproduce, serve, explore):
    main.add_command(command)
