"""Prints the report on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from export.reports.content import content_of
from export.reports.sections import Section
from models.manifest import Manifest


def print_report(
    console: Console, manifest: Manifest, folder: Path, signature: str | None = None
) -> None:
    """Print everything in a manifest: plan, times, variants, proof; readable at 80 columns.

    Args:
        console: where to print; tables fold to its width.
        manifest: of the artifact.
        folder: of the artifact.
        signature: text about the signature; None: nothing.
    """
    content = content_of(manifest)
    console.print(plain(content.title), style="bold")
    console.print(plain(content.description))
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    signature_row = () if signature is None else (("signature", signature),)
    for word, what in (*content.facts, ("artifact", str(folder)), *signature_row):
        facts.add_row(plain(word), plain(what))
    console.print(facts)
    for section in content.sections:
        _print_section(console, section)


def _print_section(console: Console, section: Section) -> None:
    console.print()
    console.print(plain(section.title), style="bold")
    for line in section.lines:
        console.print(plain(line))
    if not section.columns:
        return
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    for index, column in enumerate(section.columns):
        widest = max(len(line) for row in section.rows for line in row[index].split("\n"))
        table.add_column(
            plain(column.title),
            justify="right" if column.numeric else "left",
            overflow="fold",
            min_width=widest if column.numeric else None,  # a number in two lines misleads
        )
    for row in section.rows:
        table.add_row(*(plain(cell) for cell in row))
    console.print(table)


def plain(text: str) -> Text:
    """Return text without markup and terminal commands, whatever its source."""
    return Text("".join(each if each.isprintable() or each == "\n" else "?" for each in text))
