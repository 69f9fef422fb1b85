"""Models in a folder of a web server: with an index, or listed as nginx does."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.stores.choose import open_store
from models.stores.errors import Missing, StoreError, TooLarge
from models.stores.urls import StoreUrl
from tests.integration.harness import serving
from tests.integration.publishing import Publisher, answered_by, eventually


class Nginx(http.server.SimpleHTTPRequestHandler):
    """A folder as nginx shows it with `autoindex_format json`; without range requests."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        super().do_GET()

    def list_directory(self, path: str) -> None:  # type: ignore[override]
        listed = [
            {"name": each.name, "type": "directory" if each.is_dir() else "file"}
            for each in Path(path).iterdir()
        ]
        content = json.dumps(listed).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Plain(Nginx):
    """Shows folders as pages."""

    def list_directory(self, path: str) -> None:  # type: ignore[override]
        content = b"<html>Index of /</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Elsewhere(Nginx):
    """Redirects to itself, or to another protocol."""

    target = ""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.target or self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()


class OtherProtocol(Elsewhere):
    target = "ftp://127.0.0.1/"


class Unknown(Nginx):
    """Does not say how long its answers are."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")


class Endless(Nginx):
    """Answers a range with the right head, and many more bytes."""

    MOST = 64 << 20

    def do_GET(self) -> None:
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{1 << 30}")
        self.send_header("Content-Length", str(self.MOST))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for _ in range(self.MOST >> 16):
                self.wfile.write(bytes(1 << 16))


@contextlib.contextmanager
def web_server(
    folder: Path, kind: type[Nginx] = Nginx
) -> Iterator[tuple[StoreUrl, list[tuple[str, str | None]]]]:
    """A URL, and what was asked for: paths and logins."""
    asked: list[tuple[str, str | None]] = []

    class Handler(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))

    Handler.asked = asked
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield StoreUrl("http", f"127.0.0.1:{server.server_port}", "models"), asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


@pytest.mark.parametrize("kind", [Nginx, Plain])
async def test_models_come_from_a_web_server(site: Path, tmp_path: Path, kind: type[Nginx]) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(1)
    publisher.repository.rename(site / "models")
    index = site / "models" / "index.json"
    if kind is Plain:
        index.write_text(json.dumps({"m": [1]}))
    settings: dict[str, Any] = {"source_poll_s": 0.1, "reload_s": 0.1}
    with web_server(site, kind) as (url, _):
        async with serving(str(url), source_cache=tmp_path / "cache", **settings) as api:
            assert await answered_by(api) == 1
            publisher.repository.mkdir()
            publisher.publish(2).rename(site / "models" / "m" / "2")
            if kind is Plain:
                index.write_text(json.dumps({"m": [1, 2]}))
            await eventually(lambda: answered_by(api), 2)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("{", "is not JSON: put index.json there"),
        ("[1]", "index.json is not a map of models"),
        ('{"m": ["1"]}', "the versions of a model are a list of numbers"),
        ("[" * 100_000, "is not JSON"),
    ],
)
async def test_an_index_of_another_form_is_refused(site: Path, index: str, says: str) -> None:
    (site / "models").mkdir()
    (site / "models" / "index.json").write_text(index)
    with web_server(site) as (url, _), pytest.raises(StoreError, match=says):
        [entry async for entry in open_store(url).entries(10)]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Plain, "autoindex_format"),
        (Elsewhere, "its redirects cannot be followed"),
        (OtherProtocol, "one that it redirects to, must begin with https://"),
        (Unknown, "sends no Content-Length"),
    ],
)
async def test_a_server_is_told_what_is_needed(site: Path, kind: type[Nginx], says: str) -> None:
    (site / "models").mkdir()
    with web_server(site, kind) as (url, _), pytest.raises(StoreError, match=says):
        [entry async for entry in open_store(url).entries(10)]


async def test_folders_cost_few_requests(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that can be models are asked for, and not too many of them."""
    for name in ("m/1", "other/2", ".git/objects", "a b/1", "_old/1"):
        (site / "models" / name).mkdir(parents=True)
    with web_server(site) as (url, asked):
        found = {entry.key async for entry in open_store(url).entries(10)}
        assert found == {"m/1/manifest.json", "other/2/manifest.json"}
        assert len(asked) == 1 + 1 + 2  # the index, all folders, each of the two
        monkeypatch.setattr("models.stores.web.MAX_FOLDERS", 1)
        with pytest.raises(TooLarge, match=r"has 2 folders, and at most 1 .* put index.json there"):
            [entry async for entry in open_store(url).entries(10)]


async def test_reads_are_bounded_and_large_files_need_ranges(site: Path) -> None:
    (site / "models").mkdir()
    (site / "models" / "a b").write_bytes(b"0123456789")
    with web_server(site) as (url, _):
        store = open_store(url)
        assert (await store.read("a b", 10)).data == b"0123456789"
        assert b"".join(await store.read_range("a b", 0, 10, 10)) == b"0123456789"
        with pytest.raises(TooLarge, match="has 10 bytes; at most 9 are read"):
            await store.read("a b", 9)
        with pytest.raises(StoreError, match="answers no range requests"):
            await store.read_range("a b", 5, 10, 10)
        with pytest.raises(Missing):
            await store.read("c", 1)


async def test_a_range_is_bounded_whatever_the_server_sends(site: Path) -> None:
    with (
        web_server(site, Endless) as (url, _),
        pytest.raises(TooLarge, match="more than the 10 bytes asked for"),
    ):
        await open_store(url).read_range("a", 5, 15, 1 << 30)


async def test_a_login_is_only_sent_over_tls(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "models").mkdir()
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with web_server(site) as (url, asked), pytest.raises(Missing):
        await open_store(url).read("c", 1)
    assert asked == [("/models/c", None)]
