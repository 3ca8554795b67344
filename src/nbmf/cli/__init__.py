"""The command line. Commands import heavy modules when they run, so that `nbmf --help` answers at once."""

from __future__ import annotations

import click

from nbmf.cli.compare import compare
from nbmf.cli.demo import demo
from nbmf.cli.evaluate import evaluate
from nbmf.cli.fit import fit
from nbmf.cli.plan import plan
from nbmf.cli.recommend import recommend
from nbmf.cli.reproduce import reproduce
from nbmf.cli.serve import explore, serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nbmf")
def main() -> None:
    """Factorize counts (plays, clicks, purchases, words) and recommend from them."""


for command in (demo, fit, plan, recommend, evaluate, compare, reproduce, serve, explore):
    main.add_command(command)
