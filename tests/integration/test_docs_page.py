"""The page at /docs and its files, as a browser asks for them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.harness import Api, serving

FILES = {
    "/docs": "text/html; charset=utf-8",
    "/docs/start.js": "text/javascript; charset=utf-8",
    "/docs/swagger-ui.css": "text/css; charset=utf-8",
    "/docs/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, wait_ready=False) as api:
        yield api


@pytest.mark.parametrize(("path", "media_type"), FILES.items())
async def test_each_file_is_served_and_revalidated(api: Api, path: str, media_type: str) -> None:
    answer = await api.client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    etag = answer.headers["etag"]
    head = await api.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))
    assert head.headers["etag"] == etag
    for known in (etag, f'"other", W/{etag}', "*"):
        again = await api.client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert (await api.client.get(path, headers={"If-None-Match": '"other"'})).status_code == 200
    rejected = await api.client.post(path)
    assert (rejected.status_code, rejected.json()["code"]) == (405, "method_not_allowed")
    assert {each.strip() for each in rejected.headers["allow"].split(",")} == {"GET", "HEAD"}


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
        *("/docs/redoc.standalone.js", "/docs/nope", "/redoc"),
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
