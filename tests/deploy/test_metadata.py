"""The README as a package index shows it."""

from __future__ import annotations

from deploy.metadata import standing_alone
from tests.compose.stack import ROOT


def test_links_to_files_become_text_and_pictures_go() -> None:
    readme = (
        "[Docs](docs/README.md), [part](#part), [site](https://example.org)\n\n"
        "| Try | Watch |\n| --- | --- |\n| ![one](a.png) | ![two](b.png) |\n\n"
        "| a | b |\n| --- | --- |\n| 1 | [2](two.md) |\n"
    )
    assert standing_alone(readme) == (
        "Docs, [part](#part), [site](https://example.org)\n\n\n"
        "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    )


def test_nothing_in_the_readme_leads_into_the_repository() -> None:
    text = standing_alone((ROOT / "README.md").read_text())
    assert "](docs" not in text
    assert "](ARCH" not in text
    assert "![" not in text
