"""Attacks on a real process: its answers, logs and memory, and the effect on other clients."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.entries import make_key
from tests.artifacts import write_artifact
from tests.e2e.server import PLAIN, Server, running
from tests.integration.wire import request

FIRST, FIRST_LINE = make_key("mobile", ["predict"])
SECOND, SECOND_LINE = make_key("mobile", ["predict", "admin"])
WRONG, WRONG_LINE = make_key("nobody", ["predict"])
MIB = 1 << 20
LOAD: dict[str, Any] = {"json": {"input": [1, 2]}}


def ask(server: Server, secret: str = "", path: str = "/predict", **given: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    method = "GET" if path in ("/models", "/metrics", "/openapi.json") else "POST"
    body = {} if method == "GET" else given or LOAD
    return httpx.request(method, server.url + path, headers=headers, verify=PLAIN, **body)


def wait_until(server: Server, secret: str, status: int) -> None:
    """Return once this key is answered so."""
    deadline = time.monotonic() + 30
    while ask(server, secret).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.1)


class TestKeys:
    def test_keys_change_without_a_restart(self, models: Path) -> None:
        keys, log = models.parent / "keys", models.parent / "log"
        keys.write_text(f"{FIRST_LINE}\n")
        settings = {"api_keys_file": str(keys), "workers": "2"}
        with running(models, log, **settings) as server:
            assert ask(server).status_code == ask(server, SECOND).status_code == 401
            wait_until(server, FIRST, 200)  # the other worker may still load
            keys.write_text(f"{FIRST_LINE}\n{SECOND_LINE}\n")
            wait_until(server, SECOND, 200)
            new = keys.with_suffix(".new")
            new.write_text(f"{SECOND_LINE}\n")
            new.rename(keys)
            time.sleep(1)  # whichever worker answers has looked again when it is asked
            wait_until(server, FIRST, 401)
            assert ask(server, SECOND).status_code == 200
            assert server.metric("torchlane_key_requests_total") > 0
        assert "api_keys_changed" in server.log

    @pytest.mark.parametrize("log_format", ["console", "json"])
    def test_no_key_is_ever_revealed(self, models: Path, log_format: str) -> None:
        """Not in the log at its most talkative, nor in metrics, documents and answers."""
        keys, log = models.parent / "keys", models.parent / "log"
        keys.write_text(f"{FIRST_LINE}\n")
        settings = {"api_keys_file": str(keys), "log_level": "debug", "log_format": log_format}
        settings |= {"api_keys": SECOND_LINE, "rate_limit": "20/minute"}
        told = []
        with running(models, log, **settings) as server:
            for secret in (FIRST, SECOND, WRONG, FIRST + WRONG):
                told += [
                    ask(server, secret),
                    ask(server, secret, json={"input": [1, "x"]}),
                    ask(server, secret, json={"input": [500, 0]}),  # the model raises
                    ask(server, secret, "/admin/nope"),
                    ask(server, secret, "/models"),
                    ask(server, secret, "/openapi.json"),
                    ask(server, secret, "/metrics"),
                ]
                with socket.create_connection(("127.0.0.1", server.port), timeout=20) as odd:
                    odd.sendall(f"GET / HTTP/1.1\r\nX-API-Key: {secret}\r\n\0\r\n\r\n".encode())
                    assert b"bad_request" in odd.recv(4096)
            # What an editor's slip may be: the key instead of its hash.
            keys.write_text(f"{FIRST_LINE}\nnobody predict {WRONG}\n")
            time.sleep(1)
            assert ask(server, FIRST).status_code == 200
            while ask(server, SECOND).status_code != 429:
                pass
            server.signal()
            assert server.exit_code() == 0
        assert {each.status_code for each in told} >= {200, 401, 403, 404, 422, 500}
        everything = server.log + "".join(each.text + str(each.headers) for each in told)
        assert "api_keys_not_changed" in server.log
        assert "line 2: the scopes must be followed by sha256:" in server.log
        for line in (FIRST_LINE, SECOND_LINE, WRONG_LINE):
            assert line.split()[2].removeprefix("sha256:") not in everything
        for secret in (FIRST, SECOND, WRONG):
            assert secret not in everything
            assert secret.removeprefix("tl_") not in everything

    def test_errors_reveal_no_internals(self, server: Server) -> None:
        answer = ask(server, json={"input": [500, 0]})
        server.wait_for_log("model_failed")  # threads write the log
        assert (answer.status_code, answer.json()["code"]) == (500, "backend_failed")
        assert "/a/secret/path" in server.log  # what the model raised
        for inside in ("/a/secret", "Traceback", "File", ".py", str(server.log_file.parent)):
            assert inside not in answer.text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("attacked")
    write_artifact(folder / "models", "double")
    with running(folder / "models", folder / "log", head_timeout_s="2") as made:
        yield made


def test_hundreds_of_slow_heads_delay_nobody(server: Server) -> None:
    address = ("127.0.0.1", server.port)
    slow = [socket.create_connection(address, timeout=20) for _ in range(300)]
    try:
        for each in slow:
            each.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\n")
        for _ in range(20):
            assert ask(server).status_code == 200
        for each in slow:
            assert each.recv(4096).startswith(b"HTTP/1.1 408 ")
    finally:
        for each in slow:
            each.close()
    assert server.metric("torchlane_connections_cut_total") == 300
    assert ask(server).status_code == 200


LARGE = 14 * MIB
BOMBS = {
    "lists": b'{"input": [' + b"[]," * (LARGE // 3) + b"0]}",
    "objects": b'{"input": [' + b'{"a":1},' * (LARGE // 8) + b"0]}",
    "numbers": b'{"input": [' + b"0," * (LARGE // 2) + b"0]}",
    "deep": b'{"input": ' + b"[" * LARGE,
    "integer": b'{"input": [' + b"9" * LARGE + b"]}",
}


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's /proc how much memory was used")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_json_bomb_allocates_little_memory(server: Server, bomb: str) -> None:
    """Parsed, the first of these would take 540 MiB."""
    process = Path(f"/proc/{server.process.pid}")
    body = BOMBS[bomb]

    def kib(name: str) -> int:
        lines = (process / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1])

    assert ask(server).status_code == 200
    (process / "clear_refs").write_text("5")  # the peak is what it takes now
    before = kib("VmRSS")
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request(body=body))
        answer = connection.recv(4096)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] in (
        "payload_too_large",
        "invalid_input",
    )
    assert (kib("VmHWM") - before) * 1024 < 8 * len(body)
    assert ask(server).status_code == 200
