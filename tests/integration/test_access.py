"""Keys, scopes, limits, hosts and origins: for predictions and for all other routes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fastapi import FastAPI

from app.access.entries import make_key
from app.api.access import Admin
from tests.integration.harness import serving
from tests.integration.listening import Listening, listening
from tests.integration.wire import COUNTED, READY, WireAnswer, request, total_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
PREDICT, PREDICT_LINE = make_key("mobile", ["predict"])
ADMIN, ADMIN_LINE = make_key("ops", ["admin"])
SLOW, SLOW_LINE = make_key("slow", ["predict"], "4/minute")
SCRAPE, SCRAPE_LINE = make_key("prometheus", ["metrics"])
KEYS = ";".join((PREDICT_LINE, ADMIN_LINE, SLOW_LINE, SCRAPE_LINE))
BATCH: dict[str, Any] = {"path": "/batch-predict", "body": b'{"inputs": [[1, 2], [3, 4], [5, 6]]}'}
BROWSERS = {
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-expose-headers",
    "vary",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(models: Path) -> AsyncIterator[Listening]:
    """A server with keys; nobody reads its counters."""
    async with listening(models, api_keys=KEYS) as it:
        with_admin_routes(it.app)
        yield it


def with_key(secret: str) -> dict[str, Any]:
    return {"authorization": f"Bearer {secret}"}


async def ask(server: Listening, **given: Any) -> WireAnswer:
    return await server.ask(request(**given))


async def get(server: Listening, path: str, method: str = "GET", **headers: Any) -> WireAnswer:
    return await server.ask(request(path, b"", method=method, **headers))


class TestPredictions:
    async def test_a_key_is_required(self, models: Path) -> None:
        async with listening(models, api_keys=KEYS) as server:
            assert (await ask(server, **with_key(PREDICT))).status == 200
            assert (await ask(server, x_api_key=PREDICT)).status == 200
            assert (await ask(server, **BATCH, **with_key(PREDICT))).status == 200
            none, wrong = await ask(server), await ask(server, **with_key(PREDICT + "x"))
            assert (none.status, none.code) == (wrong.status, wrong.code) == (401, "unauthorized")
            assert none["www-authenticate"] == 'Bearer realm="torchlane"'
            assert wrong["www-authenticate"] == 'Bearer realm="torchlane", error="invalid_token"'
            other = await ask(server, **with_key(ADMIN))
            assert (other.status, other.code) == (403, "forbidden")
            assert "lacks the scope 'predict'" in other.json()["error"]
            assert await server.metric(COUNTED, status="401") == 2
            assert await server.metric(COUNTED, status="403") == 1
            assert await server.metric("torchlane_key_requests_total", key="mobile") == 3
            assert await server.metric("torchlane_key_items_total", key="mobile") == 5

    async def test_callers_without_a_key_cannot_discover_models(self, server: Listening) -> None:
        for path in ("/models/double/predict", "/models/nope/predict"):
            assert (await ask(server, path=path)).status == 401
            assert (await get(server, path.removesuffix("/predict"))).status == 401

    async def test_rejected_before_the_body_is_read(self, server: Listening) -> None:
        wire = await server.connect()
        wire.send(request(body=b" " * 1000)[:-1000])
        assert (await wire.answer()).status == 401  # and no 100 Continue before it
        wire.send(b" " * 1000 + request(**with_key(PREDICT)))
        assert (await wire.answer()).status == 200

    async def test_a_key_in_a_trailer_is_ignored(self, server: Listening) -> None:
        sent: dict[str, Any] = {"chunk_bytes": 9}
        whole, key = request(**sent), f"X-API-Key: {PREDICT}\r\n"
        answer = await server.ask(whole[:-2] + key.encode() + b"\r\n")
        assert (answer.status, answer.code) == (401, "unauthorized")

    async def test_a_rate_limit_counts_items(self, models: Path) -> None:
        async with listening(models, api_keys=KEYS) as server:
            slow = with_key(SLOW)
            assert (await ask(server, **BATCH, **slow)).status == 200
            over = await ask(server, **BATCH, **slow)  # its head is the fourth item
            assert (over.status, over.code) == (429, "rate_limited")
            over = await ask(server, **slow)
            assert (over.status, over.code) == (429, "rate_limited")
            assert 0 < over.json()["retry_after_ms"] <= 120_000
            wait_s = int(over["retry-after"])
            assert wait_s - 1 <= over.json()["retry_after_ms"] / 1000 <= wait_s
            assert (await ask(server, **with_key(PREDICT))).status == 200
            assert await server.metric(COUNTED, code="rate_limited") == 2
            wanted = {"key": "slow", "result": "rate_limited"}
            assert await server.metric("torchlane_key_requests_total", **wanted) == 2

    async def test_a_repeated_body_counts_every_time(self, models: Path) -> None:
        async with listening(models, rate_limit="9/minute") as server:
            statuses = [(await ask(server, **BATCH)).status for _ in range(4)]
            assert statuses == [200, 200, 200, 429]

    async def test_hosts(self, models: Path) -> None:
        trusted = "models.example, *.Example.org,[::1]"
        async with listening(models, trusted_hosts=trusted, cors_origins="*") as server:
            for host, status in HOSTS.items():
                answer = await ask(server, host=host)
                assert answer.status == status, host
                assert status == 200 or answer.code == "untrusted_host"
            preflight: dict[str, Any] = {
                "origin": "https://a.example",
                "access_control_request_method": "POST",
            }
            sent = request(body=b"", method="OPTIONS", host="evil.example", **preflight)
            assert (await server.ask(sent)).code == "untrusted_host"
            bad = sum(each == 400 for each in HOSTS.values())
            metrics = (await get(server, "/metrics", host="models.example")).body.decode()
            assert total_of(metrics, COUNTED, {"code": "untrusted_host"}) == bad

    @pytest.mark.parametrize("allowed", ["https://a.example,http://b.example:8080", "*"])
    async def test_origins(self, models: Path, allowed: str) -> None:
        cases: list[dict[str, Any]] = [{}, {"path": "/models/nope/predict"}, {"body": b"{"}]
        origins = ("https://a.example", "http://b.example:8080", "https://c.example", None)
        async with listening(models, cors_origins=allowed) as server:
            for given, origin in itertools.product(cases, origins):
                sent = {} if origin is None else {"origin": origin}
                answer = await ask(server, **given, **sent)
                told = {name: value for name, value in answer.headers if name in BROWSERS}
                lines = [value for name, value in answer.headers if name == "vary"]
                told["vary"] = ", ".join(lines).removeprefix("Accept, Accept-Encoding, ")
                known = allowed == "*" or origin in allowed.split(",")
                wanted = {"vary": "Origin"}
                if origin is not None:
                    wanted["access-control-expose-headers"] = (
                        "X-Request-Id, X-Torchlane-Cache, Server-Timing, Retry-After, "
                        "retry-after-ms, Inference-Header-Content-Length, X-Torchlane-Version"
                    )
                    if known:
                        wanted["access-control-allow-origin"] = "*" if allowed == "*" else origin
                assert told == wanted, origin


HOSTS = {
    "models.example": 200,
    "MODELS.example:8000": 200,
    "a.example.org": 200,
    "a.b.example.org:1": 200,
    "[::1]:80": 200,
    "example.org": 400,
    "evil.example": 400,
    "models.example.evil.example": 400,
    "evilexample.org": 400,
    "": 400,
}


async def test_other_routes_require_the_right_scope(server: Listening) -> None:
    for path in ("/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"):
        assert (await get(server, path)).status == 200, path
    for path in ("/models", "/models/double", "/models/double/versions/1/report"):
        assert (await get(server, path)).code == "unauthorized"
        assert (await get(server, path, **with_key(ADMIN))).code == "forbidden"
        allowed = await get(server, path, **with_key(PREDICT))
        assert allowed.status == (404 if "report" in path else 200)  # it has none


async def test_metrics_can_require_a_key(models: Path) -> None:
    async with listening(models, api_keys=KEYS, open_metrics=False) as server:
        assert (await get(server, "/metrics")).code == "unauthorized"
        assert (await get(server, "/metrics", **with_key(PREDICT))).code == "forbidden"
        assert (await get(server, "/metrics", **with_key(SCRAPE))).status == 200
    async with listening(models, open_metrics=False) as server:
        assert (await get(server, "/metrics", **with_key(SCRAPE))).code == "forbidden"


async def test_trusted_hosts_apply_to_all_paths_except_probes(models: Path) -> None:
    async with listening(models, trusted_hosts="models.example") as server:
        for path in (
            "/models",
            "/metrics",
            "/live",
            "/docs",
            "/openapi.json",
            "/nope",
            "/",
            "/page/x",
        ):
            answer = await get(server, path)
            assert (answer.status, answer.code) == (400, "untrusted_host"), path
        assert (await server.ask(READY)).status == 200
        for path in ("/health/live", "/v2/health/live", "/v2/health/ready"):
            assert (await get(server, path)).status == 200, path


async def test_preflights(models: Path) -> None:
    """A browser asks first, without a key."""
    ours = "https://a.example"
    async with listening(models, cors_origins=ours, api_keys=KEYS) as server:
        for origin, headers, status in (
            (ours, "authorization,content-type,x-torchlane-timeout-ms", 200),
            ("https://evil.example", "authorization", 400),
            (ours, "x-evil", 400),
        ):
            sent = {
                "access_control_request_method": "POST",
                "access_control_request_headers": headers,
            }
            answer = await get(server, "/predict", "OPTIONS", origin=origin, **sent)
            assert answer.status == status
            allowed = dict(answer.headers).get("access-control-allow-origin")
            assert allowed == (ours if origin == ours else None)


async def test_no_cors_headers_are_sent_by_default(models: Path) -> None:
    async with listening(models) as server:
        for answer in (
            await ask(server, origin="https://a.example"),
            await get(server, "/models", origin="https://a.example"),
        ):
            told = {(name, value) for name, value in answer.headers if name in BROWSERS}
            assert told <= {("vary", "Accept, Accept-Encoding")}


def with_admin_routes(app: FastAPI) -> None:
    """What a route under /admin/ looks like."""

    @app.post("/admin/example", tags=["admin"], operation_id="example")
    async def example(caller: Admin) -> dict[str, str]:
        """Returns the caller."""
        return {"by": caller.name}

    @app.post("/elsewhere", tags=["admin"], operation_id="elsewhere")
    async def elsewhere(caller: Admin, what: dict[str, int]) -> dict[str, str]:
        """The dependency guards routes everywhere."""
        return {"by": caller.name}


TEXT_CALLS = {"v1_embeddings", "embeddings", "embed", "rerank", "classify", "root"}
OVERLOAD_IS_429 = {"embed", "rerank", "classify", "root"}  # as text-embeddings-inference says it


class TestAdmin:
    async def test_admin_is_disabled_without_keys(self, models: Path) -> None:
        async with listening(models) as server:
            with_admin_routes(server.app)
            for path in ("/admin/example", "/admin/nope", "/admin", "/elsewhere"):
                answer = await get(server, path, "POST", **with_key(ADMIN))
                assert (answer.status, answer.code) == (403, "forbidden")
                assert "TORCHLANE_API_KEYS_FILE" in answer.json()["error"]

    async def test_admin_requires_the_admin_scope(self, server: Listening) -> None:
        for path in ("/admin/example", "/elsewhere"):
            sent: dict[str, Any] = {"path": path, "body": b"{}"}
            assert (await server.ask(request(**sent))).status == 401
            assert (await server.ask(request(**sent, **with_key(PREDICT)))).status == 403
            answer = await server.ask(request(**sent, **with_key(ADMIN)))
            assert (answer.status, answer.json()) == (200, {"by": "ops"})
        assert (
            await get(server, "/admin/nope")
        ).status == 401  # it does not reveal which paths exist
        assert (await get(server, "/%61dmin/nope")).status == 401
        assert (await get(server, "/admin/nope", **with_key(ADMIN))).status == 404

    async def test_admin_is_rejected_before_the_body_is_read(self, server: Listening) -> None:
        for path in ("/admin/example", "/v2/repository/models/double/load"):
            wire = await server.connect()
            wire.send(request(path, b" " * 1000)[:-1000])
            assert (await wire.answer()).status == 401


class TestDocument:
    """The OpenAPI document says what this very server asks for."""

    async def operations(self, models: Path, **settings: Any) -> dict[str, Any]:
        async with serving(models, **settings) as api:
            with_admin_routes(api.app)
            document = (await api.client.get("/openapi.json")).json()
        assert set(document["components"]["securitySchemes"]) == {"bearer", "api_key"}
        return {
            operation["operationId"]: operation
            for path in document["paths"].values()
            for operation in path.values()
        }

    async def test_without_keys(self, models: Path) -> None:
        operations = await self.operations(models)
        secured = {name for name, each in operations.items() if "security" in each}
        admin = {name for name, each in operations.items() if "admin" in each["tags"]}
        assert secured == admin > {"reload", "unload_model", "elsewhere"}
        for name, operation in operations.items():
            rejections = {"401", "403", "429"} & operation["responses"].keys()
            if name in OVERLOAD_IS_429:
                rejections.remove("429")
            assert rejections == ({"401", "403"} if name in secured else set()), name

    async def test_with_keys(self, models: Path) -> None:
        operations = await self.operations(models, api_keys=KEYS)
        for name, operation in operations.items():
            open_to_all = name in {
                "live",
                "ready",
                "v2_live",
                "v2_ready",
                "ping",
                "health",
                "metrics",
                "live_load",
            }
            assert ("security" in operation) is not open_to_all, name
            if not open_to_all:
                assert operation["security"] == [{"bearer": []}, {"api_key": []}], name
            assert {"401", "403"} <= operation["responses"].keys() or open_to_all, name
            predicts = "predict" in name or "infer" in name or name in {*TEXT_CALLS, "invocations"}
            assert ("429" in operation["responses"]) is predicts, name

    async def test_closed_metrics(self, models: Path) -> None:
        operations = await self.operations(models, open_metrics=False)
        assert "security" in operations["metrics"]
        assert "security" in operations["live_load"]
