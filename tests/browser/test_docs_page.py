"""/docs in a real browser without internet: it shows the API, and calls it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from app.access.entries import PREDICT, make_key
from tests.artifacts import write_artifact
from tests.browser.chromium import Browser, chromium
from tests.e2e.server import PLAIN, running

PREFIX = "/some/prefix"


@contextlib.contextmanager
def below_a_prefix(url: str) -> Iterator[str]:
    """The address of a proxy that removes a prefix and does not tell the server about it."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            answer = httpx.request(
                self.command,
                url + self.path.removeprefix(PREFIX),
                headers=self.headers.items(),
                content=self.rfile.read(int(self.headers.get("Content-Length", 0))),
                verify=PLAIN,
            )
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}{PREFIX}"
        proxy.shutdown()


def execute(browser: Browser, operation: str, says: str) -> str:
    """What an operation answers to "Try it out"."""
    browser.find(f"{operation} .opblock-summary-control").click()
    browser.find(f"{operation} .try-out__btn").click()
    browser.find(f"{operation} .execute").click()
    return browser.find(f"{operation} .live-responses-table", says).text


@pytest.mark.parametrize("prefixed", [False, True], ids=["at the root", "below a prefix"])
def test_it_shows_every_operation_and_calls_them(tmp_path: Path, prefixed: bool) -> None:
    secret, line = make_key("somebody", [PREDICT])  # keys close the calls, but not this page
    write_artifact(tmp_path / "models", "double")
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(chromium(tmp_path))
        server = stack.enter_context(running(tmp_path / "models", tmp_path / "log", api_keys=line))
        root = stack.enter_context(below_a_prefix(server.url)) if prefixed else server.url
        browser.open(f"{root}/docs")
        browser.find(".opblock-summary-path", "/health/ready")
        paths = httpx.get(f"{server.url}/openapi.json", verify=PLAIN).json()["paths"]
        shown = {text.replace("\u200b", "") for text in browser.texts(".opblock-summary-path")}
        assert shown == set(paths)
        assert '"ready"' in execute(browser, "#operations-health-ready", '"status"')
        browser.find(".auth-wrapper .authorize").click()
        browser.find(".auth-container input").send_keys(secret)
        browser.find(".auth-btn-wrapper .authorize").click()
        browser.find(".auth-btn-wrapper .btn-done").click()
        answer = execute(browser, "#operations-predictions-predict", '"prediction"')
        assert '"outputs"' in answer
        browser.driver.save_screenshot(str(tmp_path / "docs.png"))
        assert browser.complaints() == []
        asked = set(browser.requests())
    assert {each for each in asked if not each.startswith((f"{root}/", "data:"))} == set()
    assert {f"{root}/health/ready", f"{root}/predict"} <= asked


def test_a_violated_policy_and_a_request_elsewhere_are_noticed(tmp_path: Path) -> None:
    """The test above would see them."""
    write_artifact(tmp_path / "models", "double")
    with chromium(tmp_path) as browser, running(tmp_path / "models", tmp_path / "log") as server:
        browser.open(f"{server.url}/docs")
        browser.find(".opblock-summary-path", "/health/ready")
        browser.driver.execute_script(
            "document.body.append(Object.assign(document.createElement('script'), {text: '1'}));"
            "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:1/x.png'}));"
            "return fetch('http://elsewhere.example/').catch(() => 0);"
        )
        complaints = [each for each in browser.complaints() if "Content Security Policy" in each]
        for directive in ("script-src", "img-src", "connect-src"):
            assert any(directive in each for each in complaints), directive
        browser.open(f"data:text/html,<img src='{server.url}/docs/swagger-ui.css'>")
        assert f"{server.url}/docs/swagger-ui.css" in browser.requests()
