"""The documents as a site: links out of docs/ lead to pages, and nothing is loaded from elsewhere.

`make check` builds the whole site, which fails on a link that leads nowhere.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from mkdocs.exceptions import PluginError

from deploy.site.hook import on_post_page, targets_of, text_of, with_site_links

SETTINGS = PurePosixPath("docs/settings.md")
DECISION = PurePosixPath("docs/adr/0013-admission.md")
README = PurePosixPath("README.md")
HTTP_RULES = PurePosixPath("tests/http/README.md")


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        (SETTINGS, "security.md#api-keys", "security.md#api-keys"),
        (SETTINGS, "../pyproject.toml", "source/pyproject.toml.md"),
        (SETTINGS, "../loadtests/bench/peers", "source/loadtests/bench/peers.md"),
        (DECISION, "../../ARCHITECTURE.md#the-app", "../source/ARCHITECTURE.md#the-app"),
        (DECISION, "../experiments/admission.md", "../experiments/admission.md"),
        (README, "docs/settings.md", "../settings.md"),
        (README, "docs/adr", "../README.md"),
        (README, "LICENSE", "LICENSE.md"),
        (HTTP_RULES, "rules.py", "rules.py.md"),
        (README, "https://semver.org", "https://semver.org"),
        (README, "#deploy", "#deploy"),
    ],
)
def test_links_lead_to_pages_of_the_site(page: PurePosixPath, link: str, on_the_site: str) -> None:
    assert with_site_links(f"See [it]({link}).", page) == f"See [it]({on_the_site})."


def test_code_blocks_are_unchanged() -> None:
    block = "```python\nitems[0](../path)\n```\n"
    assert with_site_links(f"[a](../LICENSE)\n\n{block}", SETTINGS).endswith(block)


def test_targets_are_paths_of_the_repository() -> None:
    assert PurePosixPath("ARCHITECTURE.md") in targets_of(PurePosixPath("docs/reliability.md"))
    assert PurePosixPath("docs/adr") in targets_of(README)


def test_other_files_become_pages_that_search_leaves_out() -> None:
    page = text_of(PurePosixPath("pyproject.toml"))
    assert page.startswith("---\nsearch:\n  exclude: true\n---\n\n# pyproject.toml\n")
    assert "````toml\n[build-system]\n" in page
    assert "- `model.py`\n" in text_of(PurePosixPath("loadtests/bench/peers"))


@pytest.mark.parametrize(
    "element",
    [
        '<script src="https://example.com/a.js">',
        '<link rel="stylesheet" href="//example.com/a.css">',
        '<img alt="" src="http://example.com/a.png">',
    ],
)
def test_nothing_is_loaded_from_other_hosts(element: str) -> None:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    config: Any = None
    local = '<script src="assets/a.js"></script><a href="https://example.com">'
    assert on_post_page(local, page, config) == local
    with pytest.raises(PluginError, match=r"page\.md loads from another host"):
        on_post_page(element, page, config)
