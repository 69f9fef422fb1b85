"""The page at / and its files, as a browser asks for them, and the reports of versions."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.access.entries import make_key
from app.api.page import report
from deploy.package import build
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving, settled

pytestmark = pytest.mark.asyncio(loop_scope="module")
STATIC = Path(report.__file__).with_name("static")
FILES = {
    str(path.relative_to(STATIC)): path.read_bytes()
    for path in sorted(STATIC.rglob("*"))
    if path.is_file()
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
MAX_COMPRESSED_BYTES = 200_000
_, KEY_LINE = make_key("mobile", ["predict"])
REPORT = b"<!doctype html><title>double/1</title>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(models: Path) -> AsyncIterator[Api]:
    async with serving(models) as it:
        yield it


async def test_each_file_is_served_and_revalidated(api: Api) -> None:
    for name, content in FILES.items():
        url = "/" if name == "index.html" else f"/page/{name}"
        answer = await api.client.get(url)
        assert (answer.status_code, answer.content) == (200, content), name
        media_type = TYPES.get(Path(name).suffix, "text/plain")
        assert answer.headers["content-type"] == f"{media_type}; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        etag = answer.headers["etag"]
        head = await api.client.head(url)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(content))
        again = await api.client.get(url, headers={"If-None-Match": etag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        refused = await api.client.put(url)
        assert (refused.status_code, refused.json()["code"]) == (405, "method_not_allowed")
        allowed = {"GET", "HEAD", "POST"} if url == "/" else {"GET", "HEAD"}
        assert {each.strip() for each in refused.headers["allow"].split(",")} == allowed


async def test_the_policy_allows_only_the_servers_files(api: Api) -> None:
    page = await api.client.get("/")
    policy = dict(
        each.split(" ", 1) for each in page.headers["content-security-policy"].split("; ")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' blob: data:",
        "connect-src": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert not re.search(r"<script[^>]*>[^<]|<style|\sstyle=|\son\w+=", page.text)
    addresses = re.findall(r'(?:src|href)="(?!data:)(.*?)"', page.text)
    assert not [each for each in addresses if "//" in each or each.startswith("/")]


async def test_the_files_of_the_api_reference(api: Api) -> None:
    for name in ("", "/start.js", "/swagger-ui.css", "/swagger-ui-bundle.js"):
        answer = await api.client.get(f"/docs{name}")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    page = await api.client.get("/docs")
    policy = dict(
        each.split(" ", 1) for each in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in page.headers["content-security-policy"]
    scripts = re.findall(r"<script(.*?)>(.*?)</script>", page.text, re.DOTALL)
    assert [content for _, content in scripts] == ["", ""]
    addresses = re.findall(r'(?:src|href)="(.*?)"', page.text)
    assert not [each for each in addresses if "//" in each or each.startswith("/")]
    answer = await api.client.get("/docs/")  # below any prefix
    assert (answer.status_code, answer.headers["location"]) == (307, "../docs")


async def test_all_files_are_in_the_package(tmp_path: Path) -> None:
    packaged = build(STATIC.parents[3], tmp_path / "wheel") / "app/api/page/static"
    assert {name: (packaged / name).read_bytes() for name in FILES} == dict(FILES)


async def test_all_files_are_small() -> None:
    assert sum(len(gzip.compress(content)) for content in FILES.values()) < MAX_COMPRESSED_BYTES


@pytest.mark.parametrize(
    "path",
    [
        *("/page", "/page/", "/page/nope.js", "/index.html", "/page/../files.py"),
        *("/page/..%2Ffiles.py", "/page/%2e%2e/files.py", "/page//etc/passwd"),
        *("/page/%2Fetc%2Fpasswd", "/page/index.html%00", "/page/vendor"),
        *("/docs/nope", "/redoc", "/docs/..%2F__init__.py", "/docs/%2e%2e/core.py"),
        *("/docs//etc/passwd", "/docs/start.js%00"),
    ],
)
async def test_no_other_file_is_served(api: Api, path: str) -> None:
    answer = await api.client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("host", "keys", "page", "shown"),
    [
        *(("localhost", False, "auto", True), ("::1", False, "auto", True)),
        *(("0.0.0.0", False, "auto", False), ("::", False, "auto", False)),
        (f"{'a' * 64}.invalid", False, "auto", False),
        *(("0.0.0.0", True, "auto", True), ("0.0.0.0", False, "on", True)),
        ("127.0.0.1", True, "off", False),
    ],
)
async def test_page_visibility_by_host_keys_and_setting(
    tmp_path: Path, host: str, keys: bool, page: str, shown: bool
) -> None:
    settings: dict[str, Any] = {"host": host, "api_keys": KEY_LINE if keys else None, "page": page}
    async with serving(tmp_path, wait_ready=False, **settings) as api:
        for path in ("/", "/page/index.html"):
            answer = await api.client.get(path)
            assert answer.status_code == (200 if shown else 404), path
        # What it shows has its own rules: that of /metrics, and that of /models.
        assert (await api.client.head("/live")).status_code == 200
        assert (await api.client.get("/models")).status_code == (401 if keys else 200)


async def test_a_browser_is_told_where_the_page_is(api: Api, models: Path) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path, root in (("/nope", "./"), ("/a/b/nope", "../../"), ("/docs/nope", "../")):
        answer = await api.client.get(path, headers=browser)
        assert (answer.status_code, answer.headers["vary"]) == (404, "Accept")
        assert f'<a href="{root}">/</a>' in answer.text
        assert f'<a href="{root}docs">/docs</a>' in answer.text
        assert (await api.client.get(path)).json()["code"] == "not_found"
    async with serving(models, page="off") as without:
        answer = await without.client.get("/nope", headers=browser)
        assert 'docs">/docs</a>' in answer.text
        assert "/</a>" not in answer.text


async def test_the_page_learns_what_its_key_may_do(api: Api, models: Path) -> None:
    secret, line = make_key("mobile", ["predict", "admin"])
    answer = await api.client.get("/page/access")
    assert answer.json() == {"keys": False, "scopes": ["predict"]}
    async with serving(models, api_keys=line) as keyed:
        wrong = await keyed.client.get("/page/access", headers={"X-API-Key": "wrong"})
        assert wrong.status_code == 401  # as any call, so that guesses are logged and counted
        for key, scopes in ((secret, ["admin", "predict"]), ("", [])):
            answer = await keyed.client.get("/page/access", headers={"X-API-Key": key})
            assert answer.json() == {"keys": True, "scopes": scopes}
            assert answer.headers["cache-control"] == "no-store"


async def test_a_report_is_sandboxed(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, "double")
    (folder / "report.html").write_bytes(REPORT)
    (folder / "script.pt").write_bytes(b"broken")  # a failed version has its report too
    async with serving(tmp_path, wait_ready=False) as api:
        await settled(api)
        answer = await api.client.get("/models/double/versions/1/report")
        assert (answer.status_code, answer.content) == (200, REPORT)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"].split("; ")
        assert {"sandbox", "default-src 'none'", "frame-ancestors 'none'"} < set(policy)
        assert "script" not in answer.headers["content-security-policy"]
        head = await api.client.head("/models/double/versions/1/report")
        assert (head.content, head.headers["content-length"]) == (b"", str(len(REPORT)))


async def test_a_missing_report_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_artifact(tmp_path / "models", "double")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    async with serving(tmp_path / "models") as api:

        async def refused(path: str = "double/versions/1") -> str:
            answer = await api.client.get(f"/models/{path}/report")
            assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
            return str(answer.json()["error"])

        assert "export writes one" in await refused()
        assert "no version 2" in await refused("double/versions/2")
        assert "whole number" in await refused("double/versions/latest")
        assert "no version 1 of 'nope'" in await refused("nope/versions/1")
        assert "no version 1 of '..'" in await refused("%2e%2e/versions/1")
        (folder / "report.html").symlink_to(secret)
        assert "leads out" in await refused()
        (folder / "report.html").unlink()
        (folder / "report.html").write_bytes(REPORT)
        monkeypatch.setattr(report, "MAX_BYTES", 10)
        assert "at most 10" in await refused()
