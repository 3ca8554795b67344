"""The command line. Commands import heavy modules when they run, so that `nbmf --help` answers at once."""

import click

from nbmf.cli import check, choose, compare, demo, evaluate, fit, plan, recommend, reproduce, serve, tune, warm


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nbmf")
def main() -> None:
    """Factorize counts, such as plays, clicks, purchases or words, and recommend from them."""


main.add_command(demo.demo)
main.add_command(fit.fit)
main.add_command(plan.plan)
main.add_command(recommend.recommend)
main.add_command(check.check)
main.add_command(evaluate.evaluate)
main.add_command(compare.compare)
main.add_command(choose.choose)
main.add_command(tune.tune)
main.add_command(reproduce.reproduce)
main.add_command(serve.serve)
main.add_command(serve.explore)
main.add_command(warm.warm)
