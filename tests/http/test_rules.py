"""Each rule on a real server, by both paths; those about framing with two workers, too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.artifacts import write_artifact
from tests.e2e.server import Server, running
from tests.http.rules import (
    BODY,
    FRAMING,
    HOST,
    JSON,
    LENGTH,
    OF_CHUNKS,
    RULES,
    SMUGGLED,
    START,
    Rule,
)
from tests.integration.wire import Wire, WireAnswer, ask_for, request

PATHS = {"fast": b" /predict ", "asgi": b" /predict? "}
PAUSE_S = 0.01  # between two pieces: they are read one by one
README = Path(__file__).with_name("README.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("http")
    write_artifact(root / "models", "double")
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with running(folder / "models", folder / "log") as started:
        yield started


@pytest.fixture(scope="module")
def two_workers(folder: Path) -> Iterator[Server]:
    with running(folder / "models", folder / "log of two", workers="2") as started:
        yield started


@contextlib.asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Wire]:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
    try:
        yield wire
    finally:
        await wire.close()


def id_of(answer: WireAnswer) -> str:
    return answer["x-request-id"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", RULES)
async def test_rule(server: Server, name: str, path: str) -> None:
    await check(server, RULES[name], path)


@pytest.mark.parametrize("name", FRAMING)
async def test_framing_rule_with_two_workers(two_workers: Server, name: str) -> None:
    """One path is enough: a worker reads requests as a server of one process does."""
    await check(two_workers, RULES[name], "fast")


async def check(server: Server, rule: Rule, path: str) -> None:
    async with connected(server) as wire:
        if path == "fast":  # where its head is known, what comes may still differ from it
            for _ in range(2):
                assert (await wire.ask(ask_for(7))).status == 200
        for piece in rule.sent:
            wire.send(piece.replace(b" /predict ", PATHS[path]))
            await asyncio.sleep(PAUSE_S if len(rule.sent) > 1 else 0)
        answers = [await wire.answer() for _ in rule.statuses]
        assert tuple(each.status for each in answers) == rule.statuses
        for answer in answers:
            assert answer["date"]
            assert id_of(answer) != "smuggled"
            if b'"prediction"' in answer.body:
                assert answer.json()["prediction"] == {"outputs": {"y": [14, 4]}}
        if rule.stays:
            honest = await wire.ask(ask_for(3, x_request_id="honest"))
            assert (honest.status, id_of(honest)) == (200, "honest")
            assert honest.json()["prediction"] == {"outputs": {"y": [6, 4]}}
        else:
            assert await wire.rest() == b""
            assert answers[-1]["connection"] == "close"


GETS = (
    *("/health/live", "/health/ready", "/metrics", "/models", "/models/double"),
    *("/openapi.json", "/docs", "/v2", "/v2/health/ready", "/v2/models/double/config"),
)


@pytest.mark.parametrize("path", GETS)
async def test_head_is_get_without_its_body(server: Server, path: str) -> None:
    """RFC 9110, section 9.3.2."""
    async with connected(server) as wire:
        by_get = await wire.ask(request(path, b"", method="GET"))
        wire.send(request(path, b"", method="HEAD") + ask_for(3))
        by_head = await wire.answer(body=False)
        assert (by_head.status, by_head.names) == (by_get.status, by_get.names)
        assert by_get.body
        assert (await wire.answer()).json()["prediction"] == {"outputs": {"y": [6, 4]}}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"])
async def test_another_method_gets_405_with_allow(server: Server, method: str) -> None:
    """RFC 9110, sections 9.3 and 15.5.6."""
    async with connected(server) as wire:
        wire.send(request("/predict", b"", method=method))
        answer = await wire.answer(body=method != "HEAD")
        assert (answer.status, answer["allow"]) == (405, "POST")
        if method not in ("GET", "HEAD"):
            answer = await wire.ask(request("/health/live", b"", method=method))
            assert (answer.status, answer["allow"]) == (405, "GET, HEAD")


async def test_http_1_0_gets_no_interim_answer(server: Server) -> None:
    """RFC 9110, section 10.1.1."""
    async with connected(server) as wire:
        wire.send(START.replace(b"1.1", b"1.0") + LENGTH + b"Expect: 100-continue\r\n\r\n")
        await asyncio.sleep(5 * PAUSE_S)
        wire.send(BODY)
        assert (await wire.rest()).startswith(b"HTTP/1.1 200 ")


WRONG_AFTERWARDS = {
    "chunk": b"x\r\n",
    "trailer": b"0\r\nConnection: close\r\n\r\n",
    "trailers": b"0\r\n" + b"a: b\r\n" * 20_000,
}


@pytest.mark.parametrize("path", ["/predict", "/predict?", "/nope", "/health/live"])
@pytest.mark.parametrize("wrong", WRONG_AFTERWARDS)
async def test_one_request_has_one_answer(server: Server, path: str, wrong: str) -> None:
    """A proxy would take a second one for that of its next request."""
    async with connected(server) as wire:
        wire.send(request(path, b"", chunk_bytes=1, content_encoding="br")[:-5])
        assert (await wire.answer()).status in (404, 405, 415)
        wire.send(WRONG_AFTERWARDS[wrong])
        assert await wire.rest() == b""


LAST = {
    "wrong chunk": OF_CHUNKS + b"x\r\n",
    "wrong version": ask_for(7, version="1.2"),
    "head too large": START + b"A: %s\r\n" % (b"a" * 100_000),
    "asked to close": ask_for(7, connection="close"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("last", LAST)
async def test_last_answer_reaches_a_client_that_keeps_sending(
    server: Server, path: str, last: str
) -> None:
    """RFC 9112, section 9.6: a reset would overtake it."""
    async with connected(server) as wire:
        wire.send(LAST[last].replace(b" /predict ", PATHS[path]))
        for _ in range(5):
            await asyncio.sleep(PAUSE_S)
            wire.send(SMUGGLED)
        answer = await wire.answer()
        assert answer.status in (200, 400, 431, 505)
        assert (answer["connection"], await wire.rest()) == ("close", b"")


@pytest.mark.parametrize("path", ["/predict/", "/health/live/", "/models/", "//predict"])
async def test_no_path_is_redirected(server: Server, path: str) -> None:
    """A location would be made of the caller's Host, before any check."""
    async with connected(server) as wire:
        answer = await wire.ask(request(path, host="evil.example"))
        assert (answer.status, "location" in answer.names) == (404, False)


async def test_malformed_requests_do_not_fill_the_log(server: Server) -> None:
    before = len(server.log)
    upgrade = START + LENGTH + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n" + BODY
    for sent in (upgrade, b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\n" + HOST * 2 + JSON + b"\r\n"):
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(sent)
                assert client.recv(1 << 16)
    lines = server.log[before:].splitlines()
    events = {json.loads(line)["event"] for line in lines}
    assert events <= {"request", "requests_not_logged"}
    assert "request" in events
    assert len(lines) < 180  # of 200, although most come within a second


@pytest.mark.parametrize("option", ["--http1.0", "--http1.1", "--http2", "--http2-prior-knowledge"])
def test_curl_asks_for_http_2(server: Server, option: str) -> None:
    """With --http2 curl asks for an upgrade to h2c, and gets what it gets by --http1.1."""
    command = ["curl", "-s", "-S", option, "-d", BODY.decode(), f"{server.url}/predict"]
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    if option == "--http2-prior-knowledge":  # there is no HTTP/2 here
        assert done.returncode != 0
    else:
        assert json.loads(done.stdout)["prediction"] == {"outputs": {"y": [14, 4]}}


def test_the_readme_lists_rules_and_existing_tests() -> None:
    """Each rule's section is in README.md, and each test that is named there exists."""
    text = README.read_text()
    assert {rule.section for rule in RULES.values()} <= set(
        re.findall(r"9110-[\d.]+|9112-[\d.]+", text)
    )
    code = "".join(path.read_text() for path in README.parents[1].rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named
    assert [name for name in named if f"def {name}(" not in code] == []
    cases = set(re.findall(r'"([^"]+)"', text))
    known = set(RULES)
    assert [each for each in cases if not any(name.startswith(each) for name in known)] == []
