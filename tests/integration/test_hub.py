"""Models in a repository of the Hugging Face Hub: its two calls, as the Hub documents them."""

from __future__ import annotations

import hashlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import huggingface_hub
import pytest

from models.stores import hub
from models.stores.choose import open_store
from models.stores.errors import StoreError, TooLarge
from models.stores.urls import StoreUrl
from tests.integration.harness import serving
from tests.integration.publishing import Publisher, answered_by, eventually

URL = StoreUrl.parse("hf://shop/models@v1")
TREE, RESOLVE = "/api/models/shop/models/tree/v1", "/shop/models/resolve/v1/"
TOKEN = "hf_a_token"


class Hub(http.server.BaseHTTPRequestHandler):
    """A repository whose files are in a folder; asks for a token; lists two files at once."""

    folder: Path

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, b"")
        elif path == TREE:
            self._list(int(query.partition("cursor=")[2] or 0))
        elif path.startswith(RESOLVE) and (file := self.folder / path[len(RESOLVE) :]).is_file():
            self._answer(200, file.read_bytes())
        else:
            self._answer(404, b"")

    def _list(self, start: int) -> None:
        files = sorted(each for each in self.folder.rglob("*") if each.is_file())
        listed = [
            {
                "type": "file",
                "path": str(each.relative_to(self.folder)),
                "size": each.stat().st_size,
                "oid": hashlib.sha1(each.read_bytes(), usedforsecurity=False).hexdigest(),
            }
            for each in files[start : start + 2]
        ]
        more = start + 2 < len(files)
        host = self.headers["Host"]
        following = f'<http://{host}{TREE}?recursive=true&cursor={start + 2}>; rel="next"'
        headers = {"Link": following} if more else {}
        self._answer(200, json.dumps(listed).encode(), headers)

    def _answer(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path)


@pytest.fixture(autouse=True)
def _hub(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handler = type("OfFolder", (Hub,), {"folder": publisher.repository})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield
    server.shutdown()
    server.server_close()


async def test_a_server_follows_a_repository_of_the_hub(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(1)
    async with serving(
        str(URL), source_cache=tmp_path / "cache", source_poll_s=0.1, reload_s=0.1
    ) as api:
        assert await answered_by(api) == 1
        publisher.publish(2)
        await eventually(lambda: answered_by(api), 2)


async def test_all_pages_are_listed_and_no_more_than_allowed(publisher: Publisher) -> None:
    folder = publisher.publish(1)
    found = {entry.key async for entry in open_store(URL).entries(100)}
    assert found == {f"m/1/{file.name}" for file in folder.iterdir()}
    assert len(found) > 2
    with pytest.raises(TooLarge, match="too many files to be listed"):
        [entry async for entry in open_store(URL).entries(2)]


async def test_a_wrong_token_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(StoreError, match="the Hub answers 401; it takes HF_TOKEN") as caught:
        [entry async for entry in open_store(URL).entries(100)]
    assert "hf_wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("http://127.0.0.1:9", "the Hub: the connection was refused"),
        ("127.0.0.1", r"its address \(HF_ENDPOINT\) must begin with https://"),
    ],
)
async def test_a_hub_that_is_away_is_said(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, says: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(StoreError, match=f"{URL}: {says}"):
        [entry async for entry in open_store(URL).entries(100)]


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request as the library lists: it asks without a limit of time."""
    monkeypatch.setattr(hub, "READ_S", 0.2)
    hub._limit_requests.cache_clear()
    hub._limit_requests()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(httpx2.ReadTimeout):
            huggingface_hub.get_session().request("GET", address, timeout=None)
    hub._limit_requests.cache_clear()
