"""The command line. Commands import heavy modules when they run, so that `nbmf --help` answers at once."""

import click

from nbmf.cli import check, choose, compare, demo, evaluate, fit, plan, recommend, reproduce, serve, tune, warm


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nbmf")
def main() -> None:
    """Factorize counts, such as plays, clicks, purchases or words, and recommend from them."""


for command in (
    demo.demo,
    fit.fit,
    plan.plan,
    recommend.recommend,
    check.check,
    evaluate.evaluate,
    compare.compare,
    choose.choose,
    tune.tune,
    reproduce.reproduce,
    serve.serve,
    serve.explore,
    warm.warm,
):
    main.add_command(command)
