"""The command line. Commands import heavy modules when they run, so that `nbmf --help` answers at once."""

from __future__ import annotations

import click

from nbmf.cli import compare, demo, evaluate, fit, plan, recommend, reproduce, serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nbmf")
def main() -> None:
    """Factorize counts, such as plays, clicks, purchases or words, and recommend from them."""


for command in (
    demo.demo,
    fit.fit,
    plan.plan,
    recommend.recommend,
    evaluate.evaluate,
    compare.compare,
    reproduce.reproduce,
    serve.serve,
    serve.explore,
):
    main.add_command(command)
