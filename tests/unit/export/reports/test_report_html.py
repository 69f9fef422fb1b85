"""The report as a page."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from export.reports.content import content_of
from export.reports.report_html import render
from models.processor import Processor
from tests.unit.export.measured import MIXED, measured_manifest
from tests.unit.models.manifests import make_manifest

HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>"""


class Page(HTMLParser):
    """Which tags a page has, with their attributes; tags that are not closed are a failure."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page() -> str:
    return render(measured_manifest())


def test_page_has_the_content_of_the_terminal_report(page: str) -> None:
    text = Page(page).text
    content = content_of(measured_manifest())
    parts = [content.title, content.description]
    parts += [part for fact in content.facts for part in fact]
    for section in content.sections:
        parts += [section.title, *section.lines, *(column.title for column in section.columns)]
        parts += [line for row in section.rows for cell in row for line in cell.split("\n")]
    missing = [part for part in parts if part not in text]
    assert missing == []


def test_tags_are_closed_and_ids_are_unique(page: str) -> None:
    document = Page(page)
    assert document.open == []
    ids = [attributes["id"] for _, attributes in document.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in document.tags:
        for name in ("aria-labelledby", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.lstrip("#") in ids


def test_page_fetches_and_runs_nothing(page: str) -> None:
    document = Page(page)
    assert not {tag for tag, _ in document.tags} & {"script", "link", "img", "iframe", "object"}
    for _, attributes in document.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    addresses = set(re.findall(r"https?://[^\"' ]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "default-src 'none'" in page


def test_there_is_a_plot_per_device() -> None:
    two = MIXED.model_copy(update={"processor": Processor(kind="cuda", name="A GPU", threads=1)})
    tags = [tag for tag, _ in Page(render(measured_manifest(MIXED, two))).tags]
    assert tags.count("svg") == 2
    assert "svg" not in [tag for tag, _ in Page(render(make_manifest())).tags]


def test_tables_and_plots_are_labelled(page: str) -> None:
    document = Page(page)
    headers = [attributes for tag, attributes in document.tags if tag == "th"]
    assert headers
    assert all(attributes.get("scope") in ("col", "row") for attributes in headers)
    plots = [attributes for tag, attributes in document.tags if tag == "svg"]
    assert plots[0]["role"] == "img"
    assert "lang" in dict(document.tags)["html"]


def test_hostile_texts_stay_texts() -> None:
    name = HOSTILE + "$x$"
    device = MIXED.model_copy(update={"processor": Processor(kind="cpu", name=name, threads=1)})
    text = render(measured_manifest(device, description=HOSTILE, reason=HOSTILE))
    assert {tag for tag, _ in Page(text).tags} & {"script", "img"} == set()
    assert "<script" not in text
    assert html.escape(HOSTILE, quote=False) in text.replace("&#34;", '"').replace("&#39;", "'")
