"""Infer calls of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import struct
import zlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image

from app.api.endpoints import Endpoint
from app.api.oip.infer import HEADER, MAX_KNOWN, InferCall, KnownHeads
from tests.artifacts import write_artifact, write_small
from tests.integration.listening import Listening, listening
from tests.integration.wire import WireAnswer, request
from tests.kinds import write_dtypes, write_pictures

pytestmark = pytest.mark.asyncio(loop_scope="module")
X = {"name": "x", "shape": [1, 2], "datatype": "FP32"}
ROW = {**X, "data": [1, 2]}
BINARY = {**X, "parameters": {"binary_data_size": 8}}
OCTETS = np.array([1, 2], "<f4").tobytes()
ANSWER = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 4.0]}


class Server:
    """Sends infer requests on one kept connection."""

    def __init__(self, listening: Listening) -> None:
        self.listening = listening

    async def infer(
        self, document: object, octets: bytes = b"", *, model: str = "double", **headers: str
    ) -> WireAnswer:
        """An answer to JSON, with bytes behind it; both may be given as they shall be sent."""
        head = document if isinstance(document, bytes) else json.dumps(document).encode()
        if octets:
            headers.setdefault("inference-header-content-length", str(len(head)))
        return await self.send(head + octets, model, **headers)

    async def send(self, body: bytes, model: str = "double", **headers: str) -> WireAnswer:
        given: dict[str, Any] = {**headers}
        return await self.listening.ask(request(f"/v2/models/{model}/infer", body, **given))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double")
    write_small(folder, ["script"], free=True)
    write_pictures(folder)
    write_dtypes(folder)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(models: Path) -> AsyncIterator[Server]:
    async with listening(models, default_model="double", max_items=10, max_body_bytes=5000) as it:
        yield Server(it)


def outputs(answer: WireAnswer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    assert answer["content-type"] == "application/json"
    found: list[dict[str, Any]] = answer.json()["outputs"]
    return found


def parts(answer: WireAnswer) -> tuple[Any, bytes]:
    """The JSON of a binary answer, and the bytes behind it."""
    assert answer.status == 200, answer.body
    assert answer["content-type"] == "application/octet-stream"
    size = int(answer["inference-header-content-length"])
    return json.loads(answer.body[:size]), answer.body[size:]


def refused(answer: WireAnswer, *words: str, status: int = 400) -> None:
    assert answer.status == status, answer.body
    assert answer["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    for word in words:
        assert word in answer.json()["error"], answer.json()


class TestJson:
    async def test_the_whole_answer(self, server: Server) -> None:
        answer = await server.infer({"id": "mine", "inputs": [ROW]})
        assert answer.json() == {
            **{"model_name": "double", "model_version": "1", "id": "mine"},
            "outputs": [ANSWER],
        }
        assert "id" not in (await server.infer({"id": "", "inputs": [ROW]})).json()

    async def test_missing_or_wrong_content_types_are_accepted(self, server: Server) -> None:
        for kind in ("", "application/octet-stream", "text/plain"):
            assert outputs(await server.infer({"inputs": [ROW]}, content_type=kind)) == [ANSWER]

    @pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[1.0, 2], [3, 4e0]]])
    async def test_flat_and_nested_numbers(self, server: Server, data: object) -> None:
        given = {**X, "shape": [2, 2], "data": data}
        (found,) = outputs(await server.infer({"inputs": [given]}))
        assert (found["shape"], found["data"]) == ([2, 2], [2.0, 4.0, 6.0, 8.0])

    async def test_extra_client_fields_are_accepted(self, server: Server) -> None:
        more = {"priority": 3, "sequence_id": 7, "sequence_start": True, "timeout": 0, "mine": "x"}
        given = {**ROW, "parameters": {"content_type": "np"}}
        document = {"model_name": "double", "inputs": [given], "parameters": more, "extra": [1]}
        assert outputs(await server.infer(document)) == [ANSWER]
        nulls = {"id": None, "parameters": None, "outputs": None}
        assert outputs(await server.infer({**nulls, "inputs": [{**ROW, "parameters": None}]}))

    @pytest.mark.parametrize(
        ("dtype", "datatype", "data"),
        [
            ("bool", "BOOL", [True, False, True]),
            ("int8", "INT8", [-128, 127, 0]),
            ("int64", "INT64", [2**63 - 1, -(2**63), 1]),
            ("uint8", "UINT8", [255, 0, 1]),
            ("float16", "FP16", [0.0999755859375, 1, 2]),
            ("float64", "FP64", [0.1, 1e300, 2]),
        ],
    )
    async def test_every_datatype(
        self, server: Server, dtype: str, datatype: str, data: list[float]
    ) -> None:
        given = {"name": "x", "datatype": datatype, "shape": [1, 3]}
        (found,) = outputs(await server.infer({"inputs": [{**given, "data": data}]}, model=dtype))
        assert found["datatype"] == datatype
        assert np.array_equal(np.array(found["data"], dtype), np.array(data, dtype))
        raw = np.array(data, np.dtype(dtype).newbyteorder("<")).tobytes()
        sized = {**given, "parameters": {"binary_data_size": len(raw)}}
        binary = {"inputs": [sized], "parameters": {"binary_data_output": True}}
        assert parts(await server.infer(binary, raw, model=dtype))[1] == raw

    async def test_several_inputs_with_a_free_axis(self, server: Server) -> None:
        picture = {"name": "picture", "datatype": "FP32", "shape": [2, 1, 4, 4], "data": [0.5] * 32}
        shift = {"name": "shift", "datatype": "FP32", "shape": [2, 3], "data": [[1, 2, 3]] * 2}
        (found,) = outputs(await server.infer({"inputs": [shift, picture]}, model="small"))
        assert found["shape"] == [2, 3]
        assert found["data"][:3] == found["data"][3:]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"shape": [1, 3], "data": [1, 2, 3]}, ["[2]", "[3]"]),
            ({"shape": [2]}, ["got a single number for each item", "shape [2] counts the items"]),
            ({"shape": [-1, 2]}, ["at least 0"]),
            ({"shape": [1, 2.0]}, ["whole numbers"]),
            ({"shape": []}, ["1 to 32 sizes"]),
            ({"shape": [2**63, 2**63]}, ["limit"]),
            ({"shape": [1, 0, 2**62], "data": []}, ["got shape"]),
            ({"shape": [1] * 33, "data": [1]}, ["1 to 32"]),
            ({"data": [1]}, ["[1, 2]", "data of shape [1]"]),
            ({"data": [[1, 2], []]}, ["ragged"]),
            ({"data": [1, "2"]}, ["not all numbers"]),
            ({"data": [1, 1e300]}, ["too large"]),
            ({"data": None}, ["neither data nor"]),
            ({"datatype": "FP64"}, ["FP64", "FP32"]),
            ({"datatype": 1}, ["strings"]),
            ({"datatype": "BYTES", "data": ["AA=="]}, ["BYTES", "FP32"]),
            ({"datatype": "BF16"}, ["binary"]),
            ({"name": "z"}, ["['x']", "'z'"]),
            ({"name": None}, ["name"]),
            ({"parameters": 1}, ["parameters"]),
            ({"parameters": {"shared_memory_region": "a"}}, ["shared memory"]),
            ({"parameters": {"binary_data_size": 8}}, ["both"]),
        ],
    )
    async def test_a_wrong_input(
        self, server: Server, change: dict[str, object], words: list[str]
    ) -> None:
        status = 413 if words == ["limit"] else 400
        refused(await server.infer({"inputs": [{**ROW, **change}]}), *words, status=status)

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"", ["malformed"]),
            (b"{", ["malformed"]),
            (b"[]", ["object"]),
            (b"\xff\xfe{}", ["malformed", "mark of UTF-16; convert it to UTF-8"]),
            (b'{"inputs": [{"data": [NaN]}]}', ["NaN or Infinity"]),
            (b"[" * 5000, ["malformed"]),
            ({}, ["inputs"]),
            ({"inputs": []}, ["at least one"]),
            ({"inputs": [1]}, ["inputs[0]"]),
            ({"inputs": [ROW, ROW]}, ["exactly"]),
            ({"inputs": [ROW] * 65}, ["64"]),
            ({"inputs": [ROW], "id": 1}, ["id"]),
            ({"inputs": [ROW], "parameters": []}, ["parameters"]),
            ({"inputs": [ROW], "parameters": {"timeout": -1}}, ["timeout"]),
            ({"inputs": [ROW], "parameters": {"binary_data_output": 1}}, ["binary_data_output"]),
            ({"inputs": [ROW], "outputs": 1}, ["outputs"]),
            ({"inputs": [ROW], "outputs": [1]}, ["outputs[0]"]),
            ({"inputs": [ROW], "outputs": [{"name": "z"}]}, ["'z'", "['y']"]),
            (
                {
                    "inputs": [ROW],
                    "outputs": [{"name": "y", "parameters": {"shared_memory_region": "a"}}],
                },
                ["shared memory"],
            ),
            (
                {"inputs": [ROW], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
                ["classification"],
            ),
        ],
    )
    async def test_a_wrong_document(self, server: Server, body: object, words: list[str]) -> None:
        refused(await server.infer(body), *words)

    async def test_errors_of_the_head_and_the_model(self, server: Server) -> None:
        many = {"inputs": [{**X, "shape": [11, 2], "data": [1] * 22}]}
        refused(await server.infer(many), "11 items", status=413)
        refused(await server.infer({"inputs": [ROW]}, model="none"), "no model", status=404)
        answer = await server.infer({"inputs": [ROW]}, model="double/versions/2")
        refused(answer, "version 2", status=404)
        fails = {"inputs": [{**X, "data": [101, 0]}]}
        refused(await server.infer(fails), status=500)
        refused(await server.infer(b" " * 6000), "5000", status=413)
        refused(await server.infer({}, content_encoding="br"), "gzip", status=415)

    async def test_a_bad_item_fails_only_its_request(self, server: Server) -> None:
        bad = {"inputs": [{**X, "shape": [2, 2], "data": [1, 2, 101, 0]}]}
        failed, answered = await asyncio.gather(server.infer(bad), server.infer({"inputs": [ROW]}))
        refused(failed, "1 of 2 items", status=500)
        assert outputs(answered) == [ANSWER]


class TestBinary:
    async def test_binary_input_and_output(self, server: Server) -> None:
        document = {"inputs": [BINARY], "parameters": {"binary_data_output": True}}
        head, octets = parts(await server.infer(document, OCTETS))
        (found,) = head["outputs"]
        assert found["parameters"] == {"binary_data_size": 8}
        assert "data" not in found
        assert np.frombuffer(octets, "<f4").tolist() == [2, 4]

    async def test_each_output_can_choose_its_format(self, server: Server) -> None:
        wanted = {"name": "y", "parameters": {"binary_data": True}}
        twice = {"inputs": [BINARY], "outputs": [wanted, {"name": "y"}]}
        head, octets = parts(await server.infer(twice, OCTETS))
        assert len(head["outputs"]) == 1  # one that is named twice is answered once
        assert len(octets) == 8
        asked = {"parameters": {"binary_data_output": True}, "outputs": [{"name": "y"}]}
        assert outputs(await server.infer({"inputs": [BINARY], **asked}, OCTETS)) == [ANSWER]

    async def test_a_known_header_works_with_other_bytes(self, server: Server) -> None:
        head = {"inputs": [BINARY], "outputs": [{"name": "y"}], "parameters": {"timeout": 10**8}}
        for value in (5, 6):
            octets = np.array([value, 0], "<f4").tobytes()
            (found,) = outputs(await server.infer(head, octets))
            assert found["data"] == [2 * value, 0]
        refused(await server.infer(head, octets[:4]), "only 4 bytes")
        refused(await server.infer(head, octets * 2), "16 bytes follow")
        refused(await server.infer(head, octets, model="small"), "picture")
        nan = np.array([np.nan, 0], "<f4").tobytes()
        refused(await server.infer(head, nan), "NaN")

    async def test_the_header_cache_is_bounded_and_excludes_bodies(self, server: Server) -> None:
        service, heads = server.listening.service, KnownHeads()
        endpoint = Endpoint("r", partial(InferCall, heads), "double", many=True)
        documents = ({"id": str(n), "inputs": [BINARY]} for n in range(MAX_KNOWN + 10))
        sent = [json.dumps(each).encode() for each in documents]
        for head in sent:
            call = endpoint.call(service, endpoint, {HEADER: b"%d" % len(head)})
            await call.begin(head + OCTETS).settled()
            layout = heads.get(call.model.codec, head)
            assert layout is not None
            assert layout.request.inputs == ()
        codec = call.model.codec
        assert sum(heads.get(codec, head) is not None for head in sent) <= MAX_KNOWN

    async def test_raw_bytes_without_json(self, server: Server) -> None:
        head, octets = parts(await server.send(OCTETS * 2, inference_header_content_length="0"))
        assert head["outputs"][0]["shape"] == [2, 2]
        assert np.frombuffer(octets, "<f4").tolist() == [2, 4, 2, 4]

    async def test_bfloat16_is_widened(self, server: Server) -> None:
        octets = (np.array([1.5, -2], "<f4").view("<u4") >> 16).astype("<u2").tobytes()
        given = {**X, "datatype": "BF16", "parameters": {"binary_data_size": 4}}
        (found,) = outputs(await server.infer({"inputs": [given]}, octets))
        assert found["data"] == [3, -4]

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    async def test_a_compressed_binary_body(self, server: Server, coding: str) -> None:
        head = json.dumps({"inputs": [BINARY]}).encode()
        squeeze = gzip.compress if coding == "gzip" else zlib.compress
        headers = {"content_encoding": coding, "inference_header_content_length": str(len(head))}
        answer = await server.send(squeeze(head + OCTETS), **headers)
        assert outputs(answer) == [ANSWER]

    @pytest.mark.parametrize(
        "given", ["", "-1", "+8", "1 2", "1_0", "8, 8", "1" * 30, "99999", "\u00b2"]
    )
    async def test_a_wrong_header_length(self, server: Server, given: str) -> None:
        wire = await server.listening.connect()
        body = json.dumps({"inputs": [ROW]}).encode()
        path = "/v2/models/double/infer"
        wrong = request(path, body, inference_header_content_length=given)
        refused(await wire.ask(wrong), "Inference-Header-Content-Length")
        assert outputs(await wire.ask(request(path, body))) == [ANSWER]  # it stays usable
        await wire.close()

    @pytest.mark.parametrize(
        ("change", "octets", "words"),
        [
            ({"parameters": {"binary_data_size": 4}}, OCTETS, ["add up to 4"]),
            ({"parameters": {"binary_data_size": 4}}, OCTETS[:4], ["4 bytes"]),
            ({"parameters": {"binary_data_size": 16}}, OCTETS, ["only 8 bytes"]),
            ({"parameters": {"binary_data_size": 2**63}}, OCTETS, ["only 8 bytes"]),
            ({"parameters": {"binary_data_size": -8}}, OCTETS, ["at least 0"]),
            ({"parameters": {"binary_data_size": True}}, OCTETS, ["whole number"]),
            ({"parameters": {}, "data": [1, 2]}, OCTETS, ["8 bytes follow"]),
            ({"shape": [2, 2]}, OCTETS, ["8 bytes"]),
            ({"shape": [2**62, 4]}, OCTETS, ["limit"]),
            ({"shape": [1, 0]}, OCTETS, ["got shape"]),
            ({"shape": [1, 0, 2**62], "parameters": {"binary_data_size": 0}}, b"", ["got shape"]),
        ],
    )
    async def test_inconsistent_binary_sizes_are_rejected(
        self, server: Server, change: dict[str, object], octets: bytes, words: list[str]
    ) -> None:
        status = 413 if words == ["limit"] else 400
        answer = await server.infer({"inputs": [{**BINARY, **change}]}, octets)
        refused(answer, *words, status=status)

    async def test_every_nonzero_byte_is_true(self, server: Server) -> None:
        given = {"name": "x", "datatype": "BOOL", "shape": [1, 3]}
        document = {"inputs": [{**given, "parameters": {"binary_data_size": 3}}]}
        (found,) = outputs(await server.infer(document, b"\0\1\2", model="bool"))
        assert found["data"] == [False, True, True]


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 2), value).save(file, "png")
    return file.getvalue()


PICTURES = {"name": "picture", "datatype": "BYTES", "shape": [2]}
FILES = (png(0), png(255))


class TestPictures:
    @pytest.mark.parametrize("shape", [[2], [2, 1]])
    async def test_files(self, server: Server, shape: list[int]) -> None:
        framed = b"".join(struct.pack("<I", len(each)) + each for each in FILES)
        given = {**PICTURES, "shape": shape, "parameters": {"binary_data_size": len(framed)}}
        answer = await server.infer({"inputs": [given]}, framed, model="pictures")
        assert outputs(answer)[0]["data"] == [1, 0, 0, 1]
        text = [base64.b64encode(each).decode() for each in FILES]
        same = await server.infer({"inputs": [{**PICTURES, "data": text}]}, model="pictures")
        assert outputs(same) == outputs(answer)
        lines = [base64.encodebytes(each).decode() for each in FILES]
        same = await server.infer({"inputs": [{**PICTURES, "data": lines}]}, model="pictures")
        assert outputs(same) == outputs(answer)

    @pytest.mark.parametrize("binary", [False, True])
    async def test_classes(self, server: Server, binary: bool) -> None:
        text = [base64.b64encode(each).decode() for each in FILES]
        wanted = {"name": "scores", "parameters": {"classification": 5, "binary_data": binary}}
        document = {"inputs": [{**PICTURES, "data": text}], "outputs": [wanted]}
        answer = await server.infer(document, model="pictures")
        lines = ["1.000000:0:dark", "0.000000:1:light", "1.000000:1:light", "0.000000:0:dark"]
        if binary:
            head, octets = parts(answer)
            assert head["outputs"][0]["shape"] == [2, 2]
            assert octets == b"".join(struct.pack("<I", len(t)) + t.encode() for t in lines)
        else:
            assert outputs(answer) == [
                {"name": "scores", "datatype": "BYTES", "shape": [2, 2], "data": lines}
            ]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"data": ["AAAA", "AAAA"]}, ["item 0", "not a PNG, JPEG, WebP or GIF file"]),
            ({"data": ["?", "?"]}, ["base64"]),
            ({"data": [1, 2]}, ["not a PNG, JPEG, WebP or GIF file"]),
            ({"data": ["AAAA"]}, ["1 files"]),
            ({"shape": [1, 2], "data": ["AAAA"]}, ["[n] or [n, 1]"]),
        ],
    )
    async def test_wrong_files(
        self, server: Server, change: dict[str, object], words: list[str]
    ) -> None:
        document = {"inputs": [{**PICTURES, **change}]}
        refused(await server.infer(document, model="pictures"), *words)

    async def test_wrong_framing(self, server: Server) -> None:
        for octets in (b"\1", b"\4\0\0\0", b"\xff\xff\xff\xffa", b"\0\0\0\0" * 3):
            given = {**PICTURES, "parameters": {"binary_data_size": len(octets)}}
            refused(await server.infer({"inputs": [given]}, octets, model="pictures"), "element")


async def test_a_timeout_is_the_deadline(server: Server) -> None:
    given = {**X, "data": [3.5, 1]}
    answer = await server.infer({"inputs": [given], "parameters": {"timeout": 1}})
    assert answer.status in (503, 504)
    refused(answer, status=answer.status)
    generous = {"inputs": [given], "parameters": {"timeout": 10**12}}
    assert outputs(await server.infer(generous))


async def test_raw_bytes_without_a_raw_input_are_rejected(server: Server) -> None:
    answer = await server.send(OCTETS, "small", inference_header_content_length="0")
    refused(answer, "has no such input")


async def test_malformed_http_gets_the_protocols_error(server: Server) -> None:
    for sent in (b"Content-Length: x\r\n", b"A: b\r\n" * 300):
        wire = await server.listening.connect()
        wire.send(b"POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\n" + sent + b"\r\n")
        answer = await wire.answer()
        refused(answer, status=answer.status)
        assert answer.status in (400, 431)
        await wire.close()
