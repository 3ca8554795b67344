"""Who ranks held-out counts best, and for how many seconds: our models and those people use instead, tuned alike.

python benchmarks/leaderboard.py [groceries | FILE …] [--trials 12] [--starts 5] [--models a,b] [--folder DIR]
                                 [--workers N] [--limit SECONDS] [--write]

(extra `bench`: implicit, hpfrec, the groceries; extra `plots`.) Rows go to DIR/NAME as they come: the same command goes
on where it was cut short, and more models, trials or starts are added to what is there. A line that is deleted from
runs.csv is made again. --write puts tables and picture into docs/leaderboard.md.
"""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import replace
from pathlib import Path

from nbmf.experiments import figures
from nbmf.experiments.contest import Contest, Standing, Tidings, run_contest
from nbmf.experiments.leaderboard import difference, picture, quality_table, settings_table
from nbmf.experiments.pages import Best, Table, Text, blocks_as_markdown
from nbmf.experiments.rivals import RIVALS
from nbmf.experiments.rows import write_whole
from nbmf.experiments.runs import available_cores
from nbmf.experiments.study import Study, open_study
from nbmf.inference.progress import RunsProgress

ROOT = Path(__file__).parents[1]
SEED = 2027  # a split that no model was worked out on
CAPTION = "Round and orange: NBMF, its average and NBSLIM. A bar is the 95 % interval of the difference to the best."


def main() -> None:
    """Run a contest on each data set, and show how it ended."""
    options = _options()
    contest = Contest(options.models, options.trials, options.starts, SEED, options.limit)
    ended: dict[str, Standing] = {}
    for source in options.data:
        study = open_study(None if source == "groceries" else source, seed=SEED)
        print(f"{study.name}: {study.data}; held out: {study.split}", flush=True)
        name = name_of(source)
        ended[name] = contest_on(study, contest, options.folder / name, options.workers, name)
        print(blocks_as_markdown(page(study, ended[name])), flush=True)
        figures.save(lambda name=name: picture(ended[name]), options.folder / name, "leaderboard")
        if options.write:
            write_page(name, study, ended[name], options.folder / name)
    if options.write:
        command = shlex.join(["python", "benchmarks/leaderboard.py", *map(short_path, options.data), *_budget(contest)])
        put_between(ROOT / "docs" / "leaderboard.md", "leaderboard command", f"    {command} --write")
        put_between(ROOT / "docs" / "leaderboard.md", "leaderboard summary", blocks_as_markdown([summary(ended)]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="*", default=["groceries"], help="groceries, or files of users, items and counts")
    parser.add_argument("--trials", type=int, default=12, help="settings tried of each model")
    parser.add_argument("--starts", type=int, default=5, help="final fits of each model that is random")
    parser.add_argument("--models", type=lambda text: tuple(text.split(",")), default=tuple(RIVALS))
    parser.add_argument("--folder", type=Path, default=Path("leaderboard"), help="where the rows go")
    parser.add_argument("--workers", type=int, default=None, help="trials at a time; by default one a core")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a fit is given up")
    parser.add_argument("--write", action="store_true", help="write docs/leaderboard.md")
    return parser.parse_args()


def _budget(contest: Contest) -> list[str]:
    return ["--trials", str(contest.n_trials), "--starts", str(contest.n_starts)]


def name_of(source: str) -> str:
    """Return a word for a data set: a file's name, or that of its folder where the file's says nothing."""
    path = Path(source)
    word = path.parent.name if path.stem.startswith("interactions") and path.parent.name else path.name.split(".")[0]
    return re.sub(r"\W+", "_", word)


def short_path(source: str) -> str:
    """Return a path without the folders that differ from machine to machine."""
    return source if source == "groceries" else "/".join(Path(source).parts[-2:])


def contest_on(study: Study, contest: Contest, folder: Path, n_workers: int | None, title: str) -> Standing:
    """Run or go on with a contest, telling how far it is."""
    with RunsProgress(title, what="fits") as progress:

        def report(tidings: Tidings) -> None:
            progress.report(tidings.n_done, tidings.n_fits, tidings.n_done / tidings.n_fits, str(tidings.row or ""))

        # what items are called is of no use to the processes
        train, test = (replace(part, item_names=None) for part in (study.train, study.test))
        return run_contest(train, test, contest, folder, n_workers=n_workers, report=report)


def page(study: Study, standing: Standing) -> list[Text | Table]:
    """Return what is said of one data set."""
    data, board = study.data, standing.compare()
    facts = (
        f"{data.n_users:,} users × {data.n_items:,} items, {data.nnz:,} non-zero counts; held out: {study.split}; "
        f"{board.n_users:,} users judged. Seconds are the median of the starts with {available_cores()} threads, "
        "megabytes the most by which the process of a fit grew. Bold: the best of a column."
    )
    return [
        Text(facts),
        quality_table(standing),
        Text("What the trials chose, and NDCG on the counts set aside:"),
        settings_table(standing),
    ]


def write_page(name: str, study: Study, standing: Standing, folder: Path) -> None:
    """Put tables and picture of a data set into docs."""
    image = f"leaderboard-{name}.png"
    write_whole(ROOT / "docs" / image, (folder / "leaderboard.png").read_bytes())
    text = blocks_as_markdown(page(study, standing))
    shown = f"![NDCG on held-out counts against the seconds of a fit, {name}]({image})"
    put_between(ROOT / "docs" / "leaderboard.md", f"leaderboard {name}", f"## {name}\n\n{shown}\n\n{CAPTION}\n\n{text}")


def put_between(path: Path, mark: str, text: str) -> None:
    """Replace what stands between <!-- mark --> and <!-- /mark -->; without such marks, add them at the end."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    page = path.read_text(encoding="utf-8")
    part = f"{begin}\n\n{text}\n\n{end}"
    if begin in page:
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"{path}: {begin} and {end} must be there once each; mend the page")
        page = page[: page.index(begin)] + part + page[page.index(end) + len(end) :]
    else:
        page = f"{page.rstrip()}\n\n{part}\n"
    write_whole(path, page)


def summary(ended: dict[str, Standing]) -> Table:
    """Return the short table: each model's NDCG, its difference to the best, and its seconds on each data set."""
    names = list(dict.fromkeys(contender.name for standing in ended.values() for contender in standing.compare()))
    rows = []
    for name in names:
        cells = []
        for standing in ended.values():
            board = standing.compare()
            if name not in standing.starts:
                cells += ["", "", ""]
                continue
            is_best, mean = name == board.reference, f"{board[name].mean:.4f}"
            cells += [
                Best(mean) if is_best else mean,
                "" if is_best else difference(board, name),
                f"{standing.seconds(name):.1f}",
            ]
        rows.append([RIVALS[name].label, *cells])
    head = ["model", *(text for name in ended for text in (f"{name}: NDCG", "difference to the best", "seconds"))]
    return Table(head, rows)


if __name__ == "__main__":
    main()
