"""The site of the documents, opened as files, without a server and without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.chromium import Visits

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_search_works_without_a_server(site: Path, visit: Visits) -> None:
    page = visit(f"file://{site}", "/index.html")
    search = page.get_by_role("textbox", name="Search")
    search.click()
    expect(page.get_by_text("Type to start searching")).to_be_visible()  # the index is loaded
    search.press_sequentially("rate limits")
    page.locator(".md-search-result").get_by_text("Rate limits").first.click()
    expect(page.get_by_role("heading", name="Rate limits")).to_be_visible()
    assert page.url.startswith(f"file://{site}/security.html")


@pytest.mark.slow
def test_code_that_a_page_links_to_can_be_read(site: Path, visit: Visits) -> None:
    page = visit(f"file://{site}", "/open-inference.html")
    page.get_by_role("link", name="inference.proto").click()
    expect(page.get_by_text("service GRPCInferenceService")).to_be_visible()
