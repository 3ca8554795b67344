"""Pages of the site that are made when it is built: the command line and the changelog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    files.append(File.generated(config, "command-line.md", content="\n".join(command_line())))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    return files


def command_line() -> Iterator[str]:
    """Write what every command answers to `--help`, one section per command."""
    from nbmf.cli import main  # noqa: PLC0415 (mkdocs loads this file before it reads its own settings)

    yield "# Command line\n"
    yield "What each command prints with `--help`. Exit codes: 0; 2 for input that cannot be used, with the file, the"
    yield "line and the remedy; 130 after Ctrl-C.\n"
    yield from help_of(main, "nbmf")
    for name, command in main.commands.items():
        yield f"\n## {name}\n"
        yield from help_of(command, f"nbmf {name}")


def help_of(command: click.Command, path: str) -> Iterator[str]:
    """Write the help of one command as it looks on a terminal of 100 columns."""
    context = click.Context(command, info_name=path, max_content_width=100, terminal_width=100)
    yield from ("```text", command.get_help(context), "```")
