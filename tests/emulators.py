"""Emulators of other stores than S3: Azurite, and fake-gcs-server behind what it lacks."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import http.client
import json
import shutil
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.clients.environments import environment
from tests.conftest import Once
from tests.s3 import Handler, Seen, free_port, proxied, running

AZURITE = "azurite@3.37.0"
# Those of every emulator.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def azurite(once: Once, log: Path) -> Iterator[int]:
    """The port of an Azure Blob Storage; skips the test where npm cannot install it."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("there is no npm, which installs Azurite")

    def fill(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), AZURITE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{AZURITE} cannot be installed: {done.stderr[-500:]}")

    program = once("azurite", fill) / "node_modules/.bin/azurite-blob"
    options = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence")
    port = free_port()
    with running([str(program), *options, "--blobPort", str(port)], port, log):
        yield port


def new_container(port: int, name: str) -> None:
    """Make a container, which Azurite wants to be asked for with a signature."""
    now = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
    lines = "".join(f"{header}:{value}\n" for header, value in headers.items())
    text = "PUT" + "\n" * 12 + lines + f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"http://127.0.0.1:{port}/{ACCOUNT}/{name}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)):
        pass


@contextlib.contextmanager
def fake_gcs(once: Once, log: Path) -> Iterator[int]:
    """The port of a Google Cloud Storage; skips the test where pip cannot install it."""
    folder = environment(once, "fake_gcs")
    (program,) = folder.glob("lib/python*/site-packages/*/vendor/*/bin/fake-gcs-server-linux-amd64")
    program.chmod(0o755)
    port = free_port()
    with proxied(port) as proxy:
        proxy.fault = _written
        public = f"127.0.0.1:{proxy.port}"
        options = (
            "-scheme",
            "http",
            "-host",
            "127.0.0.1",
            "-port",
            str(port),
            "-backend",
            "memory",
        )
        with running([str(program), *options, "-public-host", public], port, log):
            yield proxy.port


def _written(handler: Handler, seen: Seen) -> bool:
    """Writes by the JSON API what was sent by the XML API, for which the emulator has no writes."""
    if handler.command != "PUT":
        return False
    _, bucket, name = seen.path.partition("?")[0].split("/", 2)
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
    if (generation := handler.headers["x-goog-if-generation-match"]) is not None:
        path += f"&ifGenerationMatch={generation}"
    line, mark = b"\r\n", uuid.uuid4().hex
    head = json.dumps({"name": unquote(name)}).encode()
    parts = [(b"application/json", head), (b"application/octet-stream", handler.body)]
    body = b"".join(
        b"--" + mark.encode() + line + b"Content-Type: " + kind + 2 * line + content + line
        for kind, content in parts
    )
    body += b"--" + mark.encode() + b"--"
    headers = {"Content-Type": f"multipart/related; boundary={mark}"}
    upstream = http.client.HTTPConnection("127.0.0.1", handler.proxy.upstream, timeout=60)
    with contextlib.closing(upstream):
        upstream.request("POST", path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
    etag = {"ETag": f'"{json.loads(content)["etag"]}"'} if answer.status == 200 else {}
    handler.answer(answer.status, b"", etag)
    return True


def new_bucket(port: int, name: str) -> None:
    """Make a bucket in fake-gcs-server."""
    body = json.dumps({"name": name}).encode()
    headers = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/storage/v1/b?project=mine"
    with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers)):
        pass


def account_file(folder: Path, port: int) -> Path:
    """A service account that asks the emulator, and for no token."""
    file = folder / "account.json"
    empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    address = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True}
    file.write_text(json.dumps({**empty, **address}))
    return file
