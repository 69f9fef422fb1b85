"""The page at /docs and its files, as a browser asks for them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.harness import Api, serving

FILES = ("/docs", "/docs/start.js", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, wait_ready=False) as api:
        yield api


@pytest.mark.parametrize("path", FILES)
async def test_each_file_is_served(api: Api, path: str) -> None:
    answer = await api.client.get(path)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"


async def test_the_policy_allows_only_the_servers_files(api: Api) -> None:
    page = await api.client.get("/docs")
    policy = dict(
        each.split(" ", 1) for each in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in page.headers["content-security-policy"]
    scripts = re.findall(r"<script(.*?)>(.*?)</script>", page.text, re.DOTALL)
    assert len(scripts) == 2
    assert all(content == "" for _, content in scripts)
    addresses = re.findall(r'(?:src|href)="(.*?)"', page.text)
    assert not [each for each in addresses if "//" in each or each.startswith("/")]


@pytest.mark.parametrize(
    "path",
    [
        *("/docs/nope", "/redoc", "/docs/docs"),
        *("/docs/../app/main.py", "/docs/..%2F__init__.py", "/docs/%2e%2e/core.py"),
        *("/docs//etc/passwd", "/docs/%2Fetc%2Fpasswd", "/docs/start.js%00"),
    ],
)
async def test_no_other_file_is_served(api: Api, path: str) -> None:
    answer = await api.client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_trailing_slash_redirects_below_any_prefix(api: Api) -> None:
    answer = await api.client.get("/docs/")
    assert (answer.status_code, answer.headers["location"]) == (307, "../docs")
