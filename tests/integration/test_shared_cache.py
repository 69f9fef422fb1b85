"""The application with a real Redis as its second cache, well and otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from app.backends.fake import FakeBackend
from app.shared_cache import breaker
from app.shared_cache.address import Address
from app.shared_cache.envelope import encode
from app.types import Arrays
from tests.artifacts import write_artifact
from tests.e2e.server import free_port
from tests.integration.harness import Api, serving
from tests.redis_server import RedisServer, needs_redis, soon

pytestmark = needs_redis
DOCUMENT = Path(__file__).parents[2] / "docs/shared-cache.md"
ITEM_S = 0.02  # more than a round trip on a busy machine
BUDGET_MS = 10_000  # for a busy machine
RESULTS = "torchlane_shared_cache_lookups_total"
WRITES = "torchlane_shared_cache_writes_total"
COMPUTED = "torchlane_items_computed_total"


def slow(*_: object) -> FakeBackend:
    """Doubles its input, and takes its time for each item."""

    def run(inputs: Arrays) -> Arrays:
        time.sleep(ITEM_S * len(inputs["x"]))
        return {"y": inputs["x"] * 2}

    return FakeBackend(run)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(breaker, "MOST_PAUSE_S", 0.1)
    monkeypatch.setattr(breaker, "CONNECT_S", 0.3)
    monkeypatch.setattr(breaker, "LOOK_S", 0.01)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double")
    return folder


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@contextlib.asynccontextmanager
async def api_with(models: Path, url: str, budget_ms: float = BUDGET_MS) -> AsyncIterator[Api]:
    async with serving(
        models,
        make_backend=slow,
        max_batch_size=2,
        cache_url=url,
        cache_budget_ms=budget_ms,
        reload_s=0,
    ) as api:
        yield api


async def is_closed(api: Api) -> bool:
    return await api.metric("torchlane_shared_cache_open") == 0


async def usable(api: Api) -> None:
    """Wait until it is there, and the round trip known."""

    async def known() -> bool:
        enough = await api.metric("torchlane_shared_cache_seconds_count") >= 9
        return enough and await is_closed(api)

    await soon(known)


async def predict(api: Api, number: float) -> str:
    """Ask; returns what the header says of the cache."""
    answer = await api.client.post("/predict", json={"input": [number, 1.0]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["prediction"]["outputs"]["y"] == [2 * number, 2.0]
    return str(answer.headers["X-Torchlane-Cache"])


async def stored(api: Api, count: int) -> None:
    async def enough() -> bool:
        return await api.metric(WRITES, result="stored") >= count

    await soon(enough)


async def test_a_restarted_server_keeps_its_hits(models: Path, redis: RedisServer) -> None:
    async with api_with(models, redis.url) as api:
        await usable(api)
        assert [await predict(api, number) for number in range(3)] == ["miss"] * 3
        await stored(api, 3)
    async with api_with(models, redis.url) as api:
        await usable(api)
        assert [await predict(api, number) for number in range(3)] == ["hit"] * 3
        body = {"inputs": [[0.0, 1.0], [7.0, 1.0]]}
        many = await api.client.post("/batch-predict", json=body)
        assert many.headers["X-Torchlane-Cache"] == "hit=1, miss=1, joined=0"
        assert await api.metric(COMPUTED) == 1
        assert await api.metric(RESULTS, result="hit") == 3
        assert await api.metric("torchlane_shared_cache_seconds_count") >= 4


async def test_invalid_values_are_never_returned(models: Path, redis: RedisServer) -> None:
    async with api_with(models, redis.url) as api:
        await usable(api)
        for number in range(6):
            await predict(api, number)
        await stored(api, 6)
    keys = sorted(await redis.keys())
    assert len(keys) == 6
    good = [await redis.ask("GET", key) for key in keys]
    forged = encode(keys[4].removeprefix(b"torchlane:"), {"y": np.zeros((2, 2), np.float32)})
    assert forged is not None
    wrong = [good[1], good[1][:-1], b"x" * 100, bytes(1 << 21), forged]
    for key, value in zip(keys, wrong, strict=False):
        await redis.ask("SET", key, value)
    await redis.ask("DEL", keys[5])
    await redis.ask("LPUSH", keys[5], "a list")
    async with api_with(models, redis.url) as api:
        await usable(api)
        said = [await predict(api, number) for number in range(6)]
        assert said == ["miss"] * 6
        assert await api.metric(RESULTS, result="wrong") == 5
        assert await api.metric(RESULTS, result="miss") == 1
        assert await api.metric(COMPUTED) == 6


async def test_writes_stop_while_redis_is_full(models: Path, redis: RedisServer) -> None:
    with capture_logs() as logs:
        async with api_with(models, redis.url) as api:
            await usable(api)
            await predict(api, 1)
            await stored(api, 1)
            await redis.ask("CONFIG", "SET", "maxmemory", "1")
            await redis.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
            for number in range(10, 18):
                await predict(api, number)
            assert await is_closed(api)
    problems = [(each["use"], each["problem"]) for each in logs if "problem" in each]
    assert problems == [("write", "the server answers OOM")]


async def test_a_wrong_password_is_harmless_and_not_revealed(
    models: Path, redis: RedisServer
) -> None:
    (rights,) = re.findall(r"^ +(ACL SETUSER .*)$", DOCUMENT.read_text(), re.M)
    await redis.ask(*rights.replace(" torchlane ", " me ").replace("PASSWORD", "right").split())
    with capture_logs() as logs:
        url = redis.url.replace("unix://", "unix://me:hunter2@")
        async with api_with(models, url) as api:
            await soon(lambda: any("problem" in each for each in logs))
            assert await predict(api, 1) == "miss"
            shown = [(await api.client.get(path)).text for path in ("/models", "/metrics")]
    problems = {each["problem"] for each in logs if "problem" in each}
    assert problems == {"the server answers WRONGPASS"}
    assert "hunter2" not in str(logs) + str(shown)
    url = redis.url.replace("unix://", "unix://me:right@")  # these rights are enough
    async with api_with(models, url) as api:
        await usable(api)
        await predict(api, 1)
        await stored(api, 1)


async def test_tls_is_verified(tmp_path: Path) -> None:
    port = free_port()
    certificate = self_signed(tmp_path, "localhost")
    tls = ("--tls-port", str(port), "--tls-auth-clients", "no")
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(certificate))
    server = RedisServer(tmp_path, *tls, *files, "--tls-ca-cert-file", str(certificate))
    try:
        url = f"rediss://localhost:{port}/1"
        link = await Address(f"{url}?ssl_ca_certs={certificate}").connect(lambda why: None)
        assert await link.ask("GET", "torchlane:none") is None
        link.close()
        other = url.replace("localhost", "127.0.0.1")  # the certificate is not for that name
        for wrong in (url, f"{other}?ssl_ca_certs={certificate}"):
            with pytest.raises(ssl.SSLCertVerificationError):
                await Address(wrong).connect(lambda why: None)
    finally:
        server.stop()


def self_signed(folder: Path, name: str) -> Path:
    """A certificate that is its own authority, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(pem, form, serialization.NoEncryption())
    file.write_bytes(secret + made.public_bytes(pem))
    return file


async def test_shutdown_does_not_wait_for_a_paused_redis(models: Path, redis: RedisServer) -> None:
    async with api_with(models, redis.url) as api:
        await usable(api)
        await predict(api, 1)
        redis.pause()
        await predict(api, 2)
        began = time.monotonic()
    assert time.monotonic() - began < 20
    await asyncio.sleep(0)
