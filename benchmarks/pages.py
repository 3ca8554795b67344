"""How benchmarks write their tables into the pages of docs/."""

from __future__ import annotations

from pathlib import Path

from nbmf.evaluation.experiments.store import write_whole

ROOT = Path(__file__).parents[1]


def put_between(path: Path, mark: str, text: str) -> None:
    """Replace the text between <!-- mark --> and <!-- /mark -->; without such marks, append them."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    page = path.read_text(encoding="utf-8")
    part = f"{begin}\n\n{text}\n\n{end}"
    if begin in page:
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"{path}: {begin} and {end} must be there once each; correct the page")
        page = page[: page.index(begin)] + part + page[page.index(end) + len(end) :]
    else:
        page = f"{page.rstrip()}\n\n{part}\n"
    write_whole(path, page)
