"""Predictions by the fast path and by ASGI: alike in every answer, and in what is counted."""

from __future__ import annotations

import base64
import collections
import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.access.entries import make_key
from app.api.payloads import CURLS_DEFAULT
from tests.artifacts import write_small
from tests.docs.blocks import ROOT
from tests.forms import FORM, files
from tests.integration.doubles import write_double_models
from tests.integration.listening import Listening, listening
from tests.integration.wire import READY, Wire, WireAnswer, request
from tests.kinds import write_pictures
from tests.texts import write_text

OCTETS = "application/octet-stream"
NPY = "application/x-npy"
NPZ = "application/x-npz"


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def octets(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


def picture() -> bytes:
    return (ROOT / "docs/three.png").read_bytes()


SMALL = json.dumps({"input": {"picture": [[[0.5] * 4] * 4], "shift": [1, 2]}}).encode()
GOOD: dict[str, dict[str, Any]] = {
    "plain": {},
    "whitespace": {"body": b' {"input" : [1 , 2]} \n'},
    "named": {"path": "/models/double/predict"},
    "version": {"path": "/models/double/versions/3/predict"},
    "version with noughts": {"path": "/models/double/versions/003/predict"},
    "batch": {"path": "/batch-predict", "body": b'{"inputs": [[1, 2], [3, 4], [1, 2]]}'},
    "named batch": {"path": "/models/double/batch-predict", "body": b'{"inputs": [[1, 2]]}'},
    "labels": {"path": "/models/labelled/predict"},
    "top_k": {"path": "/models/labelled/predict?top_k=1"},
    "top_k of a batch": {
        "path": "/models/labelled/versions/1/batch-predict?top_k=9",
        "body": b'{"inputs": [[1, 2], [3, 4]]}',
    },
    "two outputs": {"path": "/models/two/predict"},
    "free dimensions": {"path": "/models/small/predict", "body": SMALL},
    "no content type": {"content_type": ""},
    "content type with parameters": {"content_type": "Application/JSON; charset=utf-8"},
    "octets": {"body": octets(1, 2), "content_type": OCTETS},
    "octets batch": {
        "path": "/batch-predict",
        "body": octets(1, 2, 3, 4),
        "content_type": OCTETS,
        "accept": OCTETS,
    },
    "npy": {"body": npy(np.array([1.0, 2.0])), "content_type": NPY, "accept": NPY},
    "npz": {"body": npz(x=[1.0, 2.0]), "content_type": NPZ, "accept": NPZ},
    "npz batch without a type": {
        "path": "/batch-predict",
        "body": npz(x=[[1.0, 2.0], [3.0, 4.0]]),
        "content_type": "",
        "accept": "application/x-npz",
    },
    "npz of two outputs": {"path": "/models/two/predict", "accept": NPZ},
    "accept list": {"accept": "text/html, application/x-npy;q=0.9, */*;q=0.1"},
    "accept list of two outputs": {
        "path": "/models/two/predict",
        "accept": "application/x-npy, application/json;q=0.1",
    },
    "accept nothing": {"accept": ""},
    "accept all": {"accept": "*/*"},
    "accept with bad quality": {"accept": "application/x-npy;q=much, application/json;q=0.1"},
    "JSON as curl's default": {"content_type": CURLS_DEFAULT},
    "npy without a type": {"content_type": "", "body": npy(np.array([1.0, 2.0]))},
    "a file": {"content_type": FORM, "body": files(octets(1, 2))},
    "an npy file": {"content_type": FORM, "body": files(npy(np.array([1.0, 2.0]))), "accept": NPY},
    "files": {
        "path": "/batch-predict",
        "content_type": FORM,
        "body": files(octets(1, 2), npy(np.array([3.0, 4.0])), octets(1, 2)),
    },
    "a picture as a file": {
        "path": "/models/pictures/predict",
        "content_type": FORM,
        "body": files(picture()),
    },
    "a picture as curl's default": {
        "path": "/models/pictures/predict",
        "content_type": CURLS_DEFAULT,
        "body": picture(),
    },
    "timeout": {"x_torchlane_timeout_ms": "5000"},
    "timeout above the most": {"x_torchlane_timeout_ms": "1e12"},
    "missing values": {
        "path": "/models/ages/batch-predict",
        "body": b'{"inputs": [{"age": null, "rooms": 2}, {"rooms": 3}, {"age": 4, "rooms": NaN}]}',
    },
    "some fail": {"path": "/batch-predict", "body": b'{"inputs": [[1, 2], [500, 2], [-500, 2]]}'},
    "latin-1 header": {"x_other": "\xe9"},
}
BAD: dict[str, tuple[int, dict[str, Any]]] = {
    "not JSON": (422, {"body": b"{"}),
    "empty": (422, {"body": b""}),
    "wrong key": (422, {"body": b'{"inputs": [[1, 2]]}'}),
    "shape": (422, {"body": b'{"input": [1, 2, 3]}'}),
    "null": (422, {"body": b'{"input": [1, null]}'}),
    "NaN": (422, {"body": b'{"input": [1, NaN]}'}),
    "a missing value too many": (422, {"path": "/models/ages/predict", "body": b'{"input": 1}'}),
    "ragged": (422, {"body": b'{"input": [[1], [2, 3]]}'}),
    "batch with a bad item": (
        422,
        {"path": "/batch-predict", "body": b'{"inputs": [[1, 2], [3]]}'},
    ),
    "octets too short": (422, {"body": b"1234567", "content_type": OCTETS}),
    "damaged npy": (422, {"body": b"\x93NUMPY", "content_type": NPY}),
    "damaged picture": (
        422,
        {"path": "/models/pictures/predict", "body": b"no", "content_type": "image/png"},
    ),
    "two files for one": (422, {"content_type": FORM, "body": files(octets(1, 2), octets(1, 2))}),
    "a bad file": (
        422,
        {"path": "/batch-predict", "content_type": FORM, "body": files(octets(1, 2), b"1234567")},
    ),
    "a form that is cut off": (422, {"content_type": FORM, "body": files(octets(1, 2))[:-9]}),
    "a form without a boundary": (422, {"content_type": "multipart/form-data"}),
    "too many files": (
        413,
        {"path": "/batch-predict", "content_type": FORM, "body": files(*[octets(1, 2)] * 9)},
    ),
    "nothing known as curl's default": (415, {"content_type": CURLS_DEFAULT, "body": b"a=b"}),
    "timeout in words": (422, {"x_torchlane_timeout_ms": "soon"}),
    "timeout not a number": (422, {"x_torchlane_timeout_ms": "nan"}),
    "timeout of nothing": (422, {"x_torchlane_timeout_ms": "0"}),
    "timeout without end": (422, {"x_torchlane_timeout_ms": "inf"}),
    "media type": (415, {"content_type": "text/csv"}),
    "media type with a quote": (415, {"content_type": "text/csv; a='\xff'"}),
    "a picture to a tensor model": (415, {"content_type": "image/png"}),
    "top_k without scores": (422, {"path": "/predict?top_k=1"}),
    "top_k as an array": (406, {"path": "/models/labelled/predict?top_k=1", "accept": NPY}),
    "a damaged npz": (422, {"body": b"PK\3\4", "content_type": ""}),
    "an npz with another array": (422, {"content_type": NPZ, "body": npz(arr_0=[1.0, 2.0])}),
    "accept odd": (406, {"accept": "text/html"}),
    "accept no JSON": (406, {"accept": "application/json;q=0, text/*"}),
    "not acceptable": (406, {"path": "/models/two/predict", "accept": NPY}),
    "no such model": (404, {"path": "/models/nope/predict"}),
    "no such version": (404, {"path": "/models/double/versions/2/predict"}),
    "too many items": (
        413,
        {"path": "/batch-predict", "body": b'{"inputs": [%s[1, 2]]}' % (b"[1, 2]," * 8)},
    ),
    "too large": (413, {"body": b" " * 200_001}),
    "the model fails": (500, {"body": b'{"input": [500, 0]}'}),
    "not finite": (500, {"body": b'{"input": [-500, 0]}'}),
    "all fail": (500, {"path": "/batch-predict", "body": b'{"inputs": [[500, 0], [600, 0]]}'}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_double_models(folder)
    write_text(folder)
    write_pictures(folder)
    write_small(folder, ["script"], free=True)
    return folder


LIMITS: dict[str, Any] = {"default_model": "double", "max_items": 8, "max_body_bytes": 200_000}


async def by_expect(server: Listening, given: dict[str, Any]) -> WireAnswer:
    return await server.ask(request(**given, expect="100-continue"))


async def by_query(server: Listening, given: dict[str, Any]) -> WireAnswer:
    path = given.get("path", "/predict")
    path = path.replace("=", "=%30") if "?" in path else f"{path}?"
    return await server.ask(request(**{**given, "path": path}))


async def by_old_version(server: Listening, given: dict[str, Any]) -> WireAnswer:
    return await server.ask(request(**given, version="1.0"))


async def behind_another(server: Listening, given: dict[str, Any]) -> WireAnswer:
    wire = await server.connect()
    wire.send(READY + request(**given))
    assert (await wire.answer()).status == 200
    return await wire.answer()


def alike(answer: WireAnswer) -> object:
    status, headers, body = answer.alike()
    return status, [each for each in headers if each[0] != "connection"], body


async def both(server: Listening, wire: Wire, way: Any, given: dict[str, Any]) -> list[WireAnswer]:
    """The same request on the fast path and another path, which is verified."""
    before = len(server.asgi)
    short = await wire.ask(request(**given))
    assert len(server.asgi) == before, f"{given} did not go by the fast path"
    other = await way(server, given)
    assert len(server.asgi) > before, f"{given} went by the fast path"
    return [short, other]


async def metrics_of(server: Listening) -> collections.Counter[tuple[str, str]]:
    """Requests by status and code."""
    text = (await server.ask(request("/metrics", b"", method="GET"))).body.decode()
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for line in text.splitlines():
        if line.startswith("torchlane_requests_total{"):
            labels, _, value = line.rpartition(" ")
            parts = dict(each.split("=") for each in labels.partition("{")[2][:-1].split(","))
            found[parts["status"].strip('"'), parts["code"].strip('"')] += int(float(value))
    return found


@pytest.mark.parametrize("way", [by_expect, by_query, by_old_version, behind_another])
async def test_both_paths_give_the_same_answer(models: Path, way: Any) -> None:
    cases = {name: (200, each) for name, each in GOOD.items()} | BAD
    counted: collections.Counter[tuple[str, str]] = collections.Counter()
    differing = {}
    async with listening(models, cache_bytes=0, **LIMITS) as server:
        wire = await server.connect()
        for name, (status, given) in cases.items():
            answers = await both(server, wire, way, given)
            counted.update((str(each.status), each.code) for each in answers)
            if alike(answers[0]) != alike(answers[1]) or answers[0].status != status:
                differing[name] = answers
            assert sorted(answers[0].names) == sorted(
                each for each in answers[1].names if each != "connection"
            )
        assert differing == {}
        assert await metrics_of(server) == counted
        assert await server.metric("torchlane_requests_in_flight") == 0


async def test_both_paths_give_the_same_cached_answer(models: Path) -> None:
    async with listening(models, **LIMITS) as server:
        wire = await server.connect()
        for name, given in GOOD.items():
            if name == "some fail":
                continue
            for _ in range(2):  # noticed, then remembered
                await both(server, wire, by_expect, given)
            short, other = await both(server, wire, by_expect, given)
            assert alike(short) == alike(other), name
            assert short["x-torchlane-cache"].startswith("hit"), name


def v2(**change: object) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **change}
    body = json.dumps({"id": "mine", "inputs": [tensor]}).encode()
    return {"path": "/v2/models/double/infer", "body": body}


def embed(body: bytes) -> dict[str, Any]:
    return {"path": "/v1/embeddings", "body": body}


OTHERS: dict[str, tuple[int, dict[str, Any]]] = {
    "v2": (200, v2()),
    "v2 in binary": (200, {**v2(), "body": octets(1, 2), "inference_header_content_length": "0"}),
    "v2 of a wrong shape": (400, v2(shape=[1, 3])),
    "v2 with a wrong header length": (400, {**v2(), "inference_header_content_length": "-1"}),
    "v2 without such a model": (404, {**v2(), "path": "/v2/models/nope/infer"}),
    "v2 of a failing model": (500, v2(data=[500, 0])),
    "embeddings": (200, embed(b'{"input": ["a cat", "dogs"], "model": "text"}')),
    "embeddings of nothing": (400, embed(b'{"input": [], "model": "text"}')),
    "embeddings of no JSON": (400, embed(b"[")),
    "embeddings without such a model": (404, embed(b'{"input": "cat", "model": "nope"}')),
    "a text": (
        200,
        {"path": "/models/text/predict", "body": b"cats", "content_type": "text/plain"},
    ),
    "a text that is cut off": (
        200,
        {"path": "/models/text/predict", "body": b'{"input": "%s"}' % (b"dog " * 9)},
    ),
}


async def test_both_paths_answer_other_protocols_alike(models: Path) -> None:
    async with listening(models, cache_bytes=0, **LIMITS) as server:
        wire = await server.connect()
        for name, (status, given) in OTHERS.items():
            short, other = await both(server, wire, by_expect, given)
            assert (name, alike(short)) == (name, alike(other))
            assert (name, short.status) == (name, status)


PREDICT, PREDICT_LINE = make_key("mobile", ["predict"])
SCRAPE, SCRAPE_LINE = make_key("prometheus", ["metrics"])
ONLY = '[models.labelled]\nallowed_keys = ["other"]\n'
KEYS: list[tuple[int, dict[str, Any]]] = [
    (200, {"x_api_key": PREDICT, "origin": "https://a.example"}),
    (401, {}),
    (401, {"x_api_key": f"{PREDICT}x", "origin": "https://b.example"}),
    (403, {"x_api_key": SCRAPE}),
    (403, {"x_api_key": PREDICT, "path": "/models/labelled/predict"}),
    (400, {"x_api_key": PREDICT, "host": "evil.example"}),
]


async def test_both_paths_check_keys_hosts_and_origins_alike(models: Path, tmp_path: Path) -> None:
    settings = tmp_path / "models.toml"
    settings.write_text(ONLY)
    rules: dict[str, Any] = {"api_keys": f"{PREDICT_LINE};{SCRAPE_LINE}", "models_file": settings}
    rules |= {"cors_origins": "https://a.example", "trusted_hosts": "loopback"}
    async with listening(models, cache_bytes=0, **rules, **LIMITS) as server:
        wire = await server.connect()
        for status, given in KEYS:
            short, other = await both(server, wire, by_expect, given)
            assert alike(short) == alike(other)
            assert short.status == status, given


async def test_routes_are_counted_by_their_templates(models: Path) -> None:
    async with listening(models, **LIMITS) as server:
        wire = await server.connect()
        routes = {
            "/predict": "/predict",
            "/models/double/predict": "/models/{name}/predict",
            "/models/x/predict": "/models/{name}/predict",
            "/models/double/versions/3/predict": "/models/{name}/versions/{version}/predict",
        }
        for path in routes:
            await both(server, wire, by_expect, {"path": path})
        for route in set(routes.values()):
            wanted = 2 * list(routes.values()).count(route)
            assert await server.metric("torchlane_requests_total", route=route) == wanted
            assert await server.metric("torchlane_request_seconds_count", route=route) == wanted
        assert await server.metric("torchlane_request_seconds_count") == 8


KEPT = ("abc-123", "a.b:c/d+e=f@g_h", "x" * 128)
NOT_KEPT = ("x" * 129, "", "a b", "a\t<script>", "\xe9")


async def test_request_ids(models: Path) -> None:
    generated: list[str] = []
    async with listening(models, **LIMITS) as server:
        wire = await server.connect()
        for given, body in itertools.product((*KEPT, *NOT_KEPT), (b'{"input": [1, 2]}', b"{")):
            kept = given in KEPT
            for answer in await both(
                server, wire, by_expect, {"body": body, "x_request_id": given}
            ):
                got = answer["x-request-id"]
                assert (got == given) is kept
                assert kept or len(got) == 16
                generated += [got] * (not kept)
                if answer.status != 200:
                    assert answer.json()["request_id"] == got
    assert len(set(generated)) == len(generated) == 4 * len(NOT_KEPT)


async def test_server_timing_is_on_every_prediction(models: Path) -> None:
    async with listening(models, **LIMITS) as server:
        wire = await server.connect()
        for _ in range(3):
            for answer in await both(server, wire, by_expect, {}):
                times, batch, size = answer["server-timing"].partition(", batch;desc=")
                computed = answer["x-torchlane-cache"] == "miss"
                assert (batch != "", size) == (computed, "1" * computed)
                parts = dict(part.split(";dur=") for part in times.split(", "))
                assert list(parts) == ["decode", "queue", "compute", "encode"]
                assert all(float(value) >= 0 for value in parts.values())


async def test_a_picture(models: Path) -> None:
    async with listening(models, **LIMITS) as server:
        png = {"body": picture(), "content_type": "image/png"}
        text = {"body": json.dumps({"input": base64.b64encode(picture()).decode()}).encode()}
        wire = await server.connect()
        answers = []
        for given in (png, text, png, text, png, text):
            sent = {"path": "/models/pictures/predict", **given}
            answers += await both(server, wire, by_expect, sent)
    assert len({each.body for each in answers}) == 1
    assert [each["x-torchlane-cache"] for each in answers] == ["miss"] + ["hit"] * 11


async def test_both_paths_reject_a_full_queue_alike(models: Path) -> None:
    many = {"path": "/batch-predict", "body": b'{"inputs": [[1, 2], [3, 4], [5, 6]]}'}
    async with listening(models, queue_limit_items=2, **LIMITS) as server:
        wire = await server.connect()
        short, other = await both(server, wire, by_expect, many)
        assert alike(short) == alike(other)
        assert short.status == 413


async def test_both_paths_reject_requests_during_a_drain(models: Path) -> None:
    async with listening(models, **LIMITS) as server:
        wire, second = await server.connect(), await server.connect()
        assert (await wire.ask(request())).status == 200
        server.app.state.lifecycle.begin_drain(10)
        short = await wire.ask(request())
        other = await second.ask(request(expect="100-continue"))
        assert server.asgi == ["POST /predict"]
        assert short.alike() == other.alike()  # `connection: close` among it
        assert (short.status, short.code, short["connection"]) == (503, "shutting_down", "close")
        assert await wire.rest() == await second.rest() == b""
